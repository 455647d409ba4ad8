"""The one WebSocket of a page, and approvals over HTTP and over it (B8, B9)."""

import asyncio
import json
import time

import pytest
from streams import body
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect
from waiting import until

from lmsp_jupyter import sse

pytestmark = [pytest.mark.ours, pytest.mark.usefixtures("script")]

UNKNOWN = "task_01J8M6Q4W2T7N5R3V9X1Z8B0DF"
QUESTION = {"tool": "add", "arguments": '{"a": 1}', "task_id": UNKNOWN}


class Page:
    """A page's end of the socket: its messages are objects, the server's are arrays of them."""

    def __init__(self, connection):
        self.connection = connection
        self._received = []

    async def send(self, **message):
        await self.connection.write_message(json.dumps(message))

    async def next(self):
        """The next message."""
        while not self._received:
            text = await self.connection.read_message()
            assert text is not None, "the socket was closed"
            self._received = json.loads(text)
            assert isinstance(self._received, list)
        return self._received.pop(0)

    async def to_end(self, task_id):
        """The events of a task, as (id, name, data)."""
        events = []
        while (message := await self.next()) != {"task_id": task_id, "ended": True}:
            assert set(message) == {"task_id", "id", "event", "data"}, message
            if message["task_id"] == task_id:
                events.append((message["id"], message["event"], message["data"]))
        return events

    async def list(self, name):
        """The next that is said about a list."""
        while (message := await self.next()).get("list") != name:
            pass
        assert set(message) == {"list", "changed", "gone"}, message
        return message


@pytest.fixture
def connect(client, jp_asyncio_loop):
    """Open a page's socket; by default with the server's token."""
    connections = []

    async def connect(**headers):
        if not headers:
            headers = {"Authorization": client.headers["Authorization"]}
        url = str(client.base_url).replace("http", "ws", 1) + "events"
        connections.append(await websocket_connect(HTTPRequest(url, headers=headers)))
        return Page(connections[-1])

    yield connect
    for connection in connections:
        connection.close()
    jp_asyncio_loop.run_until_complete(until(lambda: not readers()))


def readers():
    """The tasks that read for pages."""
    return [task for task in asyncio.all_tasks() if "Following._read" in repr(task.get_coro())]


async def create(client, model="hello", **more):
    """A new task."""
    answer = await client.post("/tasks", json={"type": "response", "request": body(model)} | more)
    assert answer.status_code == 202, answer.text
    return answer.json()


async def follow(client, task, **params):
    """The events of a task by its own route, to its end."""
    answer = await client.get(f"/tasks/{task['id']}/events", params=params)
    assert answer.status_code == 200, answer.text
    return [(int(m.id), m.event, json.loads(m.data)) for m in sse.Decoder().feed(answer.content)]


async def finish(client, **more):
    """A task that has ended."""
    task = await create(client, **more)
    await follow(client, task)
    return (await client.get(f"/tasks/{task['id']}")).json()


async def token(client, *scopes):
    """The headers of a token with these scopes."""
    minted = (await client.post("/tokens", json={"name": "t", "scopes": scopes})).json()
    return {"Authorization": f"Bearer {minted['token']}"}


@pytest.fixture
def long(script):
    """A model that goes on for long."""
    script("long", ["text", "Once"], ["sleep", 600])


# Events (B8.1)


async def test_b8_1_the_events_are_those_of_the_tasks_own_route(client, script, connect):
    script("slow", ["text", "a"], ["sleep", 0.2], ["text", "👩‍👧"])
    tasks, page = [await create(client, "slow") for _ in range(2)], await connect()

    for task in tasks:
        await page.send(follow=task["id"], after=0)
        assert await page.to_end(task["id"]) == await follow(client, task)  # live
        await page.send(follow=task["id"])
        assert await page.to_end(task["id"]) == await follow(client, task)  # replayed


async def test_b8_1_a_task_is_followed_from_a_position(client, connect):
    task, page = await finish(client), await connect()

    for after in (3, task["last_event_id"] - 1):
        await page.send(follow=task["id"], after=after)
        assert await page.to_end(task["id"]) == await follow(client, task, after=after)
    await page.send(follow=task["id"], after=task["last_event_id"])
    assert await page.to_end(task["id"]) == []


async def test_b8_1_unfollowing_ends_the_events_and_not_the_task(client, connect, long):
    task, other, page = await create(client, "long"), await finish(client), await connect()
    await page.send(follow=task["id"])
    assert (await page.next())["event"] == "response.created"

    await page.send(unfollow=task["id"])
    await page.send(unfollow=UNKNOWN)
    await page.send(follow=other["id"])
    await page.to_end(other["id"])
    await until(lambda: not readers())
    cancelled = (await client.post(f"/tasks/{task['id']}/cancel")).json()
    assert cancelled["status"] == "cancelled"
    await page.send(follow=other["id"], after=other["last_event_id"])
    assert await page.next() == {"task_id": other["id"], "ended": True}


