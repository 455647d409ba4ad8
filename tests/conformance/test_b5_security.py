"""B5: credentials, tokens and scopes. Identities of several users need a provider that names them."""

import httpx
import pytest

from .api import bearer, refused, until

pytestmark = pytest.mark.ours

SCOPES = (
    "models:read",
    "models:manage",
    "responses:create",
    "responses:read",
    "tasks:create",
    "tasks:read",
    "tasks:cancel",
    "tokens:manage",
)
ROUTES = [
    ("GET", "", "models:read"),
    ("GET", "/models", "models:read"),
    ("GET", "/models/none-such", "models:read"),
    ("POST", "/models/none-such/load", "models:manage"),
    ("POST", "/models/none-such/unload", "models:manage"),
    ("POST", "/responses", "responses:create"),
    ("POST", "/responses/resp_none/cancel", "responses:create"),
    ("DELETE", "/responses/resp_none", "responses:create"),
    ("POST", "/chat/completions", "responses:create"),
    ("GET", "/responses/resp_none", "responses:read"),
    ("GET", "/responses/resp_none/input_items", "responses:read"),
    ("POST", "/tasks", "tasks:create"),
    ("DELETE", "/tasks/task_none", "tasks:create"),
    ("GET", "/tasks", "tasks:read"),
    ("GET", "/tasks/task_none", "tasks:read"),
    ("GET", "/tasks/task_none/events", "tasks:read"),
    ("POST", "/tasks/task_none/cancel", "tasks:cancel"),
    ("GET", "/tokens", "tokens:manage"),
    ("POST", "/tokens", "tokens:manage"),
    ("DELETE", "/tokens/none", "tokens:manage"),
]


@pytest.fixture
def mint(lmsp):
    """Make a token of some scopes; it is deleted at the end."""
    minted = []

    def mint(*scopes, **more):
        minted.append(lmsp.mint(*scopes, **more))
        return minted[-1]

    yield mint
    for token in minted:
        lmsp.delete(f"/tokens/{token['id']}")


# B5.2


def test_b5_2_a_token_is_shown_once(lmsp, mint):
    token = mint("models:read", "tasks:read", name="notebook")

    (listed,) = [each for each in lmsp.get("/tokens").json()["data"] if each["id"] == token["id"]]
    assert token["token"]
    assert "token" not in listed
    assert listed == {name: value for name, value in token.items() if name != "token"}
    assert (token["name"], token["scopes"], token["expires_at"]) == ("notebook", ["models:read", "tasks:read"], None)


def test_b5_2_a_token_opens_what_its_scopes_say(lmsp, mint):
    token = mint("responses:create")

    assert lmsp.respond(lmsp.ask(max_output_tokens=1), headers=bearer(token["token"]))["status"] == "incomplete"


def test_b5_2_a_deleted_token_opens_nothing_at_once(lmsp, mint):
    token = mint("models:read")
    assert lmsp.get("", headers=bearer(token["token"])).status_code == 200

    assert lmsp.delete(f"/tokens/{token['id']}").status_code == 204

    refused(lmsp.get("", headers=bearer(token["token"])), 401, "unauthorized")
    assert token["id"] not in {each["id"] for each in lmsp.get("/tokens").json()["data"]}
    assert lmsp.delete(f"/tokens/{token['id']}").status_code == 404


def test_b5_2_a_deleted_token_ends_its_open_streams(lmsp, mint, long_task):
    token = mint("tasks:read")
    seen = []

    try:
        with lmsp.open("GET", f"/tasks/{long_task['id']}/events", headers=bearer(token["token"])) as events:
            seen.append(next(events))
            lmsp.delete(f"/tokens/{token['id']}")
            seen += events
    except httpx.RemoteProtocolError:
        seen.append(None)  # cut off rather than closed

    assert seen[-1] is None or not seen[-1].final
    assert lmsp.task(long_task)["status"] == "in_progress"


