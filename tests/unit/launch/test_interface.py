"""The interface of a node: by name or address, and a refusal that lists what the host has."""

import socket

import psutil
import pytest

from asyncrl.config.schema.runtime import Runtime
from asyncrl.errors import ConfigError
from asyncrl.launch.interface import Interface, find_interface, is_loopback_endpoint


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with a loopback, and an interface of each family."""

    def address(family: int, text: str) -> object:
        return type("Address", (), {"family": family, "address": text})()

    addresses = {
        "lo": [address(socket.AF_INET, "127.0.0.1"), address(socket.AF_INET6, "::1")],
        "eth0": [address(socket.AF_INET6, "fe80::1%eth0"), address(socket.AF_INET6, "2001:db8::7"), address(socket.AF_INET, "10.0.0.7")],
        "ib0": [address(socket.AF_INET6, "2001:db8::8")],
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("127.0.0.1", ("lo", "127.0.0.1")),
        ("127.0.0.2", ("lo", "127.0.0.2")),
        ("lo", ("lo", "127.0.0.1")),
        ("eth0", ("eth0", "10.0.0.7")),
        ("10.0.0.7", ("eth0", "10.0.0.7")),
        ("2001:db8::7", ("eth0", "2001:db8::7")),
        ("ib0", ("ib0", "2001:db8::8")),
    ],
)
@pytest.mark.usefixtures("host")
def test_a_name_or_an_address_of_this_host_is_found(given: str, found: tuple[str, str]) -> None:
    assert find_interface(Runtime(interface=given)) == Interface(*found)


@pytest.mark.parametrize("given", ["eth1", "10.0.0.8", "localhost"])
@pytest.mark.usefixtures("host")
def test_what_this_host_does_not_have_is_refused_with_what_it_has(given: str) -> None:
    with pytest.raises(ConfigError, match=r"runtime\.interface: got .*; allowed on this host: lo \(127\.0\.0\.1\), eth0 \(10\.0\.0\.7\)"):
        find_interface(Runtime(interface=given))


@pytest.mark.usefixtures("host")
def test_the_range_of_ports_goes_with_it() -> None:
    assert find_interface(Runtime(interface="eth0", port_range="29600-29700")).ports == "29600-29700"


@pytest.mark.parametrize(
    ("endpoint", "is_one"),
    [("tcp://127.0.0.1:5", True), ("tcp://[::1]:5", True), ("tcp://10.0.0.7:5", False), ("tcp://[2001:db8::7]:5", False)],
)
def test_an_endpoint_that_only_this_host_reaches_is_known(endpoint: str, is_one: bool) -> None:
    assert is_loopback_endpoint(endpoint) == is_one
