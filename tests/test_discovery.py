"""Finding and starting a service (N2.1, N2.2), with scripted servers in a fresh runtime folder."""

import json
import os
import stat
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from lmsp_jupyter import discovery, errors
from lmsp_jupyter.client import Client
from lmsp_jupyter.discovery import Address, find, parse_address

SERVICE = {
    "object": "service",
    "name": "found",
    "version": "0",
    "lmsp_versions": ["1.0"],
    "capabilities": [],
    "engines": [],
    "default_model": None,
    "limits": {"queue": 1, "body": 1, "event_retention": 1, "task_retention": 1},
}

# What is started in the place of `lmsp_jupyter.cli`: it does as a Jupyter server with the service.
CLI = f"""
import http.server, json, os, pathlib, sys, time

runtime = pathlib.Path(os.environ["JUPYTER_RUNTIME_DIR"])
with open(runtime / "started", "a") as started:
    seen = {{"arguments": sys.argv[1:], "sid": os.getsid(0), "cwd": os.getcwd()}}
    started.write(json.dumps(seen) + "\\n")
print("http://127.0.0.1:1/?token=s3cret", flush=True)
mode = os.environ["FAKE_SERVE"]
if mode == "fail":
    sys.exit("no port is free")
if mode == "hang":
    time.sleep(60)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        valid = self.headers["Authorization"] == "Bearer s3cret"
        self.send_response(200 if valid else 403)
        self.end_headers()
        if valid:
            self.wfile.write({json.dumps(SERVICE)!r}.encode())


server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
url = f"http://127.0.0.1:{{server.server_port}}/"
record = runtime / f"jpserver-{{os.getpid()}}.json"
record.write_text(json.dumps({{"pid": os.getpid(), "url": url, "token": "s3cret"}}))
server.serve_forever()
"""


@pytest.fixture(autouse=True)
def runtime(tmp_path, monkeypatch):
    """An empty runtime folder, and an environment that says nothing."""
    for name in ("LMSP_BASE_URL", "LMSP_TOKEN", "JPY_PARENT_PID"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "runtime"
    folder.mkdir()
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(folder))
    return folder


@pytest.fixture
def http():
    with httpx.Client(trust_env=False) as http:
        yield http


@pytest.fixture
def child():
    """The pid of a process that lives as long as the test: a server's must be alive."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def serve(runtime):
    """Start a server and put its record into the runtime folder; gives its URL."""
    servers = []

    def serve(pid, answer=SERVICE, token="right", age=0, status=200, media="application/json", **record):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                valid = self.headers["Authorization"] == f"Bearer {token}"
                found = self.path == "/base/lmsp/v1"
                self.send_response(status if found and valid else 403 if found else 404)
                self.send_header("Content-Type", media)
                self.end_headers()
                if valid and found:
                    self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *args):
                """Nothing on stderr."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        servers.append((server, thread))
        url = f"http://127.0.0.1:{server.server_port}/base/"
        data = {"pid": pid, "url": url, "token": token, "port": server.server_port, **record}
        path = runtime / f"jpserver-{server.server_port}.json"
        path.write_text(json.dumps(data))
        now = time.time()
        os.utime(path, (now - age, now - age))
        return url

    yield serve
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def fake_cli(tmp_path, runtime, monkeypatch):
    """Put the stand-in first on the path of processes that are started; gives what was started."""
    package = tmp_path / "path" / "lmsp_jupyter"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "cli.py").write_text(CLI)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("FAKE_SERVE", "serve")

    def started():
        return [json.loads(line) for line in (runtime / "started").read_text().splitlines()]

    yield started
    for record in runtime.glob("jpserver-*.json"):
        os.kill(json.loads(record.read_text())["pid"], 15)
    for thread in threading.enumerate():
        if thread.name == "lmsp-serve":
            thread.join(10)


def refuse(**record):
    """A record of a server that is not there."""
    return json.dumps({"url": "http://127.0.0.1:9/", "token": "x", **record})


# Addresses.


@pytest.mark.parametrize(
    ("url", "base_url"),
    [
        ("http://h:8888", "http://h:8888/lmsp/v1"),
        ("http://h:8888/lmsp/v1/", "http://h:8888/lmsp/v1"),
        (" https://h/user/a%40b%2Fc/ ", "https://h/user/a%40b%2Fc/lmsp/v1"),
        ("http://[::1]:8888/x/lmsp/v1", "http://[::1]:8888/x/lmsp/v1"),
        ("http://user:password@h/?token=t#f", "http://h/lmsp/v1"),
    ],
)
def test_N2_1_a_servers_url_or_a_services(url, base_url):
    assert parse_address(url).base_url == base_url


def test_the_token_of_a_url_is_used_unless_another_is_given():
    assert parse_address("http://h/?token=one").token == "one"
    assert parse_address("http://h/?token=one", "two\n").token == "two"
    assert parse_address("http://h/").token is None
    assert "Authorization" not in parse_address("http://h/").headers


@pytest.mark.parametrize("url", ["", "h:8888", "ftp://h", "http://", "http://h:port", "http://[::1"])
def test_what_is_no_url_is_refused_without_repeating_it(url):
    with pytest.raises(errors.ServiceUnreachable, match="must look like"):
        parse_address(url)


# The order.


def test_N2_1_the_argument_comes_before_the_environment(http, monkeypatch):
    monkeypatch.setenv("LMSP_BASE_URL", "http://env/lmsp/v1")
    monkeypatch.setenv("LMSP_TOKEN", "of-env")
    given = find(http, "http://given/")
    assert (given.base_url, given.token) == ("http://given/lmsp/v1", None)
    found = find(http)
    assert (found.base_url, found.token, found.fixed) == ("http://env/lmsp/v1", "of-env", True)
    assert find(http, token="mine").token == "mine"


