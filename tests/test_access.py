"""Who may do what over HTTP: tokens, scopes and identities (B5)."""

import asyncio
import json
import os
import time
from http.cookiejar import DefaultCookiePolicy

import httpx
import pytest
from jupyter_server.auth import Authorizer, IdentityProvider, User
from streams import body
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect
from waiting import until

from lmsp_jupyter import sse
from lmsp_jupyter.auth import ALL_SCOPES
from lmsp_jupyter.operations import OPERATIONS

pytestmark = [pytest.mark.ours, pytest.mark.usefixtures("script")]

ROUTES = [operation for operation in OPERATIONS if operation.scope]


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def refused(answer, status, code):
    """Assert that an answer is a problem of this kind."""
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    return answer.json()


def path_of(operation):
    """The operation's path, with the id of nothing in it."""
    return operation.path.replace("{", "no_").replace("}", "")


async def ask(client, operation, headers):
    """Call an operation with a body that says nothing."""
    json = {} if operation.method == "POST" else None
    return await client.request(operation.method, path_of(operation), json=json, headers=headers)


async def mint(client, *scopes, headers=None, **more):
    """A token of these scopes."""
    answer = await client.post("/tokens", json={"name": "t", "scopes": list(scopes)} | more, headers=headers)
    assert answer.status_code == 201, answer.text
    return answer.json()


@pytest.fixture
def client(client):
    """A client that keeps no cookie: a request has the credentials that it shows."""
    client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    return client


# Scopes (B5.3, B5.4)


async def test_b5_3_one_scope_opens_an_operation(client):
    for scope in ALL_SCOPES:
        token = await mint(client, scope)
        for operation in ROUTES:
            answer = await ask(client, operation, bearer(token["token"]))
            if operation.scope == scope:
                assert answer.status_code not in (401, 403), operation
            else:
                assert refused(answer, 403, "insufficient_scope")["scope"] == operation.scope


async def test_b5_3_all_other_scopes_do_not(client):
    for scope in ALL_SCOPES:
        token = await mint(client, *(ALL_SCOPES - {scope}))
        for operation in ROUTES:
            answer = await ask(client, operation, bearer(token["token"]))
            if operation.scope != scope:
                assert answer.status_code not in (401, 403), operation
                continue
            problem = refused(answer, 403, "insufficient_scope")
            assert problem["scope"] == scope
            assert scope in problem["detail"]
            assert answer.headers["WWW-Authenticate"] == f'Bearer error="insufficient_scope", scope="{scope}"'


async def test_b5_3_head_needs_the_scope_of_get(client):
    headers = bearer((await mint(client, "tasks:create"))["token"])

    assert (await client.head("/models", headers=headers)).status_code == 403
    assert (
        await client.head("/models", headers=bearer((await mint(client, "models:read"))["token"]))
    ).status_code == 200


async def test_b5_4_nobody_gets_in_without_credentials(client):
    client.headers.pop("Authorization")
    for operation in OPERATIONS:
        for headers, challenge in (({}, "Bearer"), (bearer("lmsp_wrong"), 'Bearer error="invalid_token"')):
            answer = await ask(client, operation, headers)
            refused(answer, 401, "unauthorized")
            assert answer.headers["WWW-Authenticate"] == challenge
            assert "Access-Control-Allow-Origin" not in answer.headers


async def test_b5_3_jupyters_own_user_has_all_scopes(client):
    for operation in ROUTES:
        assert (await ask(client, operation, {})).status_code not in (401, 403), operation


# Tokens (B5.2)


async def test_b5_2_a_token_is_told_once_and_listed_without_its_secret(client):
    token = await mint(client, "models:read", "tasks:read", name="laptop", expires_in=60)

    assert token["id"].startswith("tok_")
    assert (token["name"], token["scopes"]) == ("laptop", ["models:read", "tasks:read"])
    assert token["expires_at"] == token["created_at"] + 60
    listed = (await client.get("/tokens")).json()
    secret = token.pop("token")
    assert listed == {"object": "list", "data": [token]}
    assert (await client.get("/models", headers=bearer(secret))).status_code == 200
    assert (await mint(client, "models:read"))["expires_at"] is None


async def test_b5_2_a_token_that_is_revoked_is_void_at_once(client):
    token = await mint(client, "models:read")

    assert (await client.delete(f"/tokens/{token['id']}")).status_code == 204

    refused(await client.get("/models", headers=bearer(token["token"])), 401, "unauthorized")


