"""Where a process may listen: refused by name, with what is allowed."""

import itertools
import socket

import pytest

from asyncrl.errors import ConfigError
from asyncrl.runtime import ActorSystem, Keyring, RealHost
from asyncrl.runtime.endpoints import check_endpoint, ports_of
from tests.unit.runtime.runtime_actors import Counter

KEYS = Keyring.from_job_key(b"k" * 32, "controller")


def test_every_interface_at_once_is_refused_also_with_keys() -> None:
    for host, keyed in itertools.product(["*", "0.0.0.0", "[::]"], [False, True]):
        with pytest.raises(ConfigError, match=r"this is every interface of the host; allowed: one address") as caught:
            check_endpoint(f"tcp://{host}:*", keyed)
        assert caught.value.seen == f"tcp://{host}:*"


def test_an_address_beyond_the_loopback_needs_keys_and_the_refusal_says_how_to_make_them() -> None:
    for host in ("192.0.2.1", "10.0.0.1", "[2001:db8::1]"):
        with pytest.raises(ConfigError, match=r"allowed without keys: ipc, and the loopback .*head -c 32 /dev/urandom > key.*from_job_key"):
            check_endpoint(f"tcp://{host}:29600", keyed=False)
        check_endpoint(f"tcp://{host}:29600", keyed=True)


def test_the_loopback_and_ipc_need_no_keys() -> None:
    for endpoint in ("ipc:///tmp/a.sock", "tcp://127.0.0.1:*", "tcp://127.3.2.1:29600-29700", "tcp://[::1]:*"):
        check_endpoint(endpoint, keyed=False)


def test_a_name_or_another_transport_is_refused() -> None:
    for endpoint in ("tcp://localhost:*", "tcp://eth0:*", "tcp://:29600", "udp://127.0.0.1:1", "127.0.0.1:29600", ""):
        with pytest.raises(ConfigError, match="allowed: "):
            check_endpoint(endpoint, keyed=True)


async def test_a_system_refuses_to_listen_beyond_the_loopback_without_keys() -> None:
    with pytest.raises(ConfigError, match="allowed without keys"):
        ActorSystem.bind("a", "tcp://192.0.2.1:*", host=RealHost())


def two_free_ports() -> int:
    """A free port whose successor is free too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


@pytest.mark.parametrize("keys", [None, KEYS])
async def test_the_first_free_port_of_a_range_is_taken_and_a_full_range_is_refused_by_name(keys: Keyring | None) -> None:
    port = two_free_ports()
    range_of_two = f"tcp://127.0.0.1:{port}-{port + 1}"
    async with ActorSystem.bind("a", range_of_two, host=RealHost(), keys=keys) as first:
        assert first.endpoint == f"tcp://127.0.0.1:{port}"
        async with ActorSystem.bind("b", range_of_two, host=RealHost(), keys=keys) as second:
            assert second.endpoint == f"tcp://127.0.0.1:{port + 1}"
            with pytest.raises(ConfigError, match=rf"{port}-{port + 1}'; every port of this range is taken"):
                ActorSystem.bind("c", range_of_two, host=RealHost(), keys=keys)


def test_what_is_no_range_of_ports_is_refused() -> None:
    for ports in ("5-4", "0-4", "1-65536", "a-b", "1-", "-", "1-2-3"):
        with pytest.raises(ConfigError, match=r"port_range: got .*; allowed: FIRST-LAST, as 29600-29700"):
            list(ports_of(f"tcp://127.0.0.1:{ports}"))


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as found:
            found.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("address", ["127.0.0.2", "[::1]"])
async def test_other_addresses_of_the_host_work_as_the_first_does(address: str) -> None:
    if address == "[::1]" and not has_ipv6():
        pytest.skip("this host has no IPv6")
    async with ActorSystem.bind("there", f"tcp://{address}:*", host=RealHost(), keys=KEYS) as there:
        assert there.endpoint.startswith(f"tcp://{address}:")
        await there.spawn(Counter, name="c")
        async with ActorSystem.bind("here", "tcp://127.0.0.1:*", host=RealHost(), keys=KEYS) as here:
            assert await here.ref(there.address("c"), Counter).call(Counter.add, 2) == 2
