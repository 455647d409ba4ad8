"""N2.1, B5.7: how this machine reaches a server on it."""

import pytest

from lmsp_jupyter.addresses import local_url


@pytest.mark.parametrize("ip", ["", "*", "0.0.0.0", "::"])
def test_a_server_on_every_address_is_reached_by_localhost(ip):
    assert local_url("https://laptop:8888/user/a%40b/", ip, 8888) == "https://localhost:8888/user/a%40b/"


@pytest.mark.parametrize("ip", ["localhost", "127.0.0.1", "192.168.1.7", "::1"])
def test_any_other_is_reached_as_it_says(ip):
    assert local_url("http://192.168.1.7:8888/", ip, 8888) == "http://192.168.1.7:8888/"
