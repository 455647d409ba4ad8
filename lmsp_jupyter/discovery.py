"""Finding the service that a client is to talk to, or starting one (N2.1, N2.2).

Jupyter's records of its running servers are read from its runtime folder: importing
`jupyter_server` to ask for them takes seconds. Talking to the service is left to `client`.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec
from jupyter_core.paths import jupyter_runtime_dir

from .addresses import local_url
from .errors import Problem, ServiceUnreachable, Unauthorized, from_document
from .protocol import LMSP_VERSIONS, Service

API_PATH = "/lmsp/v1"
IDLE_SECONDS = 900
START_SECONDS = 30.0
PROBE_SECONDS = 2.0
OWN_PROBE_SECONDS = 10.0


@dataclass(frozen=True)
class Address:
    """Where a service is, and the token for it.

    One that is not `fixed` may be looked for anew when it is gone.

    >>> Address("http://localhost:8888/lmsp/v1", "secret")
    Address(base_url='http://localhost:8888/lmsp/v1', fixed=True)
    """

    base_url: str
    token: str | None = field(default=None, repr=False)
    fixed: bool = True

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request: the version and the token, or what a server without one asks for.

        >>> Address("http://localhost:8888/lmsp/v1", "secret").headers
        {'LMSP-Version': '1.0', 'Authorization': 'Bearer secret'}
        """
        version = {"LMSP-Version": LMSP_VERSIONS[-1]}
        if self.token:
            return version | {"Authorization": f"Bearer {self.token}"}
        # A server without a token still compares a cookie with a header, which only its own client can set alike.
        xsrf = secrets.token_hex(16)
        return version | {"Cookie": f"_xsrf={xsrf}", "X-XSRFToken": xsrf}


def parse_address(url: str, token: str | None = None, *, fixed: bool = True) -> Address:
    """The address that `url` means: a service's base URL, or that of the Jupyter server with it.

    A `?token=` in the URL is used where `token` is None. Raises `ServiceUnreachable` for what is no
    URL and `Unauthorized` for a token that cannot be sent.

    >>> parse_address("http://localhost:8888/user/a%40b/?token=secret").base_url
    'http://localhost:8888/user/a%40b/lmsp/v1'
    """
    try:
        parts = urlsplit(url.strip())
        token = (token or "".join(parse_qs(parts.query).get("token", [""]))).strip()
        path = parts.path.rstrip("/").removesuffix(API_PATH) + API_PATH
        base_url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"
        usable = parts.scheme in ("http", "https") and bool(httpx.URL(base_url).host)
    except (ValueError, httpx.InvalidURL):
        usable = False
    if not usable:
        raise ServiceUnreachable(
            "The service's URL must look like http://localhost:8888/ or http://localhost:8888/lmsp/v1."
        )
    if token and not (token.isascii() and token.isprintable()):
        raise Unauthorized("The token has characters that no token has; copy it again.")
    return Address(base_url, token or None, fixed)


class _Server(msgspec.Struct):
    """What is used of the record that a running Jupyter server keeps of itself."""

    pid: int
    url: str
    port: int = 0
    hostname: str = "localhost"
    token: str = ""
    sock: str = ""


def find(
    http: httpx.Client,
    base_url: str | None = None,
    token: str | None = None,
    *,
    start: bool = True,
) -> Address:
    """The service to use, asked for over `http`.

    In this order: `base_url`; the environment's `LMSP_BASE_URL` and `LMSP_TOKEN`; the server that
    started this kernel; a running service of this user, the newest first; one that is started
    now, if `start`. `token` takes precedence over the one that comes with the service. Raises
    `ServiceUnreachable`, or what this kernel's own server answers: no other takes its place.

    >>> with httpx.Client() as http:
    ...     find(http, "http://localhost:8888/")
    Address(base_url='http://localhost:8888/lmsp/v1', fixed=True)
    """
    if base_url is not None:
        return parse_address(base_url, token)
    if given := os.environ.get("LMSP_BASE_URL"):
        return parse_address(given, token or os.environ.get("LMSP_TOKEN"))
    address = _own(http, token) or _running(http, token)
    if address is None and start:
        address = _start(http, token)
    if address is None:
        raise ServiceUnreachable(
            "No running LMSP service was found. Start one with `jupyter lmsp serve`, or set LMSP_BASE_URL."
        )
    return address


