"""`Idempotency-Key` over HTTP (B2.5): what is asked twice runs once. Across a restart: test_restart.py."""

import asyncio
import threading

import pytest
from streams import body, events_in, finished, follow, frames, names_in
from waiting import until

from lmsp_jupyter.handlers.tasks import TasksHandler
from lmsp_jupyter.worker import Worker

pytestmark = [pytest.mark.ours, pytest.mark.usefixtures("script")]

KEY = {"Idempotency-Key": "k1"}


@pytest.fixture
def runs(monkeypatch):
    """The prompts that an engine was given."""
    prompts, generate = [], Worker.generate
    monkeypatch.setattr(Worker, "generate", lambda worker, prompt: prompts.append(prompt) or generate(worker, prompt))
    return prompts


@pytest.fixture
def endless(script):
    """A model that speaks until it is stopped."""
    script("endless", ["repeat", 100_000, "x ", 0.005])


def replayed(answer):
    return answer.headers.get("Idempotency-Replayed") == "true"


async def post(client, request=None, key=KEY, path="/responses"):
    return await client.post(path, json=request or body(), headers=key)


def task(request=None):
    return {"type": "response", "request": request or body()}


async def post_when_free(client, request, path="/responses"):
    """The answer when the key is given back, which nobody is told."""
    while (answer := await post(client, request, path=path)).status_code in (409, 422):
        pass
    return answer


async def speaking(app, model):
    """The one run of a model, when it has begun to speak."""
    await until(lambda: any(run.log.response.text for run in app.runner.runs(model)))
    (run,) = app.runner.runs(model)
    return run


# The same again


async def test_b2_5_a_synchronous_answer_is_told_again(client, runs):
    for request, status in ((body(), "completed"), (body(max_output_tokens=1), "incomplete")):
        first, again = [await post(client, request, {"Idempotency-Key": status}) for _ in range(2)]

        assert (first.status_code, first.json()["status"], replayed(first)) == (200, status, False)
        assert (again.status_code, again.content, replayed(again)) == (200, first.content, True)
        assert again.headers["Content-Type"] == first.headers["Content-Type"]

    assert len(runs) == 2


async def test_b2_5_a_stream_is_told_again_with_the_same_ids(client, runs):
    first, again = [await post(client, body(stream=True)) for _ in range(2)]

    assert replayed(again)
    assert again.headers["Content-Type"] == "text/event-stream"
    assert again.content == first.content
    assert names_in(frames(again.content))[-1] == "response.completed"
    assert len(runs) == 1


async def test_b2_5_a_task_is_accepted_again(client, runs):
    first, again = [await post(client, task(), path="/tasks") for _ in range(2)]
    done = await finished(client, first.json())
    later = await post(client, task(), path="/tasks")

    assert [replayed(answer) for answer in (first, again, later)] == [False, True, True]
    for answer in (again, later):
        assert (answer.status_code, answer.content) == (202, first.content)
        assert answer.headers["Location"] == first.headers["Location"]
    assert done["status"] == "completed"
    assert len(runs) == 1


async def test_b7_5_a_response_in_the_background_is_told_again(client, runs):
    request = body(background=True, store=True)
    first, again = [await post(client, request) for _ in range(2)]
    stream, stream_again = [await post(client, request | {"stream": True}, {"Idempotency-Key": "k2"}) for _ in "ab"]
    await follow(client, {"id": first.json()["task_id"]})

    assert (replayed(again), again.content) == (True, first.content)
    assert (replayed(stream_again), frames(stream_again.content)) == (True, frames(stream.content))
    assert len(runs) == 2


async def test_b2_5_order_and_spacing_of_the_json_do_not_count(client, runs):
    written = [
        '{"model":"hello","input":"hä","temperature":1}',
        '{ "temperature": 1.0,\n "input": "h\\u00e4", "model": "hello" }',
    ]
    first, again = [
        await client.post("/responses", content=text.encode(), headers=KEY | {"Content-Type": "application/json"})
        for text in written
    ]

    assert replayed(again)
    assert again.content == first.content
    assert len(runs) == 1


async def test_b2_5_a_key_is_bare_or_quoted(client, runs):
    await post(client, key={"Idempotency-Key": "a b"})

    assert replayed(await post(client, key={"Idempotency-Key": '"a b"'}))
    assert len(runs) == 1


async def test_b2_5_keys_that_are_none(client, runs):
    for key in ("", '""', "x" * 256, b"k\xc3\xa4", b"a\tb"):
        for path, request in (("/responses", body()), ("/tasks", task())):
            answer = await post(client, request, {"Idempotency-Key": key}, path)
            assert (key, answer.status_code, answer.json()["code"]) == (key, 400, "invalid_request")

    assert runs == []