async def test_b5_4_a_void_token_is_not_saved_by_a_cookie(app, jp_serverapp, jp_base_url, jp_auth_header):
    base_url = f"http://127.0.0.1:{jp_serverapp.port}{jp_base_url}lmsp/v1"
    async with httpx.AsyncClient(base_url=base_url) as browser:
        assert (await browser.get("", headers=jp_auth_header)).status_code == 200  # logs the browser in
        assert (await browser.get("")).status_code == 200

        refused(await browser.get("", headers=bearer("lmsp_void")), 401, "unauthorized")


async def test_b5_2_an_unknown_token_cannot_be_revoked(client):
    token = await mint(client, "models:read")
    await client.delete(f"/tokens/{token['id']}")

    for id in ("tok_unknown", token["id"], token["token"]):
        refused(await client.delete(f"/tokens/{id}"), 404, "not_found")


async def test_b5_2_a_token_that_has_expired_is_void(app, client, monkeypatch):
    token = await mint(client, "models:read", expires_in=60)
    assert (await client.get("/models", headers=bearer(token["token"]))).status_code == 200

    monkeypatch.setattr(app.tokens, "_clock", lambda: time.time() + 60)

    refused(await client.get("/models", headers=bearer(token["token"])), 401, "unauthorized")


async def test_b5_2_a_token_mints_at_most_its_own_scopes(client):
    parent = bearer((await mint(client, "tokens:manage", "models:read", expires_in=60))["token"])

    child = await mint(client, "models:read", headers=parent)
    answer = await client.post("/tokens", json={"name": "t", "scopes": ["tasks:read"]}, headers=parent)

    assert child["expires_at"] <= time.time() + 60
    assert refused(answer, 403, "insufficient_scope")["scope"] == "tasks:read"


async def test_b5_2_what_cannot_be_minted(client):
    for request, pointer in (
        ({"name": "t", "scopes": ["tools:execute"]}, "/scopes/0"),
        ({"name": "t", "scopes": ["models:read", "models:eat"]}, "/scopes/1"),
        ({"name": "t", "scopes": []}, "/scopes"),
        ({"name": "t"}, "/scopes"),
        ({"name": "", "scopes": ["models:read"]}, "/name"),
        ({"scopes": ["models:read"]}, "/name"),
        ({"name": "t", "scopes": ["models:read"], "expires_in": 0}, "/expires_in"),
        ({"name": "t", "scopes": ["models:read"], "owner": "ann"}, "/owner"),
    ):
        answer = await client.post("/tokens", json=request)
        assert (answer.status_code, answer.json()["param"]) == (400, pointer)
    assert (await client.get("/tokens")).json()["data"] == []


async def test_b5_7_a_kernels_token_does_all_but_manage_tokens(app, client, jp_serverapp, monkeypatch):
    monkeypatch.setenv("LMSP_BASE_URL", "")
    monkeypatch.setenv("LMSP_TOKEN", "")
    await app._start_jupyter_server_extension(jp_serverapp)
    kernel = bearer(os.environ["LMSP_TOKEN"])

    assert httpx.URL(os.environ["LMSP_BASE_URL"]).path == client.base_url.path.rstrip("/")
    for operation in ROUTES:
        answer = await ask(client, operation, kernel)
        if operation.scope == "tokens:manage":
            refused(answer, 403, "insufficient_scope")
        else:
            assert answer.status_code not in (401, 403), operation


# Open streams (B5.2)


@pytest.fixture
def long(script):
    """A model that goes on for long."""
    script("long", ["text", "Once"], ["sleep", 600])


async def read(client, method, path, token, **more):
    """The names of the events of a stream that is broken off."""
    decoder, names = sse.Decoder(), []
    async with client.stream(method, path, headers=bearer(token), **more) as answer:
        assert answer.status_code == 200
        try:
            async for chunk in answer.aiter_bytes():
                names += [message.event for message in decoder.feed(chunk)]
        except httpx.RemoteProtocolError:
            return names
    raise AssertionError("the stream came to its end")