async def test_b8_1_what_cannot_be_followed_is_told_and_harms_nothing_else(app, client, connect):
    dropped, page, journal = await finish(client), await connect(), app.runner.journal
    await journal.call(journal._store.sweep, dropped["events_expire_at"], event_retention=3600, task_retention=10**6)
    task = await finish(client)

    for id, after, status, code in (
        (UNKNOWN, 0, 404, "task_not_found"),
        (task["response_id"], 0, 404, "task_not_found"),
        (task["id"], task["last_event_id"] + 1, 400, "invalid_request"),
        (dropped["id"], 0, 410, "event_history_expired"),
    ):
        await page.send(follow=id, after=after)
        message = await page.next()
        assert message["task_id"] == id
        assert (message["error"]["status"], message["error"]["code"]) == (status, code)
    for text in (
        "{",
        "[]",
        '{"follow": 1}',
        '{"follow": "tasks", "from": 1}',
        '{"follow": "tasks", "after": -1}',
        "{}",
    ):
        await page.connection.write_message(text)
        assert (await page.next())["error"]["status"] == 400
    await page.send(follow=task["id"])
    assert await page.to_end(task["id"]) == await follow(client, task)


async def test_b8_1_a_page_that_vanishes_leaves_no_reader(app, client, connect, long):
    task, page = await create(client, "long"), await connect()
    for name in (task["id"], "tasks", "models", "approvals"):
        await page.send(follow=name)
    await until(lambda: len(readers()) == 4)

    page.connection.stream.close()

    await until(lambda: not readers())
    assert app.runner.active == 1
    assert (await client.get(f"/tasks/{task['id']}")).json()["status"] == "in_progress"
    await client.post(f"/tasks/{task['id']}/cancel")


# Lists (B8.1)


async def test_b8_1_tasks_come_whole_and_then_as_they_change(client, connect):
    old, page = await finish(client, metadata={"a": "b"}), await connect()
    await page.send(follow="tasks")

    whole = await page.list("tasks")
    assert whole["gone"] == []
    assert whole["changed"] == (await client.get("/tasks")).json()["data"]
    assert "response" not in whole["changed"][0]

    new = await create(client)
    states = []
    while states[-1:] != ["completed"]:
        (changed,) = (await page.list("tasks"))["changed"]
        assert changed["id"] == new["id"]
        states.append(changed["status"])

    await client.delete(f"/tasks/{old['id']}")
    assert await page.list("tasks") == {"list": "tasks", "changed": [], "gone": [old["id"]]}


async def test_b8_1_models_come_whole_and_then_as_they_change(client, script, connect, models):
    page = await connect()
    await page.send(follow="models")
    assert (await page.list("models"))["changed"] == (await client.get("/models")).json()["data"]

    await client.post("/models/hello/load")
    states = []
    while states[-1:] != ["loaded"]:
        states += [model["state"] for model in (await page.list("models"))["changed"]]
    script("new")
    assert [model["id"] for model in (await page.list("models"))["changed"]] == ["new"]
    (models / "new.script").unlink()
    assert await page.list("models") == {"list": "models", "changed": [], "gone": ["new"]}


async def test_b8_1_an_empty_list_is_told_too(connect):
    page = await connect()

    for name in ("tasks", "approvals"):
        await page.send(follow=name)
        assert await page.list(name) == {"list": name, "changed": [], "gone": []}


# Who may (B5.3, B8.1)


async def test_b5_3_scopes_are_asked_for_by_what_is_followed(client, connect):
    task = await finish(client)
    needed = {task["id"]: "tasks:read", "tasks": "tasks:read", "models": "models:read", "approvals": "responses:create"}

    for scope in set(needed.values()):
        page = await connect(**await token(client, scope))
        for name, own in needed.items():
            await page.send(follow=name)
            message = await page.next()
            if own != scope:
                assert message == {"task_id" if name == task["id"] else "list": name, "error": message["error"]}
                assert (message["error"]["code"], message["error"]["scope"]) == ("insufficient_scope", own)
            elif name == task["id"]:
                while not message.get("ended"):
                    message = await page.next()
            else:
                assert (message["list"], message["gone"]) == (name, [])
                await page.send(unfollow=name)


async def test_b8_1_nobody_connects_without_credentials(connect):
    for headers in ({"Accept": "*/*"}, {"Authorization": "Bearer lmsp_wrong"}):
        with pytest.raises(HTTPClientError) as refusal:
            await connect(**headers)
        assert refusal.value.code == 401
        assert json.loads(refusal.value.response.body)["code"] == "unauthorized"


