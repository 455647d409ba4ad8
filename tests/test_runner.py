"""Admission, and what an engine says as events (A1.10, A1.11, B0.4 to B0.11, B3.8); over HTTP: test_handlers.py."""

import asyncio
import json
from pathlib import Path

import pytest

from lmsp_jupyter import hosts
from lmsp_jupyter.catalog import Entry
from lmsp_jupyter.engines import (
    Broken,
    CallArguments,
    CallEnded,
    CallStarted,
    Finished,
    PromptProgress,
    ReasoningText,
    Settings,
    Text,
)
from lmsp_jupyter.errors import (
    BadRequest,
    ContextLengthExceeded,
    EngineFailed,
    ModelNotFound,
    ModelUnavailable,
    QueueFull,
    ResponseInProgress,
    ResponseNotFound,
    UnsupportedCapability,
)
from lmsp_jupyter.hosts import Hosts
from lmsp_jupyter.journal import Journal
from lmsp_jupyter.parsing import parse_request
from lmsp_jupyter.protocol import Model, Usage
from lmsp_jupyter.runner import Runner
from lmsp_jupyter.store import Store

chapter6 = pytest.mark.chapter6
ours = pytest.mark.ours

USAGE = Usage(input_tokens=3, output_tokens=2, total_tokens=5)
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "name": "f", "parameters": SCHEMA}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
STOP = Finished("stop", USAGE)


def request(**members):
    return parse_request(json.dumps({"model": "m", "input": "Hi."} | members).encode())


class FakeWorker:
    """A model whose answers are batches of outputs; None among them waits until the work is stopped."""

    def __init__(self, *batches, context_length=4096, tokens=3):
        self.alive = True
        self.context_length = context_length
        self.stopped = asyncio.Event()
        self.prompts = []
        self._batches = batches
        self._tokens = tokens

    async def count(self, prompt):
        return self._tokens

    def generate(self, prompt):
        self.prompts.append(prompt)
        return self

    async def batches(self):
        for batch in self._batches:
            if batch is None:
                await self.stopped.wait()
                yield [Finished("cancelled", USAGE)]
                return
            yield batch

    def cancel(self):
        self.stopped.set()

    async def close(self):
        self.alive = False


class FakeCatalog:
    """One model, named m."""

    def __init__(self, **members):
        facts = {"engine": "scripted", "capabilities": ["tools", "structured_output"], "context_length": 4096}
        self._model = Model(**{"id": "m", "size_bytes": 10, "quantization": None, "source": "lmsp"} | facts | members)

    def models(self):
        return [self._model]

    def find(self, model_id):
        if model_id != "m":
            raise ModelNotFound()
        return Entry(self._model, Path("m"), "scripted")


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Run `act(runner, worker)` with a model that says these batches; with `load`, how loading it ends."""

    def serve(act, *batches, load=None, queue_limit=64, parallel=1, model=None, **more):
        async def scenario():
            worker = FakeWorker(*batches, **more)

            async def start(*_):
                if load:
                    raise load
                return worker

            monkeypatch.setattr(hosts.Worker, "start", start)
            settings = Settings(parallel=parallel)
            runner = Runner(
                FakeCatalog(**model or {}),
                Hosts(settings, memory=100, idle=0),
                Journal(Store(tmp_path / "data"), event_retention=3600, task_retention=86400),
                settings,
                queue_limit,
            )
            try:
                return await act(runner, worker)
            finally:
                await runner.close()

        return asyncio.run(asyncio.wait_for(scenario(), timeout=30))

    return serve


@pytest.fixture
def answer(serve):
    """The events' names and the response of a whole run."""

    def answer(*batches, members=(), **more):
        async def act(runner, _):
            run = await runner.start(request(**dict(members)), "ann", ["ann"])
            entries = [entry async for batch in run.log.follow() for entry in batch]
            return [entry.event.removeprefix("response.") for entry in entries], run.log.response

        return serve(act, *batches, **more)

    return answer


