"""Who calls and what they may (B5): LMSP tokens, scopes, and the identities of Jupyter's users."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from jupyter_server.auth import Authorizer, IdentityProvider, User
from jupyter_server.auth.identity import LegacyIdentityProvider, PasswordIdentityProvider
from jupyter_server.auth.login import LegacyLoginHandler, LoginFormHandler
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import url_path_join
from tornado import web
from traitlets.config import Config
from waiting import until

from lmsp_jupyter.auth import ALL_SCOPES, SERVER, Caller, Tokens, caller_of
from lmsp_jupyter.errors import InsufficientScope, NotFound, StorageUnavailable
from lmsp_jupyter.protocol import TokenRequest
from lmsp_jupyter.store import Store

pytestmark = pytest.mark.ours


def caller(owner="ann", *, sees=(), scopes=ALL_SCOPES, **more):
    return Caller(owner=owner, owners=frozenset({owner, *sees}), scopes=frozenset(scopes), **more)


def wanted(*scopes, **more):
    return TokenRequest(name="t", scopes=list(scopes) or ["models:read"], **more)


def run(scenario):
    """Run a coroutine that a lost wake-up would leave waiting for ever."""
    return asyncio.run(asyncio.wait_for(scenario, timeout=20))


class Clock:
    now = 1000.5

    def __call__(self):
        return self.now


class FlakyStore(Store):
    """A store that cannot be read while it is `broken`."""

    broken = False
    refused = 0

    def tokens(self, owners):
        if self.broken:
            self.refused += 1
            raise StorageUnavailable("Broken.")
        return super().tokens(owners)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def servers(tmp_path, clock):
    """Makes the tokens of servers that share a data folder."""
    stores = []

    def another(poll=0.01):
        stores.append(FlakyStore(tmp_path / "data"))
        return Tokens(stores[-1], clock=clock, poll=poll)

    another.stores = stores
    yield another
    for store in stores:
        store.close()


@pytest.fixture
def tokens(servers):
    return servers()


@pytest.fixture
def store(tokens, servers):
    return servers.stores[0]


# Scopes


def test_b5_3_everything_but_the_reserved_scope_is_a_scope():
    assert "tools:execute" not in ALL_SCOPES
    assert {"models:read", "responses:create", "tasks:cancel", "tokens:manage"} <= ALL_SCOPES


def test_b5_4_a_scope_that_is_lacking_is_named():
    ann = caller(scopes={"models:read"})

    ann.require("models:read")
    with pytest.raises(InsufficientScope) as caught:
        ann.require("tasks:read")

    assert "tasks:read" in caught.value.detail
    assert caught.value.document()["scope"] == "tasks:read"
    assert caught.value.headers["WWW-Authenticate"] == 'Bearer error="insufficient_scope", scope="tasks:read"'


# Tokens


def test_b5_2_a_token_is_told_once_and_let_in_with_its_scopes(tokens):
    minted = tokens.mint(caller(), wanted("models:read", "tasks:read"))

    assert minted.id.startswith("tok_")
    assert (minted.name, minted.scopes) == ("t", ["models:read", "tasks:read"])
    assert (minted.created_at, minted.expires_at) == (1000, None)
    assert tokens.find(minted.token) == caller(scopes={"models:read", "tasks:read"}, token_id=minted.id)
    [listed] = tokens.list(caller())
    assert not listed.token
    assert (listed.id, listed.name, listed.scopes) == (minted.id, minted.name, minted.scopes)


def test_b5_2_a_token_is_long_printable_and_says_whose_it_is(tokens):
    for token in (tokens.mint(caller(), wanted()).token, tokens.mint_for_kernel()):
        assert token.startswith("lmsp_")
        assert len(token) >= len("lmsp_") + 43  # 256 bits in base64
        assert token.isascii()
        assert token.isprintable()


def test_b5_2_only_a_hash_is_kept(tokens, tmp_path):
    minted = [tokens.mint(caller(), wanted()).token, tokens.mint_for_kernel()]
    on_disk = b"".join(path.read_bytes() for path in (tmp_path / "data").iterdir() if path.is_file())

    for token in minted:
        secret = token.removeprefix("lmsp_")
        assert secret.encode() not in on_disk
        assert secret not in repr(vars(tokens))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda token: "",
        lambda token: "lmsp_",
        lambda token: token[:-1],
        lambda token: token + "x",
        lambda token: token.removeprefix("lmsp_"),
        lambda token: token.swapcase(),
        lambda token: f" {token}",
        lambda token: "ďábelské",
        lambda token: "lmsp_ďábelské",
        lambda token: "lmsp_\udcff",
        lambda token: chr(0xD83D),
    ],
    ids=[
        "empty",
        "prefix",
        "cut",
        "longer",
        "without prefix",
        "other case",
        "space",
        "not ASCII",
        "prefix, not ASCII",
        "surrogate escape",
        "lone surrogate",
    ],
)
def test_b5_4_any_other_text_is_unknown(tokens, wrong):
    assert tokens.find(wrong(tokens.mint(caller(), wanted()).token)) is None
    assert tokens.find(wrong(tokens.mint_for_kernel())) is None


def test_b5_2_a_token_mints_at_most_its_own_scopes(tokens):
    parent = tokens.find(tokens.mint(caller(), wanted("tokens:manage", "models:read")).token)

    with pytest.raises(InsufficientScope) as caught:
        tokens.mint(parent, wanted("models:read", "models:manage"))
    assert "models:manage" in caught.value.detail
    assert len(tokens.list(parent)) == 1

    child = tokens.mint(parent, wanted("models:read"))
    assert tokens.find(child.token).scopes == {"models:read"}


def test_b5_2_a_token_mints_none_that_outlives_it(tokens):
    parent = tokens.find(tokens.mint(caller(), wanted("tokens:manage", expires_in=60)).token)

    ends = [
        tokens.mint(parent, wanted("tokens:manage", expires_in=expires_in)).expires_at for expires_in in (None, 30, 600)
    ]

    assert ends == [1060, 1030, 1060]


def test_a_scope_that_is_asked_for_twice_is_given_once(tokens):
    assert tokens.mint(caller(), wanted("models:read", "models:read")).scopes == ["models:read"]


def test_a_scope_that_this_version_does_not_know_is_left_out(tokens, store):
    minted = tokens.mint(caller(), wanted())
    row = store.tokens(["ann"])[0]
    store.token = lambda hash: SimpleNamespace(**(vars(row) | {"scopes": ["models:read", "models:eat"]}))

    assert tokens.find(minted.token).scopes == {"models:read"}


def test_b5_2_an_expired_token_is_unknown(tokens, clock):
    minted = tokens.mint(caller(), wanted(expires_in=60))
    bearer = tokens.find(minted.token)

    assert (minted.expires_at, bearer.expires_at) == (1060, 1060)
    clock.now = 1059.9
    assert tokens.find(minted.token) == bearer
    assert tokens.still_valid(bearer)
    clock.now = 1060
    assert tokens.find(minted.token) is None
    assert not tokens.still_valid(bearer)
    assert tokens.list(caller()) == []


def test_b5_5_a_token_acts_for_who_minted_it_and_sees_no_more(tokens):
    minted = tokens.mint(caller("ann", sees=[SERVER]), wanted())

    bearer = tokens.find(minted.token)

    assert (bearer.owner, bearer.owners) == ("ann", {"ann"})


def test_b5_5_tokens_of_another_identity_do_not_exist(tokens):
    anns, bobs = (tokens.mint(caller(owner), wanted()) for owner in ("ann", "bob"))

    with pytest.raises(NotFound):
        tokens.revoke(caller("bob"), anns.id)
    with pytest.raises(NotFound):
        tokens.revoke(caller("bob"), "tok_unknown")
    assert [token.id for token in tokens.list(caller("bob"))] == [bobs.id]
    assert [token.id for token in tokens.list(caller("bob", sees=["ann"]))] == [anns.id, bobs.id]
    assert tokens.find(anns.token)


def test_b5_2_a_revoked_token_is_unknown_at_once(tokens):
    minted = tokens.mint(caller(), wanted())
    bearer = tokens.find(minted.token)

    tokens.revoke(caller(), minted.id)

    assert tokens.find(minted.token) is None
    assert not tokens.still_valid(bearer)
    assert tokens.list(caller()) == []
    with pytest.raises(NotFound):
        tokens.revoke(caller(), minted.id)


def test_b5_2_servers_that_share_a_folder_share_its_tokens(servers):
    one, other = servers(), servers()
    minted = one.mint(caller(), wanted())

    assert other.find(minted.token) == one.find(minted.token)
    other.revoke(caller(), minted.id)
    assert one.find(minted.token) is None


# The kernels' token


def test_b5_7_a_kernels_token_has_all_scopes_but_one(tokens):
    minted = [tokens.mint_for_kernel() for _ in range(3)]

    assert len(set(minted)) == 3
    for token in minted:
        kernel = tokens.find(token)
        assert (kernel.owner, kernel.owners) == (SERVER, {SERVER})
        assert kernel.scopes == ALL_SCOPES - {"tokens:manage"}
        assert tokens.still_valid(kernel)
    with pytest.raises(InsufficientScope):
        tokens.mint(kernel, wanted("tokens:manage"))


def test_b5_7_a_kernels_token_is_its_servers_only_and_not_listed(servers):
    one, other = servers(), servers()

    token = one.mint_for_kernel()

    assert other.find(token) is None
    assert one.list(caller(SERVER)) == []


def test_a_broken_store_locks_out_none_that_it_does_not_keep(tmp_path):
    (tmp_path / "data").write_text("no folder")
    tokens = Tokens(Store(tmp_path / "data"))

    assert tokens.find(tokens.mint_for_kernel()).owner == SERVER
    assert tokens.find("c0ffee, the token of Jupyter") is None
    with pytest.raises(StorageUnavailable):
        tokens.find("lmsp_unknown")
    with pytest.raises(StorageUnavailable):
        tokens.mint(caller(), wanted())


# Open streams


def watched(tokens, bearer, change):
    """Whether an open stream of `bearer` is ended by `change`."""

    async def scenario():
        ended = asyncio.Event()
        with tokens.watch(bearer, ended.set):
            await asyncio.sleep(0)
            await change()
            await ended.wait()
        return True

    return run(scenario())


def test_b5_2_a_token_that_is_revoked_ends_open_streams_without_polling(servers):
    tokens = servers(poll=1000)
    minted = tokens.mint(caller(), wanted())

    async def change():
        await asyncio.to_thread(tokens.revoke, caller(), minted.id)

    assert watched(tokens, tokens.find(minted.token), change)


def test_b5_2_a_token_that_was_revoked_before_its_stream_opened_ends_it(tokens):
    minted = tokens.mint(caller(), wanted())
    bearer = tokens.find(minted.token)
    tokens.revoke(caller(), minted.id)

    async def change():
        pass

    assert watched(tokens, bearer, change)


def test_b5_2_a_token_that_another_server_revokes_ends_open_streams(servers):
    one, other = servers(), servers()
    minted = one.mint(caller(), wanted())
    bearer = one.find(minted.token)

    async def change():
        other.revoke(caller(), minted.id)

    assert watched(one, bearer, change)
    assert not one.still_valid(bearer)


def test_b5_2_a_token_that_expires_ends_open_streams(tokens, clock):
    bearer = tokens.find(tokens.mint(caller(), wanted(expires_in=60)).token)

    async def change():
        clock.now += 60

    assert watched(tokens, bearer, change)


def test_b5_2_other_tokens_end_no_stream(tokens):
    mine, other = (tokens.mint(caller(), wanted()) for _ in range(2))
    ended = []

    async def scenario():
        with tokens.watch(tokens.find(mine.token), lambda: ended.append("mine")):
            with tokens.watch(tokens.find(other.token), lambda: ended.append("other")):
                await asyncio.sleep(0)
                tokens.revoke(caller(), other.id)
                await until(lambda: ended)
            await asyncio.sleep(0.05)

    run(scenario())

    assert ended == ["other"]


@pytest.mark.parametrize("who", [lambda tokens: tokens.find(tokens.mint_for_kernel()), lambda tokens: caller()])
def test_what_is_no_token_of_the_store_needs_no_watching(tokens, who):
    async def scenario():
        with tokens.watch(who(tokens), lambda: pytest.fail("ended")):
            return len(asyncio.all_tasks())

    assert run(scenario()) == 2  # `wait_for` and the scenario in it


def test_a_stream_that_ended_is_watched_no_longer(tokens):
    minted = tokens.mint(caller(), wanted())

    async def scenario():
        with tokens.watch(tokens.find(minted.token), lambda: pytest.fail("ended")):
            await asyncio.sleep(0)
        tokens.revoke(caller(), minted.id)
        await until(lambda: len(asyncio.all_tasks()) == 2)

    run(scenario())


def test_a_store_that_cannot_be_read_ends_no_stream(servers):
    one, other = servers(), servers()
    store = servers.stores[0]
    minted = one.mint(caller(), wanted())
    ended = asyncio.Event()

    async def scenario():
        with one.watch(one.find(minted.token), ended.set):
            store.broken = True
            await until(lambda: store.refused >= 3)
            assert not ended.is_set()
            other.revoke(caller(), minted.id)
            store.broken = False
            await ended.wait()

    run(scenario())


# The identities of Jupyter's users


class Names(IdentityProvider):
    """Users say who they are; who does not may come with the server's token."""

    def get_user(self, handler):
        name = handler.request.headers.get("X-User")
        return User(name) if name else super().get_user(handler)