def test_b5_2_a_token_expires(lmsp, mint):
    token = mint("models:read", expires_in=1)

    assert isinstance(token["expires_at"], int)
    until(lambda: lmsp.get("", headers=bearer(token["token"])).status_code, lambda status: status == 401)


def test_b5_2_a_token_mints_at_most_its_own_scopes(lmsp, mint):
    headers = bearer(mint("tokens:manage", "models:read")["token"])

    def post(*scopes):
        return lmsp.post("/tokens", {"name": "a", "scopes": list(scopes)}, headers=headers)

    own = post("models:read")
    assert own.status_code == 201
    lmsp.delete(f"/tokens/{own.json()['id']}")
    for more in (["responses:create"], ["models:read", "tasks:read"]):
        assert more[-1] in refused(post(*more), 403, "insufficient_scope")["detail"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": None},
        {"scopes": None},
        {"scopes": []},
        {"scopes": ["everything"]},
        {"expires_in": 0},
        {"expires_in": "1"},
    ],
    ids=str,
)
def test_b5_2_what_is_no_token(lmsp, wrong):
    body = {"name": "a", "scopes": ["models:read"]} | wrong

    refused(lmsp.post("/tokens", {k: v for k, v in body.items() if v is not None}), 400, "invalid_request")


def test_b5_2_an_lmsp_token_opens_nothing_of_jupyter(lmsp, mint):
    token = mint(*SCOPES)
    status = f"{lmsp.url.removesuffix('/lmsp/v1')}/api/status"
    if lmsp.http.get(status).status_code != 200:
        pytest.skip("this is no Jupyter server")

    assert lmsp.http.get(status, headers=bearer(token["token"])).status_code in (401, 403)


# B5.3


@pytest.mark.parametrize("scope", SCOPES)
def test_b5_3_a_scope_opens_its_routes_and_no_others(lmsp, mint, scope):
    headers = bearer(mint(scope)["token"])

    for method, path, needed in ROUTES:
        body = {} if method == "POST" else None
        answer = lmsp.request(method, path, json=body, headers=headers)
        if needed == scope:
            assert answer.status_code in (200, 400, 404), (method, path)
        else:
            problem = refused(answer, 403, "insufficient_scope")
            assert needed in problem["detail"], (method, path)


def test_b5_3_jupyters_own_user_has_all(lmsp):
    for method, path, _ in ROUTES:
        body = {} if method == "POST" else None
        assert lmsp.request(method, path, json=body).status_code in (200, 400, 404), (method, path)


def test_b5_3_tools_execute_is_reserved(lmsp):
    answer = lmsp.post("/tokens", {"name": "a", "scopes": ["models:read", "tools:execute"]})

    refused(answer, 400, "invalid_request")


# B5.4


@pytest.fixture
def stranger():
    with httpx.Client(trust_env=False) as stranger:
        yield stranger


@pytest.mark.parametrize("path", ["", "/models", "/tasks", "/responses/resp_none", "/tokens", "/nowhere"])
def test_b5_4_no_credentials(lmsp, stranger, path):
    answer = stranger.get(lmsp.url + path)

    refused(answer, 401, "unauthorized")
    assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("POST", "/responses"), ("POST", "/tasks")])
def test_b5_4_bad_credentials(lmsp, stranger, method, path):
    answer = stranger.request(method, lmsp.url + path, headers=bearer("wrong"))

    refused(answer, 401, "unauthorized")
    assert answer.headers["WWW-Authenticate"].startswith("Bearer ")
    assert 'error="invalid_token"' in answer.headers["WWW-Authenticate"]


def test_b5_4_under_lmsp_every_refusal_is_a_problem_document(lmsp, stranger):
    root = lmsp.url.removesuffix("/v1")

    for path in ("", "/", "/v2", "/v1/nowhere"):
        refused(stranger.get(root + path), 401, "unauthorized")
        if path != "":
            refused(lmsp.http.get(root + path), 404, "not_found")
