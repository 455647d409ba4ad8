"""The whole service with the real starter model."""

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest
from streams import body, deltas, stream
from waiting import until

STARTER = "smollm2:135m"
LONG = "word " * 6000


@pytest.fixture
def models(starter):
    return starter.parent.parent


def ask(input="Name three fruits.", **more):
    return body(STARTER, input, **{"temperature": 0, "max_output_tokens": 40} | more)


def mode(path):
    return Path(path).stat().st_mode


def worker(app):
    return app.runner.hosts.get(STARTER).worker


@pytest.mark.ours
async def test_b0_6_streamed_or_not_the_text_is_the_same_at_temperature_0(client):
    events = await stream(client, ask())
    response = (await client.post("/responses", json=ask())).json()

    text = response["output"][0]["content"][0]["text"]
    assert response["status"] == "completed"
    assert len(text.split()) >= 3
    assert deltas(events) == text
    assert events[0][:2] == (1, "response.created")
    assert [id for id, _, _ in events] == list(range(1, len(events) + 1))
    assert [name for _, name, _ in events].count("response.completed") == 1
    assert events[-1][1] == "response.completed"


@pytest.mark.ours
async def test_b0_8_a_dropped_stream_stops_the_engine_at_its_next_batch(app, client):
    await client.post("/responses", json=ask())
    long = ask("Tell me a very long story.", max_output_tokens=4000)
    posted = asyncio.ensure_future(stream(client, long, leave_after=10))
    await until(lambda: app.runner.runs(STARTER))
    (run,) = app.runner.runs(STARTER)
    seen = deltas(await posted)

    await until(lambda: app.runner.active == 0)

    response = run.log.response
    assert response.status == "cancelled"
    assert response.output[0].status == "incomplete"
    assert response.text.startswith(seen)
    assert response.usage.output_tokens < 100


@pytest.mark.ours
async def test_b0_8_leaving_stops_the_processing_of_a_prompt(app, client):
    await client.post("/responses", json=ask())
    posted = asyncio.ensure_future(stream(client, ask(LONG), leave_after=4))
    await until(lambda: app.runner.runs(STARTER))
    (run,) = app.runner.runs(STARTER)
    await posted

    await until(lambda: app.runner.active == 0)

    progress = [events for events in run.log._entries if events.event == "response.progress"]
    assert run.log.response.status == "cancelled"
    assert len(progress) < 50  # of some 190 batches
    assert (await client.post("/responses", json=ask())).status_code == 200


@pytest.mark.ours
async def test_a_killed_worker_fails_the_stream_and_the_next_request_succeeds(app, client):
    await client.post("/responses", json=ask())
    killed = worker(app)
    posted = asyncio.ensure_future(stream(client, ask("Tell me a very long story.", max_output_tokens=4000)))
    await until(lambda: app.runner.runs(STARTER))
    (run,) = app.runner.runs(STARTER)
    await until(lambda: run.log.response.text)

    os.kill(killed.pid, signal.SIGKILL)
    *_, (_, name, data) = await posted

    assert (name, data["error"]["code"]) == ("response.failed", "engine_crashed")
    assert (await client.post("/responses", json=ask())).json()["status"] == "completed"
    assert worker(app).pid != killed.pid


@pytest.mark.chapter6
@pytest.mark.parametrize("streamed", [False, True])
async def test_a1_11_a_prompt_of_30_000_words_is_refused(client, streamed):
    answer = await client.post("/responses", json=ask("word " * 30_000, stream=streamed))

    assert (answer.status_code, answer.json()["code"]) == (400, "context_length_exceeded")


@pytest.mark.ours
async def test_b5_6_no_engine_listens_on_a_tcp_port(app, client):
    await client.post("/responses", json=ask())

    process = psutil.Process(worker(app).pid)

    assert process.net_connections("inet") == []
    assert len(process.net_connections("unix")) >= 1


@pytest.mark.ours
async def test_b5_6_the_engines_socket_is_its_owners_only(app, client):
    await client.post("/responses", json=ask())

    (socket,) = [each.laddr for each in psutil.Process(worker(app).pid).net_connections("unix") if each.laddr]

    assert mode(socket) & 0o077 == 0


async def test_requests_share_the_engine(client):
    await client.post("/responses", json=ask())
    prompts = ["Name three fruits.", "Is Lisbon in Portugal or in Spain?"]
    together = await asyncio.gather(*(stream(client, ask(prompt)) for prompt in prompts))

    assert all(events[-1][1] == "response.completed" for events in together)
    assert not any(name == "response.queued" for events in together for _, name, _ in events)
    assert all(len(deltas(events)) > 10 for events in together)


@pytest.mark.ours
async def test_n1_3_the_count_of_tokens_is_what_usage_says(client):
    counted = (await client.post("/responses/input_tokens", json=ask())).json()["input_tokens"]

    assert counted == (await client.post("/responses", json=ask())).json()["usage"]["input_tokens"]


@pytest.mark.ours
async def test_b2_4_seed_and_stop_reach_the_model(client):
    def seeded(seed, **more):
        extensions = {"lmsp_jupyter": {"seed": seed, **more}}
        return ask("Tell me a story.", temperature=1.5, max_output_tokens=8, extensions=extensions)

    texts = [
        (await client.post("/responses", json=seeded(seed))).json()["output"][0]["content"][0]["text"]
        for seed in (1, 1, 2)
    ]
    stop = ask("Count: 1, 2,", extensions={"lmsp_jupyter": {"stop": ["2"]}})
    stopped = (await client.post("/responses", json=stop)).json()

    assert texts[0] == texts[1] != texts[2]
    assert stopped["status"] == "completed"
    assert "2" not in stopped["output"][0]["content"][0]["text"]