class OneMayExecute(Authorizer):
    """Ann executes kernels, others do not."""

    def is_authorized(self, handler, user, action, resource):
        return (action, resource) != ("execute", "kernels") or user.username == "ann"


class WhoHandler(JupyterHandler):
    """Tells who calls."""

    @web.authenticated
    async def get(self):
        who = await caller_of(self)
        self.finish(json.dumps([who.owner, sorted(who.owners), sorted(who.scopes)]))


@pytest.fixture
def jp_server_config(request):
    """The configuration that a test gives to its server."""
    settings = request.param if hasattr(request, "param") else {}
    return Config({"ServerApp": {"jpserver_extensions": {"lmsp_jupyter": False}, **settings}})


@pytest.fixture
def who(jp_serverapp, jp_fetch, jp_base_url):
    """Ask the server who sends a request with these headers; by default that is the server's token."""
    jp_serverapp.web_app.add_handlers(".*$", [(url_path_join(jp_base_url, "who"), WhoHandler)])

    async def who(**headers):
        answer = await jp_fetch("who", headers=headers)
        owner, owners, scopes = json.loads(answer.body)
        assert set(scopes) == ALL_SCOPES  # B5.3: Jupyter's own user has all
        who.cookies = "; ".join(cookie.partition(";")[0] for cookie in answer.headers.get_list("Set-Cookie"))
        return owner, owners

    return who