@pytest.mark.ours
def test_N2_2_a_kernel_reaches_the_server_that_started_it(http, serve, child, monkeypatch):
    own = serve(child, age=60)
    other = serve(os.getpid())
    assert find(http).base_url == other + "lmsp/v1"
    monkeypatch.setenv("JPY_PARENT_PID", str(child))
    assert find(http) == Address(own + "lmsp/v1", "right", fixed=True)


@pytest.mark.ours
def test_N2_1_a_parent_that_is_no_server_or_has_no_service_is_passed_over(http, serve, child, monkeypatch):
    other = serve(child)
    monkeypatch.setenv("JPY_PARENT_PID", str(os.getpid()))
    assert find(http).base_url == other + "lmsp/v1"
    serve(os.getpid(), answer={"message": "Not Found"}, status=404)
    assert find(http).base_url == other + "lmsp/v1"


@pytest.mark.ours
def test_N2_2_no_other_server_stands_in_for_one_that_fails(http, serve, child, runtime, monkeypatch):
    serve(child)
    monkeypatch.setenv("JPY_PARENT_PID", str(os.getpid()))
    record = runtime / "jpserver-1.json"
    record.write_text(refuse(pid=os.getpid()))
    with pytest.raises(errors.ServiceUnreachable, match="own server"):
        find(http)
    record.unlink()
    problem = errors.Unauthorized("Who are you?").document()
    serve(os.getpid(), answer=problem, status=401, media="application/problem+json")
    with pytest.raises(errors.Unauthorized, match="Who are you"):
        find(http)


def test_N2_1_the_newest_running_service_is_found(http, serve, child):
    serve(child, age=60)
    newest = serve(os.getpid())
    serve(child, age=30)
    assert find(http) == Address(newest + "lmsp/v1", "right", fixed=False)
    assert find(http, token="right").token == "right"


def test_records_that_lead_nowhere_are_passed_over(http, serve, child, runtime):
    good = serve(child, age=60)
    serve(child, token="")
    serve(child, answer={"object": "else"})
    serve(child, sock="/tmp/x.sock", url="http+unix://%2Ftmp%2Fx.sock/")
    (runtime / "jpserver-1.json").write_text("{")
    (runtime / "jpserver-2.json").write_text('{"url": "http://127.0.0.1:9/"}')
    (runtime / "jpserver-3.json").write_text(refuse(pid=os.getpid()))
    (runtime / "jpserver-4.json").write_text(refuse(pid=os.getpid(), url="nonsense"))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    serve(dead.pid)
    assert find(http).base_url == good + "lmsp/v1"


def test_a_server_on_every_interface_is_reached_as_localhost(http, serve, child):
    url = serve(child, hostname="0.0.0.0", url="http://some-container:1/base/")
    assert find(http).base_url == url.replace("127.0.0.1", "localhost") + "lmsp/v1"


def test_none_found_and_none_started_says_how(runtime):
    with pytest.raises(errors.ServiceUnreachable, match="jupyter lmsp serve"):
        Client(start=False)
    runtime.rmdir()
    with pytest.raises(errors.ServiceUnreachable, match="LMSP_BASE_URL"):
        Client(start=False)


# Starting.

posix = pytest.mark.skipif(sys.platform == "win32", reason="sessions and modes are POSIX's")


@posix
def test_N2_1_a_service_is_started_detached_and_found_again(fake_cli, runtime):
    with Client() as client:
        assert client.service().name == "found"
    (started,) = fake_cli()
    assert started["arguments"] == ["serve", "--idle-timeout", "900"]
    assert started["sid"] != os.getsid(0)
    assert started["cwd"] == str(runtime)
    assert stat.S_IMODE((runtime / "lmsp-serve.log").stat().st_mode) == 0o600
    with Client() as client:
        assert client.service().name == "found"
    assert len(fake_cli()) == 1


@posix
def test_N2_1_clients_at_the_same_time_start_one(fake_cli):
    names = []

    def ask():
        with Client() as client:
            names.append(client.service().name)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert names == ["found"] * 4
    assert len(fake_cli()) == 1


@posix
def test_a_service_that_ended_idle_is_started_again(fake_cli, runtime):
    with Client() as client:
        before = client.base_url
        (record,) = runtime.glob("jpserver-*.json")
        os.kill(json.loads(record.read_text())["pid"], 15)
        for thread in threading.enumerate():
            if thread.name == "lmsp-serve":
                thread.join(10)
        record.unlink()
        assert client.service().name == "found"
        assert client.base_url != before
    assert len(fake_cli()) == 2


@posix
def test_a_service_that_fails_to_start_shows_its_log_without_the_token(fake_cli, monkeypatch):
    monkeypatch.setenv("FAKE_SERVE", "fail")
    begun = time.monotonic()
    with pytest.raises(errors.ServiceUnreachable, match="no port is free") as caught:
        Client()
    assert "status 1" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert time.monotonic() - begun < 10


@posix
def test_a_service_that_never_answers_is_given_up(fake_cli, runtime, monkeypatch):
    monkeypatch.setenv("FAKE_SERVE", "hang")
    monkeypatch.setattr(discovery, "START_SECONDS", 1.0)
    with pytest.raises(errors.ServiceUnreachable, match="did not answer within"):
        Client()
    (started,) = fake_cli()
    os.killpg(started["sid"], 9)
