"""B2.5: the same key and body run once. That answers survive a restart cannot be seen from outside."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from . import sse
from .api import key, message, refused, until

pytestmark = pytest.mark.ours

REPLAYED = "Idempotency-Replayed"
STORY = "Tell me a long story."


def test_b2_5_the_first_answer_comes_again(lmsp):
    headers = key()
    first = lmsp.post("/responses", lmsp.ask(), headers=headers)
    second = lmsp.post("/responses", lmsp.ask(), headers=headers)

    assert (first.status_code, second.status_code) == (200, 200)
    assert second.json() == first.json()
    assert REPLAYED not in first.headers
    assert second.headers[REPLAYED] == "true"


def test_b2_5_an_incomplete_answer_is_kept_too(lmsp):
    headers = key()
    first, second = (lmsp.respond(lmsp.ask(STORY, max_output_tokens=2), headers=headers) for _ in range(2))

    assert first == second
    assert first["status"] == "incomplete"


def test_b2_5_a_stream_comes_again_as_its_whole_event_sequence(lmsp):
    headers = key()
    first = lmsp.stream(lmsp.ask(), headers=headers)
    again = lmsp.post("/responses", lmsp.ask(stream=True), headers=headers)

    assert again.headers[REPLAYED] == "true"
    assert list(sse.read([again.content])) == first


def test_b2_5_a_task_is_made_once(lmsp):
    headers, body = key(), {"type": "response", "request": lmsp.ask()}
    first = lmsp.post("/tasks", body, headers=headers)
    second = lmsp.post("/tasks", body, headers=headers)

    assert (first.status_code, second.status_code) == (202, 202)
    assert second.json()["id"] == first.json()["id"]
    assert second.headers["Location"] == first.headers["Location"]
    assert second.headers[REPLAYED] == "true"


def test_b2_5_a_key_may_be_quoted(lmsp):
    (name,) = key().values()
    bare = lmsp.post("/responses", lmsp.ask(max_output_tokens=1), headers={"Idempotency-Key": name})
    quoted = lmsp.post("/responses", lmsp.ask(max_output_tokens=1), headers={"Idempotency-Key": f'"{name}"'})

    assert quoted.json() == bare.json()
    assert quoted.headers[REPLAYED] == "true"


def test_b2_5_bodies_are_compared_by_what_they_say(lmsp):
    headers = key()
    request = lmsp.ask(temperature=0, max_output_tokens=1)
    turned = json.dumps(dict(reversed(request.items())), indent=2).replace('"temperature": 0', '"temperature": 0.0')
    lmsp.respond(request, headers=headers)

    again = lmsp.post("/responses", content=turned, headers=headers | {"Content-Type": "application/json"})

    assert (again.status_code, again.headers.get(REPLAYED)) == (200, "true")


@pytest.mark.parametrize("more", [{"temperature": 1}, {"stream": True}, {"input": [message("Name four fruits.")]}])
def test_b2_5_another_body_is_refused(lmsp, more):
    headers = key()
    lmsp.respond(lmsp.ask(max_output_tokens=1), headers=headers)

    refused(
        lmsp.post("/responses", lmsp.ask(max_output_tokens=1, **more), headers=headers), 422, "idempotency_key_reused"
    )


def test_b2_5_the_same_key_on_another_path_is_another(lmsp):
    headers = key()
    lmsp.respond(lmsp.ask(max_output_tokens=1), headers=headers)

    answer = lmsp.post("/tasks", {"type": "response", "request": lmsp.ask(max_output_tokens=1)}, headers=headers)

    assert answer.status_code == 202
    assert REPLAYED not in answer.headers


def test_b2_5_while_the_first_still_runs(lmsp):
    headers, request = key(), lmsp.ask(STORY, max_output_tokens=None, stream=True)
    with lmsp.open("POST", "/responses", json=request, headers=headers) as events:
        next(events)
        answer = lmsp.post("/responses", request, headers=headers)
        refused(answer, 409, "request_in_progress")
        assert int(answer.headers["Retry-After"]) > 0


def test_b2_5_a_client_that_left_releases_the_key(lmsp):
    headers = key()
    with lmsp.open(
        "POST", "/responses", json=lmsp.ask(STORY, max_output_tokens=None, stream=True), headers=headers
    ) as events:
        next(event for event in events if event.name == "response.output_text.delta")

    again = until(
        lambda: lmsp.post("/responses", lmsp.ask(max_output_tokens=1), headers=headers),
        lambda answer: answer.status_code not in (409, 422),
    )

    assert (again.status_code, again.headers.get(REPLAYED)) == (200, None)


def test_b2_5_a_refusal_releases_the_key(lmsp):
    headers = key()
    refused(lmsp.post("/responses", lmsp.ask(temperature=9), headers=headers), 400, "invalid_request")
    refused(lmsp.post("/responses", lmsp.ask(model="none-such"), headers=headers), 404, "model_not_found")

    assert REPLAYED not in lmsp.post("/responses", lmsp.ask(max_output_tokens=1), headers=headers).headers


def test_b2_5_what_a_route_cancelled_is_kept(lmsp):
    headers, request = key(), lmsp.ask(STORY, max_output_tokens=None, store=True, stream=True)
    seen = []
    with lmsp.open("POST", "/responses", json=request, headers=headers) as events:
        seen.append(next(events))
        assert lmsp.post(f"/responses/{seen[0].data['response_id']}/cancel").status_code == 200
        seen += events

    again = lmsp.post("/responses", request, headers=headers)

    assert seen[-1].name == "response.cancelled"
    assert again.headers[REPLAYED] == "true"
    assert list(sse.read([again.content])) == seen


def test_b2_5_two_simultaneous_posts_run_once(lmsp):
    headers, request, together = key(), lmsp.ask(), threading.Barrier(2)

    def post(_):
        together.wait()
        return lmsp.post("/responses", request, headers=headers)

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(post, range(2)))

    assert {answer.status_code for answer in answers} <= {200, 409}
    assert len({answer.json()["id"] for answer in answers if answer.status_code == 200}) == 1
    for answer in answers:
        if answer.status_code == 409:
            refused(answer, 409, "request_in_progress")


@pytest.mark.parametrize("name", ["", "a" * 256, "a\tb", "ä"])
@pytest.mark.parametrize("path", ["/responses", "/tasks"])
def test_b2_5_a_key_has_1_to_255_printable_characters(lmsp, path, name):
    body = lmsp.ask(max_output_tokens=1) if path == "/responses" else {"type": "response", "request": lmsp.ask()}

    refused(lmsp.post(path, body, headers={"Idempotency-Key": name.encode()}), 400, "invalid_request")


def test_b2_5_a_key_of_255_characters(lmsp):
    (name,) = key().values()

    lmsp.respond(lmsp.ask(max_output_tokens=1), headers={"Idempotency-Key": name.ljust(255, "~")})