async def test_b8_1_a_cookie_is_good_for_pages_of_the_same_origin_only(client, connect, jp_serverapp, jp_base_url):
    await client.get("")
    cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())

    page = await connect(Cookie=cookie, Origin=f"http://127.0.0.1:{jp_serverapp.port}")
    await page.send(follow="models")
    assert (await page.list("models"))["changed"]
    for origin in ("http://evil.example", f"http://127.0.0.1:{jp_serverapp.port + 1}", "null"):
        with pytest.raises(HTTPClientError) as refusal:
            await connect(Cookie=cookie, Origin=origin)
        assert refusal.value.code == 403


async def test_b8_1_what_is_no_websocket_is_told_so(client):
    answer = await client.get("/events")

    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


# Approvals (B9.1)


async def test_b9_1_a_kernel_asks_and_a_page_answers(client, connect):
    page = await connect()
    await page.send(follow="approvals")
    assert (await page.list("approvals"))["changed"] == []

    asked = await client.post("/approvals", json=QUESTION | {"expires_in": 60})
    approval = asked.json()
    waiting = asyncio.ensure_future(client.get(f"/approvals/{approval['id']}", params={"wait": 30}))

    assert asked.status_code == 201
    assert (approval["object"], approval["decision"]) == ("approval", None)
    assert {name: approval[name] for name in QUESTION} == QUESTION
    assert approval["expires_at"] == approval["created_at"] + 60
    assert (await page.list("approvals"))["changed"] == [approval]
    answer = await client.post(f"/approvals/{approval['id']}", json={"decision": "always"})
    assert answer.json() == (await waiting).json() == approval | {"decision": "always"}
    assert await page.list("approvals") == {"list": "approvals", "changed": [], "gone": [approval["id"]]}


async def test_b9_1_the_first_answer_wins(client):
    id = (await client.post("/approvals", json=QUESTION)).json()["id"]

    for decision in ("deny", "allow"):
        answer = await client.post(f"/approvals/{id}", json={"decision": decision})
        assert (answer.status_code, answer.json()["decision"]) == (200, "deny")
    assert (await client.get(f"/approvals/{id}")).json()["decision"] == "deny"


async def test_b9_1_a_wait_ends_without_an_answer(client):
    id = (await client.post("/approvals", json=QUESTION)).json()["id"]

    for wait in ({}, {"wait": 0}, {"wait": 1}):
        answer = await client.get(f"/approvals/{id}", params=wait)
        assert (answer.status_code, answer.json()["decision"]) == (200, None)


async def test_b9_1_an_expired_one_is_a_denial(client):
    id = (await client.post("/approvals", json=QUESTION | {"expires_in": 1})).json()["id"]

    waited = await client.get(f"/approvals/{id}", params={"wait": 30})

    assert waited.json()["decision"] == "deny"
    assert waited.json()["expires_at"] <= time.time()
    assert (await client.post(f"/approvals/{id}", json={"decision": "allow"})).json()["decision"] == "deny"


async def test_b9_1_what_is_no_approval_is_refused(client):
    id = (await client.post("/approvals", json=QUESTION)).json()["id"]

    for path, content, pointer in (
        ("/approvals", {"arguments": "{}"}, "/tool"),
        ("/approvals", QUESTION | {"arguments": {"a": 1}}, "/arguments"),
        ("/approvals", QUESTION | {"expires_in": 0}, "/expires_in"),
        ("/approvals", QUESTION | {"decision": "allow"}, "/decision"),
        (f"/approvals/{id}", {"decision": "maybe"}, "/decision"),
        (f"/approvals/{id}", {}, "/decision"),
    ):
        answer = await client.post(path, json=content)
        assert (answer.status_code, answer.json()["param"]) == (400, pointer)
    for wait in ("31", "-1", "x"):
        assert (await client.get(f"/approvals/{id}", params={"wait": wait})).status_code == 400
    for answer in (
        await client.get("/approvals/appr_unknown"),
        await client.post("/approvals/appr_unknown", json={"decision": "allow"}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_b9_1_a_kernel_that_stops_waiting_leaves_nothing_behind(client):
    id = (await client.post("/approvals", json=QUESTION)).json()["id"]
    waiting = asyncio.ensure_future(client.get(f"/approvals/{id}", params={"wait": 30}))

    def waits():
        return [task for task in asyncio.all_tasks() if "ApprovalHandler._wait" in repr(task.get_coro())]

    await until(waits)
    waiting.cancel()

    await until(lambda: not waits())
    assert (await client.post(f"/approvals/{id}", json={"decision": "allow"})).json()["decision"] == "allow"