def start(runner, **members):
    return runner.start(request(**members), "ann", ["ann"])


async def end_of(run):
    async for _ in run.log.follow():
        pass
    return run.log.response


# Refused before anything is sent.


@chapter6
@pytest.mark.parametrize(
    ("members", "lacking", "pointer"),
    [
        ({"tools": [TOOL]}, "tools", "/tools"),
        ({"response_format": FORMAT}, "structured_output", "/response_format"),
    ],
    ids=["tools", "a schema"],
)
def test_a1_10_what_needs_a_capability_that_the_model_lacks_is_refused(serve, members, lacking, pointer):
    async def act(runner, _):
        with pytest.raises(UnsupportedCapability) as caught:
            await start(runner, **members)
        return caught.value

    capabilities = [each for each in ("tools", "structured_output") if each != lacking]
    problem = serve(act, model={"capabilities": capabilities})

    assert problem.param == pointer


@chapter6
@pytest.mark.parametrize(("tokens", "fits"), [(63, True), (64, False), (65, False)])
def test_a1_11_b0_4_the_input_must_leave_room_for_one_token(serve, tokens, fits):
    async def act(runner, worker):
        if not fits:
            with pytest.raises(ContextLengthExceeded) as caught:
                await start(runner)
            assert caught.value.param == "/input"
            assert worker.prompts == []
            return None
        return (await end_of(await start(runner))).status

    model = {"context_length": 64}
    assert serve(act, [STOP], model=model, context_length=64, tokens=tokens) == ("completed" if fits else None)


@ours
def test_b1_2_an_unknown_model_is_refused(serve):
    async def act(runner, _):
        with pytest.raises(ModelNotFound):
            await start(runner, model="another")

    serve(act)


@ours
def test_b2_3_who_would_wait_too_long_is_told_to_come_again(serve):
    async def act(runner, worker):
        runs = [await start(runner) for _ in range(3)]
        with pytest.raises(QueueFull) as caught:
            await start(runner)
        assert "Retry-After" in caught.value.headers
        await runs[2].cancel()
        await end_of(runs[2])
        await start(runner)

    serve(act, None, queue_limit=2)


@ours
def test_b0_4_a_load_that_fails_before_opening_is_refused(serve):
    async def act(runner, _):
        with pytest.raises(ModelUnavailable):
            await start(runner)

    serve(act, load=ModelUnavailable("It is no model."), model={"context_length": 64})


@ours
def test_b0_4_a_load_that_fails_after_opening_fails_the_response(answer):
    names, response = answer(load=ModelUnavailable("It is no model."))

    assert names == ["created", "in_progress", "progress", "failed"]
    assert response.error["code"] == "model_unavailable"


# What the engine says.