NO_TOKEN = {"Authorization": "none"}

named = pytest.mark.parametrize(
    "jp_server_config", [{"identity_provider_class": Names, "authorizer_class": OneMayExecute}], indirect=True
)


async def test_b5_5_the_servers_token_and_users_of_the_default_provider_are_one_identity(who):
    assert await who() == (SERVER, [SERVER])
    assert "username-" in who.cookies
    assert await who(Cookie=who.cookies, **NO_TOKEN) == (SERVER, [SERVER])


@named
async def test_b5_5_a_named_user_is_her_own(who):
    assert await who(**{"X-User": "bob"}, **NO_TOKEN) == ("bob", ["bob"])


@named
async def test_b5_5_a_named_user_who_may_execute_kernels_also_sees_the_servers(who):
    assert await who(**{"X-User": "ann"}, **NO_TOKEN) == ("ann", [SERVER, "ann"])


@named
async def test_b5_5_the_servers_token_is_the_servers_under_a_provider_that_names_users(who):
    assert await who() == (SERVER, [SERVER])
    assert await who(Cookie=who.cookies) == (SERVER, [SERVER])


class NamesLegacy(LegacyIdentityProvider):
    pass


class PasswordPage(LoginFormHandler):
    pass


class LegacyPage(LegacyLoginHandler):
    pass


