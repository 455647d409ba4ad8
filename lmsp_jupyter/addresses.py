"""How this machine reaches a Jupyter server that runs on it; server and clients say the same."""

from __future__ import annotations

from urllib.parse import urlsplit

_WILDCARDS = ("", "*", "0.0.0.0", "::")


def local_url(url: str, ip: str, port: int) -> str:
    """The server's `url`, by way of localhost where it listens on every address, which `ip` tells.

    The host's name, which such a server may call itself by, can lead through a proxy, and a token with it.
    """
    return urlsplit(url)._replace(netloc=f"localhost:{port}").geturl() if ip in _WILDCARDS else url