async def test_b5_2_revoking_ends_open_streams(app, client, long, jp_http_port, jp_base_url):
    token = await mint(client, "responses:create", "responses:read", "tasks:create", "tasks:read")
    headers = bearer(token["token"])
    task = (await client.post("/tasks", json={"type": "response", "request": body("long", store=True)})).json()
    url = f"ws://127.0.0.1:{jp_http_port}{jp_base_url}lmsp/v1/events"
    socket = await websocket_connect(HTTPRequest(url, headers=headers))
    await socket.write_message(json.dumps({"follow": task["id"]}))
    await socket.read_message()
    reading = [
        asyncio.ensure_future(each)
        for each in (
            read(client, "GET", f"/tasks/{task['id']}/events", token["token"]),
            read(client, "GET", f"/responses/{task['response_id']}?stream=true", token["token"]),
            read(client, "POST", "/responses", token["token"], json=body("long", stream=True)),
        )
    ]
    await until(lambda: [run.log.response.text for run in app.runner.runs("long")] == ["Once"] * 2)
    chat = {"model": "long", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    waiting = asyncio.ensure_future(client.post("/responses", json=body("long"), headers=headers))
    reading.append(asyncio.ensure_future(read(client, "POST", "/chat/completions", token["token"], json=chat)))
    await until(lambda: app.runner.active == 4)

    assert (await client.delete(f"/tokens/{token['id']}")).status_code == 204

    for names in await asyncio.gather(*reading):
        assert not [name for name in names if name in ("response.completed", "response.cancelled", "error")]
    refused(await waiting, 401, "unauthorized")
    while await socket.read_message() is not None:
        pass
    socket.close()
    # What belonged to the connections is cancelled, the task goes on.
    await until(lambda: app.runner.active == 1)
    assert (await client.get(f"/tasks/{task['id']}")).json()["status"] == "in_progress"
    await client.post(f"/tasks/{task['id']}/cancel")


async def test_b5_2_expiry_ends_open_streams(app, client, long, monkeypatch):
    token = await mint(client, "responses:create", expires_in=60)
    monkeypatch.setattr(app.tokens, "_poll", 0.05)
    reading = asyncio.ensure_future(read(client, "POST", "/responses", token["token"], json=body("long", stream=True)))
    await until(lambda: [run.log.response.text for run in app.runner.runs("long")] == ["Once"])

    monkeypatch.setattr(app.tokens, "_clock", lambda: time.time() + 60)

    assert "response.cancelled" not in await reading
    await until(lambda: app.runner.active == 0)


async def test_b5_2_revoking_another_token_ends_nothing(app, client, script):
    script("slow", ["text", "a"], ["sleep", 0.3], ["text", "b"])
    one, other = await mint(client, "responses:create"), await mint(client, "responses:create")
    posted = asyncio.ensure_future(client.post("/responses", json=body("slow"), headers=bearer(one["token"])))
    await until(lambda: any(run.log.response.text for run in app.runner.runs("slow")))

    await client.delete(f"/tokens/{other['id']}")

    assert (await posted).json()["status"] == "completed"


# Identities (B5.5)


class Names(IdentityProvider):
    """Users say who they are; who does not may come with the server's token."""

    def get_user(self, handler):
        name = handler.request.headers.get("X-User")
        return User(name) if name else super().get_user(handler)


class OneMayExecute(Authorizer):
    """Ann executes kernels, others do not."""

    def is_authorized(self, handler, user, action, resource):
        return (action, resource) != ("execute", "kernels") or user.username == "ann"


class BobOnlyReads(Authorizer):
    """Bob reads what is under `/lmsp/`, and writes nothing."""

    def is_authorized(self, handler, user, action, resource):
        return user.username != "bob" or (resource == "lmsp" and action == "read")


class As:
    """A client that sends these headers."""

    def __init__(self, client, headers):
        self.client, self.headers = client, headers

    async def get(self, path, **more):
        return await self.request("GET", path, **more)

    async def post(self, path, **more):
        return await self.request("POST", path, **more)

    async def delete(self, path, **more):
        return await self.request("DELETE", path, **more)

    async def request(self, method, path, headers=None, **more):
        return await self.client.request(method, path, headers=self.headers | (headers or {}), **more)


@pytest.fixture
def users(client):
    """Clients of ann, bob, cid, and of who has the server's token."""
    token = {"Authorization": client.headers.pop("Authorization")}
    return {"server": As(client, token)} | {name: As(client, {"X-User": name}) for name in ("ann", "bob", "cid")}


def with_names(config, authorizer):
    """The configuration of a server whose users have names, and come without cookies."""
    config["ServerApp"] |= {
        "identity_provider_class": Names,
        "authorizer_class": authorizer,
        "disable_check_xsrf": True,
    }
    return config


class TestNamedUsers:
    """A server whose provider names its users."""

    @pytest.fixture
    def jp_server_config(self, jp_server_config):
        return with_names(jp_server_config, OneMayExecute)

    async def test_b5_5_what_is_anothers_does_not_exist(self, users, long):
        bob, cid = users["bob"], users["cid"]
        token = (await bob.post("/tokens", json={"name": "t", "scopes": sorted(ALL_SCOPES)})).json()
        response = (await bob.post("/responses", json=body(store=True))).json()
        running = (await bob.post("/responses", json=body("long", store=True, background=True))).json()
        task = (await bob.post("/tasks", json={"type": "response", "request": body(store=True)})).json()
        approval = (await bob.post("/approvals", json={"tool": "f", "arguments": "{}"})).json()

        for other in (cid, users["server"]):
            for id, code in (
                (f"/responses/{response['id']}", "response_not_found"),
                (f"/responses/{running['id']}?stream=true", "response_not_found"),
                (f"/responses/{response['id']}/input_items", "response_not_found"),
                (f"/tasks/{task['id']}", "task_not_found"),
                (f"/tasks/{task['id']}/events", "task_not_found"),
                (f"/approvals/{approval['id']}", "not_found"),
            ):
                refused(await other.get(id), 404, code)
            for id, code in (
                (f"/responses/{running['id']}", "response_not_found"),
                (f"/tasks/{task['id']}", "task_not_found"),
                (f"/tokens/{token['id']}", "not_found"),
            ):
                refused(await other.delete(id), 404, code)
            for id, content, code in (
                (f"/responses/{running['id']}/cancel", None, "response_not_found"),
                (f"/tasks/{running['task_id']}/cancel", None, "task_not_found"),
                (f"/approvals/{approval['id']}", {"decision": "allow"}, "not_found"),
                ("/responses", body(previous_response_id=response["id"]), "response_not_found"),
            ):
                refused(await other.post(id, json=content), 404, code)
            assert (await other.get("/tasks")).json()["data"] == []
            assert (await other.get("/tokens")).json()["data"] == []
        assert {each["id"] for each in (await bob.get("/tasks")).json()["data"]} == {task["id"], running["task_id"]}
        # An LMSP token acts for who minted it.
        by_token = {"X-User": "cid"} | bearer(token["token"])
        assert (await bob.get(f"/responses/{response['id']}", headers=by_token)).json() == response
        assert (await bob.get(f"/tasks/{running['task_id']}", headers=by_token)).json()["status"] == "in_progress"
        assert (await bob.post(f"/tasks/{running['task_id']}/cancel")).json()["status"] == "cancelled"

    async def test_b5_5_one_who_may_execute_kernels_also_sees_the_servers(self, users):
        ann, server = users["ann"], users["server"]
        servers = (await server.post("/responses", json=body(store=True))).json()
        task = (await server.post("/tasks", json={"type": "response", "request": body()})).json()
        approval = (await server.post("/approvals", json={"tool": "f", "arguments": "{}"})).json()
        own = (await ann.post("/responses", json=body(store=True, previous_response_id=servers["id"]))).json()

        assert (await ann.get(f"/responses/{servers['id']}")).json() == servers
        assert [each["id"] for each in (await ann.get("/tasks")).json()["data"]] == [task["id"]]
        answered = await ann.post(f"/approvals/{approval['id']}", json={"decision": "allow"})
        assert answered.json()["decision"] == "allow"
        refused(await server.get(f"/responses/{own['id']}"), 404, "response_not_found")
        # Her token is hers alone.
        token = (await ann.post("/tokens", json={"name": "t", "scopes": ["responses:read", "tasks:read"]})).json()
        assert (await ann.get(f"/responses/{own['id']}", headers=bearer(token["token"]))).json() == own
        refused(await ann.get(f"/responses/{servers['id']}", headers=bearer(token["token"])), 404, "response_not_found")

    async def test_b5_5_a_key_is_its_owners(self, users):
        key = {"Idempotency-Key": "k"}

        answers = {name: (await user.post("/responses", json=body(), headers=key)) for name, user in users.items()}

        assert len({answer.json()["id"] for answer in answers.values()}) == 4
        assert not any("Idempotency-Replayed" in answer.headers for answer in answers.values())
        again = await users["bob"].post("/responses", json=body(), headers=key)
        assert (again.json()["id"], again.headers["Idempotency-Replayed"]) == (answers["bob"].json()["id"], "true")

    async def test_b5_4_a_user_who_is_not_named_is_nobody(self, client):
        client.headers.pop("Authorization")

        refused(await client.get("/models"), 401, "unauthorized")


class TestAuthorizer:
    """A server whose authoriser lets one user only read."""

    @pytest.fixture
    def jp_server_config(self, jp_server_config):
        return with_names(jp_server_config, BobOnlyReads)

    async def test_b5_1_the_servers_authorizer_has_its_say(self, users):
        assert (await users["bob"].get("/models")).status_code == 200
        refused(await users["bob"].post("/responses", json=body()), 403, "forbidden")
        assert (await users["cid"].post("/responses", json=body())).status_code == 200