async def test_b2_5_a_key_counts_in_its_path_and_for_its_caller_alone(app, client, runs):
    await post(client)
    in_another_path = await post(client, task(), path="/tasks")
    await finished(client, in_another_path.json())
    under_another_key = await post(client, key={"Idempotency-Key": "k2"})
    by_the_same_identity = await post(client, key=KEY | {"Authorization": f"Bearer {app.tokens.mint_for_kernel()}"})

    assert not replayed(in_another_path)
    assert not replayed(under_another_key)
    assert replayed(by_the_same_identity)
    assert len(runs) == 3


# Not the same, or not yet


async def test_b2_5_another_body_under_the_key_is_422(client, runs):
    first = await post(client)

    for other in (body(input="ho"), body(stream=True), body(temperature=0), body(metadata={"a": "b"})):
        answer = await post(client, other)
        assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_key_reused")

    assert (await post(client)).content == first.content
    assert len(runs) == 1


async def test_b2_5_while_the_first_runs_the_same_is_409_and_another_422(app, client, endless, runs):
    first = asyncio.ensure_future(post(client, body("endless")))
    await speaking(app, "endless")

    same, other = await post(client, body("endless")), await post(client, body("endless", input="ho"))

    assert (same.status_code, same.json()["code"]) == (409, "request_in_progress")
    assert int(same.headers["Retry-After"]) > 0
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert len(runs) == 1
    first.cancel()
    await until(lambda: app.runner.active == 0)


async def test_b2_5_of_many_at_once_one_runs(client, runs):
    for streamed in (False, True):
        key = {"Idempotency-Key": f"streamed {streamed}"}
        answers = await asyncio.gather(*(post(client, body(stream=streamed), key) for _ in range(8)))

        (ran,) = [answer for answer in answers if answer.status_code == 200 and not replayed(answer)]
        assert all(answer.status_code == 409 or answer.content == ran.content for answer in answers)

    assert len(runs) == 2


async def test_b2_5_of_many_tasks_at_once_one_is_made(client, runs):
    answers = await asyncio.gather(*(post(client, task(), path="/tasks") for _ in range(8)))

    made = {answer.json()["id"] for answer in answers if answer.status_code == 202}
    assert len(made) == 1
    assert {answer.status_code for answer in answers} <= {202, 409}
    (listed,) = (await client.get("/tasks")).json()["data"]
    assert (await finished(client, listed))["status"] == "completed"
    assert len(runs) == 1


# What gives the key back


async def test_b2_5_a_run_that_failed_gives_the_key_back(client, script, runs):
    script("breaks", ["text", "a"], ["broken", "no luck"])

    answers = [await post(client, body("breaks", stream=streamed)) for streamed in (False, False, True, True)]

    assert [answer.status_code for answer in answers] == [500, 500, 200, 200]
    assert not any(replayed(answer) for answer in answers)
    assert len(runs) == 4


async def test_b2_5_a_task_that_failed_gives_the_key_back(client, script, runs):
    script("breaks", ["broken", "no luck"])
    first = (await post(client, task(body("breaks")), path="/tasks")).json()
    assert (await finished(client, first))["status"] == "failed"

    again = await post(client, task(body("breaks")), path="/tasks")

    assert not replayed(again)
    assert again.json()["id"] != first["id"]
    await finished(client, again.json())
    assert len(runs) == 2


async def test_b2_5_a_refusal_gives_the_key_back(client, script):
    script("small", ["echo"], context_length=10)
    script("wont", load={"error": "no such tensor"}, context_length=100)
    for refused in (
        body("helo"),
        body("small", input="word " * 10),
        body("wont"),
        body(previous_response_id="resp_none"),
        body(temperature=9),
    ):
        for path, request in (("/responses", refused), ("/tasks", task(refused))):
            answer = await post(client, request, path=path)
            assert answer.status_code in (400, 404, 503)

    assert (await post(client)).status_code == 200


async def test_b2_5_a_client_that_left_gives_the_key_back(app, client, endless):
    for streamed in (False, True):
        posted = asyncio.ensure_future(post_when_free(client, body("endless", stream=streamed)))
        await speaking(app, "endless")
        posted.cancel()
        await until(lambda: app.runner.active == 0)

    answer = await post_when_free(client, body())

    assert (answer.status_code, replayed(answer)) == (200, False)


