"""The models over HTTP (B1): found, described, loaded and unloaded."""

import asyncio
import os
import signal
from types import SimpleNamespace

import pytest
from streams import body
from waiting import until

pytestmark = [pytest.mark.ours, pytest.mark.usefixtures("script")]


def speaks(app, name):
    """Whether a response by this model has text."""
    return any(run.log.response.text for run in app.runner.runs(name))


async def states(client):
    """The states of all models, by id."""
    return {model["id"]: model["state"] for model in (await client.get("/models")).json()["data"]}


# B1.1, B1.5


async def test_b1_5_the_service_answers_and_describes_its_operations(client):
    assert (await client.get("/health")).json() == {"object": "health", "status": "ok"}

    document = (await client.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    assert document["servers"][0]["url"] == str(client.base_url).rstrip("/")
    assert (await client.head("/openapi.json")).status_code == 200


async def test_b1_1_what_the_service_tells_holds_no_path(client, models):
    for path in ("", "/models", "/models/hello"):
        assert str(models) not in (await client.get(path)).text


# B1.2, B1.4


async def test_b1_2_a_model_is_described(client, script, models):
    script("small", ["text", "a"], context_length=100, capabilities=["tools"])

    model = (await client.get("/models/small")).json()

    expected = {
        "id": "small",
        "object": "model",
        "engine": "scripted",
        "capabilities": ["tools", "conversations"],
        "context_length": 100,
        "size_bytes": (models / "small.script").stat().st_size,
        "quantization": None,
        "source": "lmsp",
        "state": "available",
        "error": None,
    }
    assert {name: model[name] for name in expected} == expected


async def test_b1_2_the_context_length_is_what_one_request_gets(client, script):
    script("large", context_length=1_000_000)

    assert (await client.get("/models/large")).json()["context_length"] == 8192


async def test_b1_2_an_unknown_model_names_the_closest_on_every_route(client):
    for answer in (
        await client.get("/models/helo"),
        await client.post("/models/helo/load"),
        await client.post("/models/helo/unload"),
        await client.post("/responses/input_tokens", json=body("helo")),
        await client.post("/tasks", json={"type": "response", "request": body("helo")}),
        await client.post("/chat/completions", json={"model": "helo", "messages": [{"role": "user", "content": "hi"}]}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "model_not_found")
        assert "did you mean 'hello'" in answer.json()["detail"]


async def test_b1_2_ids_with_a_slash_are_loaded_and_unloaded_raw_or_escaped(client, models):
    (models / "org" / "name").mkdir(parents=True)
    (models / "org" / "name" / "7b.script").write_text('{"steps": []}')

    for path in ("org/name:7b", "org%2Fname%3A7b"):
        loaded = (await client.post(f"/models/{path}/load")).json()
        unloaded = (await client.post(f"/models/{path}/unload")).json()
        assert (loaded["id"], loaded["state"]) == ("org/name:7b", "loaded")
        assert (unloaded["id"], unloaded["state"]) == ("org/name:7b", "available")


async def test_b1_4_a_model_that_cannot_be_read_shows_as_failed_and_stops_nothing(client, models):
    (models / "broken.script").write_text("{")
    (models / "notes.txt").write_text("no model")
    os.mkfifo(models / "pipe.script")

    assert await states(client) == {"broken": "failed", "hello": "available", "pipe": "failed"}

    broken = (await client.get("/models/broken")).json()
    assert (broken["error"]["code"], broken["error"]["status"]) == ("model_unavailable", 503)
    assert broken["capabilities"] == []
    for answer in (await client.post("/models/broken/load"), await client.post("/responses", json=body("broken"))):
        assert (answer.status_code, answer.json()["code"]) == (503, "model_unavailable")
        assert answer.json()["detail"] == broken["error"]["detail"]
    assert (await client.get("")).json()["default_model"] == "hello"


async def test_b1_2_a_model_that_appears_is_listed_at_once(client, script, models):
    assert set(await states(client)) == {"hello"}

    script("new")
    (models / "hello.script").unlink()

    assert set(await states(client)) == {"new"}


# Loading (B1.3)


async def test_b1_3_loading_waits_until_the_model_is_loaded(app, client, script):
    script("slow", ["text", "a"], load={"sleep": 0.3})
    loading = [asyncio.ensure_future(client.post("/models/slow/load")) for _ in range(2)]
    await until(lambda: app.runner.hosts.get("slow"))

    assert (await client.get("/models/slow")).json()["state"] == "loading"
    answers = [await each for each in loading]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert [answer.json()["state"] for answer in answers] == ["loaded", "loaded"]
    pid = app.runner.hosts.get("slow").worker.pid
    await client.post("/models/slow/load")
    await client.post("/responses", json=body("slow"))
    assert app.runner.hosts.get("slow").worker.pid == pid


async def test_b1_3_who_leaves_does_not_stop_the_loading(app, client, script):
    script("slow", ["text", "a"], load={"sleep": 0.3})
    loading = asyncio.ensure_future(client.post("/models/slow/load"))
    await until(lambda: app.runner.hosts.get("slow"))

    loading.cancel()

    await until(lambda: app.runner.hosts.get("slow").worker)
    assert await states(client) == {"hello": "available", "slow": "loaded"}


async def test_b1_3_a_load_that_fails_tells_why_and_can_be_tried_again(client, script):
    script("wont", ["text", "a"], load={"error": "no such tensor"})

    refused = await client.post("/models/wont/load")

    assert (refused.status_code, refused.json()["code"]) == (503, "model_unavailable")
    assert "no such tensor" in refused.json()["detail"]
    assert (await states(client))["wont"] == "failed"
    assert (await client.post("/models/wont/unload")).json()["state"] == "available"
    script("wont", ["text", "a"])
    assert (await client.post("/models/wont/load")).json()["state"] == "loaded"


async def test_b1_3_a_process_that_dies_leaves_its_model_available(app, client):
    await client.post("/models/hello/load")
    worker = app.runner.hosts.get("hello").worker

    os.kill(worker.pid, signal.SIGKILL)

    await until(lambda: not worker.alive)
    assert await states(client) == {"hello": "available"}
    assert (await client.post("/models/hello/load")).json()["state"] == "loaded"


# Unloading (B1.3)


async def test_b1_3_a_model_that_is_not_loaded_can_be_unloaded(client):
    answer = await client.post("/models/hello/unload")

    assert (answer.status_code, answer.json()["state"]) == (200, "available")


async def test_b1_3_unloading_ends_the_process(app, client):
    await client.post("/models/hello/load")
    worker = app.runner.hosts.get("hello").worker

    answer = await client.post("/models/hello/unload")

    assert (answer.status_code, answer.json()["state"]) == (200, "available")
    assert not worker.alive
    assert (await client.post("/responses", json=body())).json()["status"] == "completed"


async def test_b1_3_a_model_in_use_is_not_unloaded(app, client, script):
    script("long", ["text", "a"], ["sleep", 600])
    script("slow", ["text", "a"], load={"sleep": 0.3})
    busy = [
        asyncio.ensure_future(client.post("/responses", json=body("long"))),
        asyncio.ensure_future(client.post("/models/slow/load")),
    ]
    await until(
        lambda: app.runner.hosts.get("slow") and [run.log.response.text for run in app.runner.runs("long")] == ["a"]
    )

    for name in ("long", "slow"):
        answer = await client.post(f"/models/{name}/unload")
        assert (answer.status_code, answer.json()["code"]) == (409, "model_busy")

    (run,) = app.runner.runs("long")
    await client.post(f"/responses/{run.id}/cancel")
    assert (await busy[0]).json()["status"] == "cancelled"
    assert (await busy[1]).json()["state"] == "loaded"
    await until(lambda: app.runner.active == 0)
    assert (await client.post("/models/long/unload")).json()["state"] == "available"


@pytest.fixture
def clock(monkeypatch):
    """The time by which models are idle, in seconds."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("lmsp_jupyter.hosts.time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


async def test_b1_3_a_model_that_is_idle_for_long_is_unloaded(app, client, script, clock):
    script("long", ["text", "a"], ["sleep", 600])
    long = asyncio.ensure_future(client.post("/responses", json=body("long")))
    await client.post("/responses", json=body())
    await until(lambda: speaks(app, "long"))

    clock.now = 1799
    await app.runner.hosts.unload_idle()
    assert await states(client) == {"hello": "loaded", "long": "loaded"}

    clock.now = 1800
    await app.runner.hosts.unload_idle()
    assert await states(client) == {"hello": "available", "long": "loaded"}  # a request is no idleness
    long.cancel()
    await until(lambda: app.runner.active == 0)


class TestLittleMemory:
    """A server with memory for two models of 100 bytes."""

    @pytest.fixture
    def jp_server_config(self, jp_server_config):
        jp_server_config["LMSPApp"]["models_memory"] = 250
        return jp_server_config

    @pytest.fixture
    def hundred(self, models):
        """Add a model of 100 bytes."""

        (models / "hello.script").unlink()

        def hundred(name, steps='["text", "a"]', load="{}"):
            (models / f"{name}.script").write_text(f'{{"steps": [{steps}], "load": {load}}}'.ljust(100))

        return hundred

    async def test_b1_3_the_least_recently_used_goes_first(self, client, hundred, clock):
        for name in "abc":
            hundred(name)
        for clock.now, name in enumerate("aba"):
            await client.post("/responses", json=body(name))

        await client.post("/responses", json=body("c"))

        assert await states(client) == {"a": "loaded", "b": "available", "c": "loaded"}

    async def test_b1_3_a_model_never_goes_under_a_request(self, app, client, hundred, clock):
        hundred("a", '["text", "a"], ["sleep", 600]')
        hundred("b")
        hundred("c")
        long = asyncio.ensure_future(client.post("/responses", json=body("a")))
        await until(lambda: speaks(app, "a"))
        for clock.now, name in enumerate("bc", 1):
            await client.post("/responses", json=body(name))

        assert await states(client) == {"a": "loaded", "b": "available", "c": "loaded"}
        (run,) = app.runner.runs("a")
        await run.cancel()
        assert (await long).json()["status"] == "cancelled"

    async def test_b1_3_models_that_are_loaded_at_once_do_not_take_the_same_room(self, client, hundred):
        hundred("a")
        for name in "bc":
            hundred(name, load='{"sleep": 0.3}')
        await client.post("/models/a/load")

        await asyncio.gather(*(client.post(f"/models/{name}/load") for name in "bc"))

        assert await states(client) == {"a": "available", "b": "loaded", "c": "loaded"}
