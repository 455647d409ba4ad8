"""The process of a model, driven through its pipe with a scripted engine."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from waiting import until

from lmsp_jupyter.engines import (
    Broken,
    CallArguments,
    CallEnded,
    CallStarted,
    Finished,
    Prompt,
    PromptProgress,
    Settings,
    Text,
    Turn,
)
from lmsp_jupyter.errors import EngineCrashed, ModelUnavailable
from lmsp_jupyter.protocol import Tool
from lmsp_jupyter.worker import Worker

PROMPT = Prompt(turns=[Turn("user", "one two three")])


@pytest.fixture
def perform(tmp_path):
    """Run `act(worker)` against a worker whose engine follows a script; the worker is closed afterwards."""

    def perform(script, act=None):
        path = tmp_path / "model.script"
        path.write_text(json.dumps({"steps": []} | script))

        async def main():
            worker = await Worker.start("scripted", path, Settings(parallel=2))
            try:
                return await act(worker)
            finally:
                await worker.close()
                assert not worker.alive
                assert not psutil.pid_exists(worker.pid)

        return asyncio.run(main())

    return perform


async def outputs(generation):
    return [output async for output in generation]


def test_says_what_the_engine_says_in_order(perform):
    async def act(worker):
        return await outputs(worker.generate(PROMPT))

    *said, end = perform({"steps": [["progress", 1, 3], ["text", "a"], ["text", "👩‍👧"]]}, act)

    assert said == [PromptProgress(1, 3), Text("a", 1), Text("👩‍👧", 2)]
    assert (end.reason, end.usage.input_tokens, end.usage.output_tokens) == ("stop", 3, 2)


@pytest.mark.ours
def test_b0_9_calls_in_the_text_of_any_engine_are_told_as_such(perform):
    async def act(worker):
        with_tools = Prompt(turns=PROMPT.turns, tools=[Tool(name="f")])
        return [await outputs(worker.generate(prompt)) for prompt in (with_tools, PROMPT)]

    text = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    with_tools, without = perform({"steps": [["text", text]]}, act)

    assert with_tools[:-1] == [CallStarted("f", 1), CallArguments('{"a": 1}', 1), CallEnded()]
    assert without[:-1] == [Text(text, 1)]


def test_counts_a_prompt_while_another_generates(perform):
    async def act(worker):
        generation = worker.generate(PROMPT)
        tokens = await worker.count(PROMPT)
        generation.cancel()
        return tokens, (await outputs(generation))[-1].reason

    assert perform({"steps": [["sleep", 60]]}, act) == (3, "cancelled")


def test_what_a_native_library_prints_does_not_reach_the_pipe(perform):
    async def act(worker):
        return await outputs(worker.generate(PROMPT))

    said = perform({"steps": [["print", "llama_model_loader: \0\xff"], ["text", "a"]]}, act)

    assert said[0] == Text("a", 1)


def test_prompts_run_side_by_side(perform):
    async def act(worker):
        return await asyncio.gather(*(outputs(worker.generate(PROMPT)) for _ in range(5)))

    said = perform({"steps": [["repeat", 20, "x", 0.001]]}, act)

    assert [len(each) for each in said] == [21] * 5


def test_an_engine_that_breaks_lives_on(perform):
    async def act(worker):
        return [(await outputs(worker.generate(PROMPT)))[-1] for _ in range(2)]

    ends = perform({"steps": [["broken", "no luck"]]}, act)

    assert [end.problem["code"] for end in ends] == ["engine_failed"] * 2


@pytest.mark.parametrize("step", [["crash"], ["sleep", 60]])
def test_a_death_ends_everything_that_waits(perform, step):
    async def act(worker):
        first, second = worker.generate(PROMPT), worker.generate(PROMPT)
        if step[0] == "sleep":
            await worker.count(PROMPT)
            os.kill(worker.pid, signal.SIGKILL)
        ends = [(await outputs(generation))[-1] for generation in (first, second)]
        await until(lambda: not worker.alive)
        after = (await outputs(worker.generate(PROMPT)))[-1]
        with pytest.raises(EngineCrashed):
            await worker.count(PROMPT)
        return [*ends, after]

    ends = perform({"steps": [step]}, act)

    assert all(isinstance(end, Broken) and end.problem["code"] == "engine_crashed" for end in ends)


def test_a_process_that_says_what_makes_no_sense_is_ended(perform):
    async def act(worker):
        await outputs(worker.generate(PROMPT))
        await until(lambda: not worker.alive)

    perform({"steps": [["early"]]}, act)


def test_the_folder_that_the_server_runs_in_is_not_imported_from(perform, tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)

    async def act(worker):
        return await worker.count(PROMPT)

    assert perform({}, act) == 3


def test_a_load_that_fails_says_why(perform):
    with pytest.raises(ModelUnavailable, match="no such tensor"):
        perform({"load": {"error": "no such tensor"}})


def test_a_load_that_crashes_says_so(perform):
    with pytest.raises(EngineCrashed, match="SIGABRT"):
        perform({"load": {"crash": True}})


def test_the_end_of_the_pipe_ends_the_worker(perform):
    async def act(worker):
        worker.generate(PROMPT)
        worker._process.stdin.close()
        await until(lambda: not worker.alive)

    perform({"steps": [["sleep", 60]]}, act)


SERVER = """
import asyncio, os, sys
from pathlib import Path
from lmsp_jupyter.engines import Prompt, Settings, Text, Turn
from lmsp_jupyter.worker import Worker

async def main():
    worker = await Worker.start("scripted", Path(sys.argv[1]), Settings())
    async for output in worker.generate(Prompt(turns=[Turn("user", "hi")])):
        print(worker.pid, worker._folder, flush=True)
        os._exit(9)

asyncio.run(main())
"""


def test_a_dead_server_leaves_no_worker_and_no_folder(tmp_path):
    path = tmp_path / "model.script"
    path.write_text(json.dumps({"steps": [["repeat", 100_000, "x", 0.001]]}))

    server = subprocess.run([sys.executable, "-c", SERVER, path], stdout=subprocess.PIPE, text=True, check=False)

    assert server.returncode == 9
    pid, folder = server.stdout.split()
    asyncio.run(until(lambda: not psutil.pid_exists(int(pid))))
    assert not Path(folder).exists()


def test_nothing_is_left_on_the_disk(perform, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def act(worker):
        folders = list(tmp_path.glob("lmsp-*"))
        assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700]
        os.kill(worker.pid, signal.SIGKILL)
        await until(lambda: not worker.alive and not folders[0].exists())

    perform({}, act)


def test_secrets_stay_with_the_server(perform, monkeypatch):
    monkeypatch.setenv("LMSP_TOKEN", "secret")

    async def act(worker):
        return psutil.Process(worker.pid).environ()

    assert "LMSP_TOKEN" not in perform({}, act)


def test_cancel_reaches_the_engine(perform):
    async def act(worker):
        generation = worker.generate(PROMPT)
        seen = []
        async for output in generation:
            seen.append(output)
            if len(seen) == 5:
                generation.cancel()
        return seen

    seen = perform({"steps": [["repeat", 1000, "x", 0.01]]}, act)

    assert isinstance(seen[-1], Finished)
    assert seen[-1].reason == "cancelled"
    assert seen[-1].usage.output_tokens < 20
