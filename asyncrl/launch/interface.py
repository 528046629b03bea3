"""Where the processes of one node listen, when there are several nodes: one address of this host, never all of them."""

import ipaddress
import socket
from dataclasses import dataclass

import psutil

from asyncrl.config.schema.runtime import Runtime
from asyncrl.errors import ConfigError

LOOPBACK = "lo"


@dataclass(frozen=True, slots=True)
class Interface:
    """An address of this host in figures, the name of its interface, and a range of ports ("" = any)."""

    name: str
    address: str
    ports: str = ""


def find_interface(runtime: Runtime) -> Interface:
    """What ``runtime.interface``, a name or an address, is on this host. Raises ConfigError, with what there is, when it is nothing."""
    ports = runtime.port_range or ""
    addresses = _addresses()
    for interface in addresses:
        if runtime.interface in (interface.name, interface.address):
            return Interface(interface.name, interface.address, ports)
    if _is_loopback(runtime.interface):
        return Interface(LOOPBACK, runtime.interface, ports)
    here = ", ".join(f"{each.name} ({each.address})" for each in addresses)
    raise ConfigError("runtime.interface", runtime.interface, f"allowed on this host: {here}")


def _addresses() -> list[Interface]:
    """Every address that sockets can be bound to; IPv4 first, so that a name means that."""
    found = psutil.net_if_addrs()
    families = (socket.AF_INET, socket.AF_INET6)
    return [
        Interface(name, each.address)
        for family in families
        for name, each_of in found.items()
        for each in each_of
        # With a scope (fe80::1%eth0) an address means something on this host only.
        if each.family == family and "%" not in each.address
    ]


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def is_loopback_endpoint(endpoint: str) -> bool:
    """Whether only this host reaches a tcp endpoint."""
    return _is_loopback(endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]"))
