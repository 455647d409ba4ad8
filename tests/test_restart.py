"""What outlives a server that is killed (B2.5, B3.6), and two servers that share a data folder (B3.7): servers in
processes of their own, with scripted models."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from streams import body, create, events_in, finished, follow, frames, names_in
from waiting import until

from lmsp_jupyter.events import Created, Entry, encode
from lmsp_jupyter.protocol import Response, new_id
from lmsp_jupyter.store import Record, Store

pytestmark = pytest.mark.ours

ENDLESS = [["reasoning", "Hm."], ["repeat", 100_000, "ä ", 0.01]]


def write(models, name, *steps):
    (models / f"{name}.script").write_text(json.dumps({"steps": steps}))


class Server:
    """A server in a process of its own, on the data in `home`, that makes one response of a model at a time."""

    def __init__(self, home, models):
        settings = {"models_folder": models, "data_folder": home / "lmsp", "parallel": 1}
        options = [f"--LMSPApp.{name}={value}" for name, value in settings.items()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lmsp_jupyter.cli", "serve", *options],
            env=os.environ | {"JUPYTER_RUNTIME_DIR": str(home), "JUPYTER_DATA_DIR": str(home)},
            stderr=subprocess.DEVNULL,
        )
        record = home / f"jpserver-{self._process.pid}.json"
        while not record.exists() or not record.read_text().endswith("}"):
            assert self._process.poll() is None
            time.sleep(0.02)
        found = json.loads(record.read_text())
        self.http = httpx.Client(
            base_url=f"{found['url']}lmsp/v1", headers={"Authorization": f"Bearer {found['token']}"}, timeout=60
        )

    def post(self, path, request, key=None):
        return self.http.post(path, json=request, headers={"Idempotency-Key": key} if key else {})

    def create(self, request, key=None, **more):
        return self.post("/tasks", {"type": "response", "request": request, **more}, key).json()

    def task(self, task):
        return self.http.get(f"/tasks/{task['id']}").json()

    def follow(self, task, **query):
        return frames(self.http.get(f"/tasks/{task['id']}/events", params=query).content)

    def kill(self):
        """With SIGKILL: it says and writes nothing any more."""
        self._process.kill()
        self._process.wait()
        self.http.close()


class Reader(threading.Thread):
    """Reads a stream until it breaks off."""

    def __init__(self, server, method, path, **options):
        super().__init__()
        self.sent = b""
        self._request = server.http.build_request(method, path, **options)
        self._server = server
        self.start()

    def run(self):
        try:
            answer = self._server.http.send(self._request, stream=True)
            for chunk in answer.iter_raw():
                self.sent += chunk
        except httpx.TransportError:
            return

    def wait_for(self, count):
        while len(frames(self.sent)) < count:
            time.sleep(0.01)


# Killed and started again


@pytest.fixture(scope="module")
def restarted(tmp_path_factory):
    """What a server that was killed had said, and the server that came after it."""
    home, models = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("models")
    for name in ("speaks", "talks"):
        write(models, name, *ENDLESS)
    write(models, "hello", ["text", "Hello"], ["text", " wörld"])
    first, was = Server(home, models), SimpleNamespace()

    was.answer = first.post("/responses", body(), "answer").content
    was.stream = first.post("/responses", body(stream=True), "stream").content
    was.task = first.create(body(), "task")
    was.events = first.follow(was.task)
    was.stored = first.post("/responses", body(store=True)).json()

    was.running = first.create(body("speaks"), "running", metadata={"kind": "test"})
    was.queued = [first.create(body("speaks", f"turn {n}"), f"queued{n}") for n in range(2)]
    request = body("talks", stream=True, store=True)
    readers = [
        Reader(first, "GET", f"/tasks/{was.running['id']}/events"),
        Reader(first, "POST", "/responses", json=request, headers={"Idempotency-Key": "direct"}),
    ]
    for reader in readers:
        reader.wait_for(25)
    first.kill()
    for reader in readers:
        reader.join()
    was.followed, was.direct = [frames(reader.sent) for reader in readers]
    for name in ("speaks", "talks"):
        write(models, name, ["echo"])

    second = Server(home, models)
    yield was, second
    second.kill()


def test_b3_6_nothing_that_was_sent_is_lost(restarted):
    was, server = restarted

    now = server.follow(was.running)

    assert len(was.followed) >= 25
    assert now[: len(was.followed)] == was.followed
    assert [id for id, _, _ in events_in(now)] == list(range(1, len(now) + 1))
    assert server.follow(was.running, after=len(was.followed)) == now[len(was.followed) :]
    assert server.follow(was.task) == was.events
    assert server.http.get(f"/responses/{was.stored['id']}").json() == was.stored


def test_b3_6_what_ran_has_failed_and_its_final_event_is_numbered_next(restarted):
    was, server = restarted

    events = events_in(server.follow(was.running))
    task = server.task(was.running)

    *_, (_, closing, done), (last, name, data) = events
    assert (closing, name) == ("response.output_item.done", "response.failed")
    assert (task["status"], task["last_event_id"]) == ("failed", last)
    assert task["error"] == data["error"] == data["response"]["error"]
    assert (task["error"]["code"], task["error"]["status"]) == ("service_restarted", 503)
    assert task["response"] == data["response"]
    reasoning, message = task["response"]["output"]
    assert (reasoning["status"], message["status"]) == ("completed", "incomplete")
    assert message == done["item"]
    text = "".join(data["delta"] for _, name, data in events if name == "response.output_text.delta")
    assert message["content"][0]["text"] == text != ""
    assert (task["metadata"], task["created_at"]) == ({"kind": "test"}, was.running["created_at"])


def test_b3_6_a_direct_stored_stream_has_failed_too(restarted):
    was, server = restarted
    id = events_in(was.direct)[0][2]["response_id"]

    response = server.http.get(f"/responses/{id}").json()

    assert (response["status"], response["error"]["code"]) == ("failed", "service_restarted")
    sent = "".join(data["delta"] for _, name, data in events_in(was.direct) if name == "response.output_text.delta")
    assert response["output"][-1]["content"][0]["text"].startswith(sent)


def test_b3_6_queued_tasks_are_queued_again_in_their_order(restarted):
    was, server = restarted

    logs = [server.follow(task) for task in was.queued]

    for number, (task, log) in enumerate(zip(was.queued, logs, strict=True)):
        now = server.task(task)
        assert (now["status"], now["id"]) == ("completed", task["id"])
        assert now["response"]["output"][0]["content"][0]["text"] == f"turn {number} "
        assert [id for id, _, _ in events_in(log)] == list(range(1, len(log) + 1))
        assert names_in(log).count("response.created") == 1
        assert names_in(log)[-1] == "response.completed"
    places = [[data["position"] for _, name, data in events_in(log) if name == "response.queued"] for log in logs]
    assert places in ([[1], [2, 1]], [[1], [2]])


def test_b2_5_answers_are_told_again_by_the_next_server(restarted):
    was, server = restarted

    answer = server.post("/responses", body(), "answer")
    streamed = server.post("/responses", body(stream=True), "stream")
    task = server.post("/tasks", {"type": "response", "request": body()}, "task")

    for again in (answer, streamed, task):
        assert again.headers["Idempotency-Replayed"] == "true"
    assert answer.content == was.answer
    assert streamed.content == was.stream
    assert (task.status_code, task.json()) == (202, was.task)
    assert task.headers["Location"].endswith(f"/lmsp/v1/tasks/{was.task['id']}")
    assert server.post("/responses", body(input="ho"), "answer").json()["code"] == "idempotency_key_reused"


def test_b2_5_keys_of_tasks_that_are_queued_again_are_kept(restarted):
    was, server = restarted

    again = server.post("/tasks", {"type": "response", "request": body("speaks", "turn 1")}, "queued1")

    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.json() == was.queued[1]


def test_b2_5_a_dead_server_releases_its_keys(restarted):
    was, server = restarted
    server.follow(was.running)  # to its end

    direct = server.post("/responses", body("talks", stream=True, store=True), "direct")
    task = server.post("/tasks", {"type": "response", "request": body("speaks")}, "running")

    assert direct.status_code == 200
    assert names_in(frames(direct.content))[-1] == "response.completed"
    assert task.status_code == 202
    assert task.json()["id"] != was.running["id"]
    for answer in (direct, task):
        assert "Idempotency-Replayed" not in answer.headers


# Two at once


class TestTwoServers:
    """This process and another on one data folder."""

    @pytest.fixture
    def home(self, tmp_path):
        folder = tmp_path / "home"
        folder.mkdir()
        return folder

    @pytest.fixture
    def jp_server_config(self, jp_server_config, home):
        jp_server_config["LMSPApp"]["data_folder"] = str(home / "lmsp")
        return jp_server_config

    @pytest.fixture
    def ours(self, app, jp_asyncio_loop, monkeypatch):
        """The server in this process, which looks often after what others left."""
        monkeypatch.setattr("lmsp_jupyter.runner.TENDING", 0.5)

        async def open():
            app.runner.open()

        jp_asyncio_loop.run_until_complete(open())
        return app.runner

    @pytest.fixture
    def other(self, home, models, script):
        write(models, "endless", *ENDLESS)
        server = Server(home, models)
        yield server
        server.kill()

    async def test_b3_7_each_follows_and_cancels_what_the_other_makes(self, ours, client, other):
        of_other, of_ours = other.create(body("endless")), await create(client, body("endless"))
        live = Reader(other, "GET", f"/tasks/{of_other['id']}/events")

        await until(lambda: len(frames(live.sent)) >= 10)
        polled = asyncio.ensure_future(follow(client, of_other))
        assert len(await follow(client, of_other, leave_after=10, params={"after": 5})) == 10
        await until(lambda: (run := ours._runs.get(of_ours["response_id"])) and run.log.response.text)
        assert (await client.get(f"/tasks/{of_other['id']}")).json()["status"] == "in_progress"
        assert {task["id"] for task in (await client.get("/tasks")).json()["data"]} == {of_other["id"], of_ours["id"]}
        assert (await client.delete(f"/tasks/{of_other['id']}")).json()["code"] == "task_not_finished"

        cancelled = (await client.post(f"/tasks/{of_other['id']}/cancel")).json()
        other_cancels = await asyncio.to_thread(other.post, f"/tasks/{of_ours['id']}/cancel", {})

        assert cancelled["status"] == other_cancels.json()["status"] == "cancelled"
        await asyncio.to_thread(live.join)
        assert await polled == frames(live.sent) == await follow(client, of_other)
        assert names_in(await polled)[-2:] == ["response.output_item.done", "response.cancelled"]
        assert await follow(client, of_ours) == await asyncio.to_thread(other.follow, of_ours)
        assert other.task(of_other) == cancelled
        await until(lambda: ours.active == 0)

    async def test_b3_7_only_what_is_dead_is_recovered(self, ours, client, other):
        mine = await create(client, body("endless"))
        running, queued = [other.create(body("endless"), f"key{n}") for n in range(2)]
        reader = Reader(other, "GET", f"/tasks/{running['id']}/events")
        await until(lambda: len(frames(reader.sent)) >= 10)
        follower = asyncio.ensure_future(follow(client, running))
        same = await client.post("/responses", json=body(), headers={"Idempotency-Key": "shared"})
        assert other.post("/responses", body(), "shared").content == same.content

        await ours.journal.recover()
        for task, status in ((running, "in_progress"), (queued, "queued"), (mine, "in_progress")):
            assert (await client.get(f"/tasks/{task['id']}")).json()["status"] == status
        other.kill()
        reader.join()

        failed = await finished(client, running)
        assert (failed["status"], failed["error"]["code"]) == ("failed", "service_restarted")
        followed = await follower
        assert followed[: len(frames(reader.sent))] == frames(reader.sent)
        assert followed == await follow(client, running)
        await until(lambda: (run := ours._runs.get(queued["response_id"])) and run.log.response.text)
        for task in (queued, mine):
            assert (await client.post(f"/tasks/{task['id']}/cancel")).json()["status"] == "cancelled"
        assert names_in(await follow(client, mine))[-1] == "response.cancelled"

    async def test_b3_6_a_task_that_cannot_be_read_any_more_fails_alone(self, ours, client, app, script):
        left = Store(Path(app.data_folder))
        response = Response(id=new_id("resp"), model="hello")
        created = Created(response_id=response.id, response=response, sequence_number=1)
        entries = [Entry(1, created.name, encode(created))]
        strange = {"owner": "", "model": "hello", "status": "queued", "created_at": 1, "stored": False, "metadata": {}}
        record = Record(id=response.id, task_id=new_id("task"), request=b'{"new": 1}', response=b"{}", **strange)
        left.create(record, entries)
        left.close()

        failed = await finished(client, {"id": record.task_id})

        assert (failed["status"], failed["error"]["code"]) == ("failed", "internal_error")
        assert (await finished(client, await create(client, body())))["status"] == "completed"