async def test_b2_5_who_leaves_while_the_key_is_taken_gives_it_back(app, client, monkeypatch, runs):
    store = app.runner.journal._store
    taking, left, go_on = threading.Event(), asyncio.Event(), threading.Event()
    reserve, close = store.reserve, TasksHandler.on_connection_close

    def slowly(*arguments):
        taking.set()
        assert go_on.wait(20)
        return reserve(*arguments)

    def leave(handler):
        close(handler)
        left.set()

    monkeypatch.setattr(store, "reserve", slowly)
    monkeypatch.setattr(TasksHandler, "on_connection_close", leave)
    posted = asyncio.ensure_future(post(client, task(), path="/tasks"))
    await until(taking.is_set)
    posted.cancel()
    await left.wait()
    go_on.set()

    answer = await post_when_free(client, task(body(input="ho")), "/tasks")

    assert (answer.status_code, replayed(answer)) == (202, False)
    await finished(client, answer.json())
    assert len(runs) == 1


async def test_b2_5_a_task_whose_answer_was_lost_is_told_of_again(app, client, monkeypatch, runs):
    store = app.runner.journal._store
    keeping, left, go_on = threading.Event(), asyncio.Event(), threading.Event()
    keep, close = store.keep, TasksHandler.on_connection_close

    def slowly(*arguments):
        keeping.set()
        assert go_on.wait(20)
        return keep(*arguments)

    def leave(handler):
        close(handler)
        left.set()

    monkeypatch.setattr(store, "keep", slowly)
    monkeypatch.setattr(TasksHandler, "on_connection_close", leave)
    posted = asyncio.ensure_future(post(client, task(), path="/tasks"))
    await until(keeping.is_set)
    posted.cancel()
    await left.wait()
    go_on.set()

    again = await post(client, task(), path="/tasks")

    assert (again.status_code, replayed(again)) == (202, True)
    (listed,) = (await client.get("/tasks")).json()["data"]
    assert again.json()["id"] == listed["id"]
    assert (await finished(client, listed))["status"] == "completed"
    assert len(runs) == 1


# What keeps it


async def test_b2_5_what_a_route_cancelled_is_told_again(app, client, endless, runs):
    for streamed in (False, True):
        key, request = {"Idempotency-Key": f"streamed {streamed}"}, body("endless", stream=streamed, store=True)
        posted = asyncio.ensure_future(post(client, request, key))
        run = await speaking(app, "endless")
        assert (await client.post(f"/responses/{run.id}/cancel")).json()["status"] == "cancelled"
        first, again = await posted, await post(client, request, key)
        await until(lambda: app.runner.active == 0)

        assert (first.status_code, replayed(first)) == (200, False)
        assert (again.status_code, again.content, replayed(again)) == (200, first.content, True)
        if streamed:
            assert names_in(frames(again.content))[-1] == "response.cancelled"
        else:
            assert again.json()["status"] == "cancelled"

    assert len(runs) == 2


async def test_b2_5_a_cancelled_task_is_accepted_again(app, client, endless, runs):
    first = await post(client, task(body("endless")), path="/tasks")
    await speaking(app, "endless")
    await client.post(f"/tasks/{first.json()['id']}/cancel")

    again = await post(client, task(body("endless")), path="/tasks")

    assert (again.status_code, again.content, replayed(again)) == (202, first.content, True)
    assert len(runs) == 1


# What empties it


async def test_b6_1_deleting_the_response_empties_its_record(client, runs):
    request = body(store=True, stream=True)
    first = await post(client, request)
    (_, _, created), *_ = events_in(frames(first.content))

    assert (await client.delete(f"/responses/{created['response_id']}")).status_code == 204

    again = await post(client, request)
    assert (again.status_code, replayed(again)) == (200, False)
    assert len(runs) == 2


async def test_b3_3_deleting_the_task_empties_its_record(client, runs):
    first = (await post(client, task(), path="/tasks")).json()
    await finished(client, first)
    assert (await client.delete(f"/tasks/{first['id']}")).status_code == 204

    again = await post(client, task(), path="/tasks")

    assert (again.status_code, replayed(again)) == (202, False)
    await finished(client, again.json())
    assert len(runs) == 2


async def test_b2_5_a_key_means_nothing_elsewhere(client, runs):
    chat = {"model": "hello", "messages": [{"role": "user", "content": "hi"}]}
    answers = [await post(client, chat, path="/chat/completions") for _ in range(2)]

    assert [replayed(answer) for answer in answers] == [False, False]
    assert answers[0].json()["id"] != answers[1].json()["id"]
    assert len(runs) == 2
