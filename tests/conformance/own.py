"""A service of the suite's own: `jupyter lmsp serve` in a process and in folders of its own."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

# Little of everything, so that windows and queues fill soon.
SETTINGS = ("--LMSPApp.context_length=1024", "--LMSPApp.parallel=2", "--LMSPApp.queue_limit=8")
START = 60.0
"""Seconds that a server may take to start."""


@contextmanager
def serve(models, folder):
    """Serve the models of a folder; gives the URL, which ends in `/lmsp/v1`, and the token."""
    token = secrets.token_hex(16)
    runtime = folder / "runtime"
    places = {
        "HOME": folder / "home",
        "JUPYTER_CONFIG_DIR": folder / "config",
        "JUPYTER_DATA_DIR": folder / "data",
        "JUPYTER_RUNTIME_DIR": runtime,
        "IPYTHONDIR": folder / "ipython",
    }
    for place in places.values():
        place.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LMSP_", "JUPYTER_", "JPY_"))}
    environment = kept | {name: str(place) for name, place in places.items()} | {"LMSP_MODELS": str(models)}
    command = [sys.executable, "-m", "lmsp_jupyter.cli", "serve", f"--IdentityProvider.token={token}", *SETTINGS]
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield f"{_url(process, runtime, log)}lmsp/v1", token
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _url(process, runtime, log):
    """Where the server listens, as its record in Jupyter's runtime folder says."""
    record = runtime / f"jpserver-{process.pid}.json"
    end = time.monotonic() + START
    while process.poll() is None and time.monotonic() < end:
        try:
            return json.loads(record.read_text("utf-8"))["url"]
        except (FileNotFoundError, json.JSONDecodeError):
            time.sleep(0.05)
    raise RuntimeError(f"The server did not start:\n{log.read_text('utf-8', 'replace')}")