@ours
def test_b3_8_the_order_of_a_run(answer):
    said = [PromptProgress(0, 3), PromptProgress(3, 3)], [Text("Be", 1)], [Text("cause.", 2), STOP]

    names, response = answer(*said)

    assert names == [
        *("created", "in_progress"),
        *["progress"] * 4,
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    assert (response.status, response.text, response.usage) == ("completed", "Because.", USAGE)


@ours
def test_b3_8_who_waits_is_told_its_position(serve):
    async def act(runner, _):
        first, *waiting = [await start(runner) for _ in range(3)]
        positions = []
        for run in waiting:
            (queued,) = await anext(run.log.follow(after=1))
            positions.append((queued.event, json.loads(queued.data)["position"]))
        await first.cancel()
        for run in waiting:
            await end_of(run)
        return positions

    assert serve(act, None) == [("response.queued", 1), ("response.queued", 2)]


@chapter6
def test_a2_3_reasoning_text_and_calls_are_items(answer):
    said = [ReasoningText("Hm."), Text("See:"), CallStarted("f"), CallArguments('{"a":1}'), CallEnded(), STOP]

    _, response = answer(said, members={"tools": [TOOL]})

    assert [type(item).__name__ for item in response.output] == ["Reasoning", "Message", "FunctionCall"]
    assert response.status == "completed"


@chapter6
@pytest.mark.parametrize("store", [False, True])
def test_a2_3_a_call_comes_in_any_batches(answer, store):
    batches = [[CallStarted("f")], [CallArguments('{"a":1}')], [CallEnded()], [STOP]]

    _, response = answer(*batches, members={"tools": [TOOL], "store": store})

    assert (response.status, [item.arguments for item in response.output]) == ("completed", ['{"a":1}'])


@ours
@pytest.mark.parametrize(
    ("members", "usage", "reason"),
    [
        ({"max_output_tokens": 2}, USAGE, "max_output_tokens"),
        ({"max_output_tokens": 3}, USAGE, "context_length"),
        ({}, USAGE, "context_length"),
    ],
    ids=str,
)
def test_b0_4_the_limit_that_was_met_is_told(answer, members, usage, reason):
    _, response = answer([Text("Be"), Finished("length", usage)], members=members)

    assert (response.status, response.incomplete_details.reason) == ("incomplete", reason)


@ours
def test_an_engine_that_fails_fails_the_response(answer):
    _, response = answer([Text("Be"), Broken(EngineFailed("It broke.").document(), USAGE)])

    assert (response.status, response.error["code"], response.usage) == ("failed", "engine_failed", USAGE)
    assert [(item.status, item.text) for item in response.output] == [("incomplete", "Be")]


# Validation.


@ours
def test_b0_11_an_answer_that_is_valid_is_completed(answer):
    _, response = answer([Text('{"a": '), Text("1}"), STOP], members={"response_format": FORMAT})

    assert response.status == "completed"


@ours
@pytest.mark.parametrize("text", ["", "1", "{}", '{"a": 1, "b": 2}', '{"a": "1"}', '{"a": 1'], ids=repr)
def test_b0_11_an_answer_that_is_not_valid_is_never_completed(answer, text):
    _, response = answer([Text(text), STOP], members={"response_format": FORMAT})

    assert (response.status, response.error["code"]) == ("failed", "output_invalid")


@ours
def test_b0_11_an_answer_that_a_stop_string_cut_is_incomplete(answer):
    members = {"response_format": FORMAT, "extensions": {"lmsp_jupyter": {"stop": ["}"]}}}

    _, cut = answer([Text('{"a": 1'), Finished("stop", USAGE, by_string=True)], members=members)
    _, wrong = answer([Text('{"a": 1'), STOP], members=members)

    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "stop")
    assert (wrong.status, wrong.error["code"]) == ("failed", "output_invalid")


@ours
@pytest.mark.parametrize("arguments", ["", "{}", '{"a": "1"}', '{"a": 1'], ids=repr)
def test_b0_11_a_call_that_its_tool_does_not_take_is_never_made(answer, arguments):
    said = [CallStarted("f"), CallArguments(arguments), CallEnded()]

    names, response = answer(said, None, members={"tools": [TOOL]})

    assert (response.status, response.error["code"]) == ("failed", "output_invalid")
    assert response.output == []
    assert "output_item.done" not in names


@ours
def test_b0_11_a_call_of_no_tool_is_never_made(answer):
    _, response = answer([CallStarted("g"), CallArguments("{}"), CallEnded()], None, members={"tools": [TOOL]})

    assert (response.status, response.error["code"], response.output) == ("failed", "output_invalid", [])


@ours
@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "f"}], ids=str)
def test_b0_10_an_answer_without_the_call_that_is_required_is_never_completed(answer, choice):
    members = {"tools": [TOOL], "tool_choice": choice}

    assert answer([Text("No."), STOP], members=members)[1].error["code"] == "output_invalid"
    cut = answer([Text("No."), Finished("length", USAGE)], members=members)[1]
    assert (cut.status, cut.error) == ("incomplete", None)


