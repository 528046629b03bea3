"""Where a process may listen: sockets in a folder, addresses in figures, and other addresses than the loopback only with keys."""

import ipaddress
from collections.abc import Iterator

from asyncrl.errors import ConfigError
from asyncrl.runtime.curve import MAKE_KEY

ANY = "*"
"""As a port: a free one that the kernel picks."""


def check_endpoint(endpoint: str, keyed: bool) -> None:
    """Raises ConfigError for an endpoint that this process must not listen at."""
    scheme, _, rest = endpoint.partition("://")
    if scheme == "ipc":
        return
    if scheme != "tcp":
        raise ConfigError("endpoint", endpoint, "allowed: ipc:///path.sock, tcp://ADDRESS:PORT, tcp://ADDRESS:FIRST-LAST, tcp://ADDRESS:*")
    host = rest.rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address("0.0.0.0" if host == ANY else host)
    except ValueError:
        allowed = "allowed: one address of this host in figures; a name may resolve to more than is meant"
        raise ConfigError("endpoint", endpoint, allowed) from None
    if address.is_unspecified:
        raise ConfigError("endpoint", endpoint, "this is every interface of the host; allowed: one address, as 127.0.0.1")
    if not address.is_loopback and not keyed:
        how = f"make a key, {MAKE_KEY}, and give keys=Keyring.from_job_key(...)"
        raise ConfigError("endpoint", endpoint, "allowed without keys: ipc, and the loopback", how)


def ports_of(endpoint: str) -> Iterator[str]:
    """The endpoints of a range of ports, "tcp://127.0.0.1:29600-29700"; any other endpoint as it is. Raises ConfigError for no range."""
    head, _, ports = endpoint.rpartition(":")
    if not endpoint.startswith("tcp://") or "-" not in ports:
        yield endpoint
        return
    first, last = range_of(ports)
    yield from (f"{head}:{port}" for port in range(first, last + 1))


def range_of(ports: str) -> tuple[int, int]:
    """First and last of "29600-29700". Raises ConfigError when it is no range."""
    first, _, last = ports.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) < 65536):
        raise ConfigError("port_range", ports, "allowed: FIRST-LAST, as 29600-29700, from 1 to 65535")
    return int(first), int(last)