def _own(http: httpx.Client, token: str | None) -> Address | None:
    """The server that started this kernel; under nbclient the parent is no server."""
    for server in _servers():
        if str(server.pid) == os.environ.get("JPY_PARENT_PID"):
            address = _server_address(server, token, fixed=True)
            try:
                return address if _serves(http, address, OWN_PROBE_SECONDS) else None
            except httpx.HTTPError as error:
                raise ServiceUnreachable(
                    f"This kernel's own server, {address.base_url}, does not answer "
                    f"({type(error).__name__}). See whether it is busy, and try again."
                ) from None
    return None


def _running(http: httpx.Client, token: str | None) -> Address | None:
    for server in _servers():
        with suppress(httpx.HTTPError, Problem):
            address = _server_address(server, token, fixed=False)
            if _serves(http, address, PROBE_SECONDS):
                return address
    return None


def _serves(http: httpx.Client, address: Address, timeout: float) -> bool:
    """Whether a service answers there. Raises the problem with which a service refuses."""
    response = http.get(address.base_url, headers=address.headers, timeout=timeout)
    try:
        if response.headers.get("Content-Type", "").startswith("application/problem+json"):
            raise from_document(msgspec.json.decode(response.content, type=dict[str, Any]))
        msgspec.json.decode(response.content, type=Service)
    except msgspec.MsgspecError:
        return False
    return response.is_success


def _servers() -> list[_Server]:
    """The running servers that listen on TCP, the newest first."""
    found = []
    for path in Path(jupyter_runtime_dir()).glob("jpserver-*.json"):
        # A server may be writing or removing its record right now.
        with suppress(OSError, msgspec.MsgspecError):
            server = msgspec.json.decode(path.read_bytes(), type=_Server)
            if _alive(server.pid) and not server.sock:
                found.append((path.stat().st_mtime_ns, server))
    found.sort(key=lambda pair: pair[0], reverse=True)
    return [server for _, server in found]


def _server_address(server: _Server, token: str | None, *, fixed: bool) -> Address:
    url = local_url(server.url, server.hostname, server.port)
    return parse_address(url, token or server.token, fixed=fixed)


def _alive(pid: int) -> bool:
    if os.name != "posix":
        # There os.kill(pid, 0) ends the process.
        return True
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def _start(http: httpx.Client, token: str | None) -> Address:
    """A service in a process that outlives this one and ends when idle; two clients start one."""
    from filelock import FileLock, Timeout

    runtime = Path(jupyter_runtime_dir())
    runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with FileLock(runtime / "lmsp-serve.lock", mode=0o600, timeout=START_SECONDS + PROBE_SECONDS):
            return _running(http, token) or _serve(http, token, runtime)
    except Timeout:
        raise ServiceUnreachable(
            "Another client is starting a service and is not done. Try again, or run `jupyter lmsp serve`."
        ) from None


def _serve(http: httpx.Client, token: str | None, runtime: Path) -> Address:
    log = runtime / "lmsp-serve.log"
    log.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "lmsp_jupyter.cli",
        "serve",
        "--idle-timeout",
        str(IDLE_SECONDS),
    ]
    models = os.environ.get("LMSP_MODELS")
    environment = {"LMSP_MODELS": str(Path(models).expanduser().absolute())} if models else {}
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as output:
        # `-m` imports from the working directory first: a notebook's folder may hold a json.py.
        process = subprocess.Popen(
            command,
            cwd=runtime,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # Someone has to wait for a child, or it stays a zombie that looks alive.
    threading.Thread(target=process.wait, name="lmsp-serve", daemon=True).start()
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if address := _running(http, token):
            return address
        if process.poll() is not None:
            raise ServiceUnreachable(f"`jupyter lmsp serve` ended with status {process.returncode}.{_tail(log)}")
        time.sleep(0.1)
    raise ServiceUnreachable(f"`jupyter lmsp serve` did not answer within {START_SECONDS:.0f} seconds.{_tail(log)}")


def _tail(log: Path) -> str:
    """The end of the log, without the token that a Jupyter server writes into it."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-10:]
    text = re.sub(r"token=[^\s&]+", "token=…", "\n".join(lines))
    return f" Its log ends:\n{text}" if text else ""