@ours
def test_b0_10_a_call_in_place_of_an_answer_under_a_schema_is_completed(answer):
    said = [CallStarted("f"), CallArguments('{"a": 1}'), CallEnded(), STOP]

    assert answer(said, members={"tools": [TOOL], "response_format": FORMAT})[1].status == "completed"


@ours
def test_b0_7_a_call_that_is_cut_is_not_in_the_output(answer):
    said = [Text("See:"), CallStarted("f"), CallArguments('{"a":'), Finished("length", USAGE)]

    _, response = answer(said, members={"tools": [TOOL]})

    assert response.status == "incomplete"
    assert [type(item).__name__ for item in response.output] == ["Message"]


# Cancelling.


@ours
def test_b0_8_who_cancels_stops_the_work_and_no_event_follows(serve):
    async def act(runner, worker):
        run = await start(runner)
        follow = run.log.follow()
        while not run.log.response.text:
            await anext(follow)
        await run.cancel()
        response, last = run.log.response, run.log.last
        await worker.stopped.wait()
        await end_of(run)
        await run.task
        assert run.log.last == last
        assert runner.active == 0
        return response

    response = serve(act, [PromptProgress(3, 3), Text("Be", 1)], None)

    assert (response.status, response.text) == ("cancelled", "Be")
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (3, 1, 4)


@ours
def test_b0_8_who_cancels_while_waiting_never_asks_the_engine(serve):
    async def act(runner, worker):
        _, second = await start(runner), await start(runner)
        await second.cancel()
        response = await end_of(second)
        await asyncio.gather(second.task, return_exceptions=True)
        assert len(worker.prompts) <= 1
        return response

    assert serve(act, None).status == "cancelled"


@ours
def test_b6_1_any_running_response_of_the_caller_is_cancelled_by_its_id(serve):
    async def act(runner, _):
        run = await start(runner)
        with pytest.raises(ResponseNotFound):
            await runner.cancel(run.id, ["bob"])
        assert (await runner.cancel(run.id, ["ann"])).status == "cancelled"

        stored = await start(runner, store=True)
        await runner.cancel(stored.id, ["ann"])
        await asyncio.gather(stored.task, return_exceptions=True)
        assert (await runner.cancel(stored.id, ["ann"])).status == "cancelled"
        with pytest.raises(ResponseNotFound):
            await runner.cancel("resp_0", ["ann"])

    serve(act, None)


# Continuing.


@ours
def test_b6_2_a_stored_response_is_continued_with_all_that_came_before(serve):
    async def act(runner, worker):
        first = await end_of(await start(runner, input="One.", store=True, instructions="Be brief."))
        second = await end_of(await start(runner, input="Two.", store=True, previous_response_id=first.id))
        await end_of(await start(runner, input="Three.", previous_response_id=second.id))
        return worker.prompts[-1].turns, second

    turns, second = serve(act, [Text("So."), STOP])

    assert [(turn.role, turn.content) for turn in turns] == [
        ("user", "One."),
        ("assistant", "So."),
        ("user", "Two."),
        ("assistant", "So."),
        ("user", "Three."),
    ]
    assert second.previous_response_id is not None


@ours
def test_b6_2_what_cannot_be_continued_is_refused(serve):
    async def act(runner, _):
        running = await start(runner, store=True)
        with pytest.raises(ResponseInProgress):
            await start(runner, previous_response_id=running.id)
        with pytest.raises(ResponseNotFound):
            await runner.start(request(previous_response_id=running.id), "bob", ["bob"])
        with pytest.raises(ResponseNotFound):
            await start(runner, previous_response_id="resp_0")
        await running.fail(EngineFailed("It broke."))
        with pytest.raises(BadRequest) as caught:
            await start(runner, previous_response_id=running.id)
        assert caught.value.param == "/previous_response_id"

    serve(act, None)


@ours
def test_a1_8_a_response_that_is_not_stored_cannot_be_continued(serve):
    async def act(runner, _):
        first = await end_of(await start(runner))
        with pytest.raises(ResponseNotFound):
            await start(runner, previous_response_id=first.id)

    serve(act, [STOP])