def caller_under(provider, **request):
    """Who calls, where the request was made by user ann, who may execute nothing."""
    defaults = {
        "identity_provider": provider,
        "authorizer": SimpleNamespace(is_authorized=lambda *_: False),
        "current_user": User("ann"),
        "token": "",
        "token_authenticated": False,
    }
    return run(caller_of(SimpleNamespace(**(defaults | request))))


@pytest.mark.parametrize(
    "provider", [IdentityProvider, PasswordIdentityProvider, LegacyIdentityProvider], ids=lambda each: each.__name__
)
def test_b5_5_users_of_jupyters_own_providers_have_no_name(provider):
    assert caller_under(provider()).owner == SERVER


@pytest.mark.parametrize(
    "provider",
    [
        Names,
        NamesLegacy,
        lambda: PasswordIdentityProvider(login_handler_class=PasswordPage),
        lambda: LegacyIdentityProvider(login_handler_class=LegacyPage),
    ],
    ids=["a provider of its own", "a derived one", "another login page", "another legacy login page"],
)
def test_b5_5_a_provider_or_login_page_of_another_kind_may_name_users(provider):
    assert caller_under(provider()).owner == "ann"


def test_b5_5_an_authorizer_may_be_asynchronous():
    async def is_authorized(handler, user, action, resource):
        return (user.username, action, resource) == ("ann", "execute", "kernels")

    under = caller_under(Names(), authorizer=SimpleNamespace(is_authorized=is_authorized))

    assert under.owners == {"ann", SERVER}


@pytest.mark.parametrize(
    ("sent", "request_"),
    [
        ("secret", {"token": "secret", "token_authenticated": False}),
        ("anns", {"token": "secret", "token_authenticated": True}),
        (None, {"token": "secret", "token_authenticated": True}),
        ("", {"token": "", "token_authenticated": True}),
        ("příliš", {"token": "secret", "token_authenticated": True}),
    ],
    ids=["not accepted", "a token of her own", "none", "server without a token", "not ASCII"],
)
def test_b5_5_only_the_servers_own_token_makes_a_named_user_the_server(sent, request_):
    provider = Names()
    provider.get_token = lambda handler: sent

    assert caller_under(provider, **request_).owner == "ann"
