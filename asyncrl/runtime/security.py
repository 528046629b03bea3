"""Who may talk to whom: the job token, roles, incarnations, and folders that only this user can enter."""

import hmac

import msgspec

from asyncrl.errors import ConfigError
from asyncrl.runtime.curve import Keyring
from asyncrl.runtime.endpoints import ANY
from asyncrl.runtime.host import Host, make_private_folder
from asyncrl.runtime.messages import SCHEMA, VERSION, ActorAddress, Hello, check_name

TOKEN_BYTES = 32
TOKEN_DIFFERS = "the job token differs"
"""The refusal of a caller that has another token."""
LONGEST_IPC_PATH = 107
"""Bytes of a unix socket's path on Linux."""


class Identity(msgspec.Struct):
    """Who a process is. ``attempt`` is the job's nonce, ``generation`` counts the lives of a process name.

    ``followed``: a directory tells of it, so that who called an earlier life may call this one.
    """

    process: str
    attempt: str = ""
    generation: int = 0
    token: bytes = b""
    role: str = ""
    keys: Keyring | None = None
    followed: bool = False

    def __post_init__(self) -> None:
        for what, name in (("name", self.process), ("attempt", self.attempt), ("role", self.role)):
            check_name(f"the {what} of a process", name)

    def __repr__(self) -> str:
        return f"Identity({self.process!r}, attempt={self.attempt!r}, generation={self.generation}, role={self.role!r})"

    def hello_to(self, address: ActorAddress) -> Hello:
        """The first message to another process."""
        target = address.process, address.generation
        return Hello(VERSION, SCHEMA, self.process, self.attempt, self.generation, self.token, *target, self.role)

    def refusal_of(self, hello: Hello, newest: int, proven: str = "") -> str:
        """Why a caller is refused, "" when it is welcome.

        ``newest`` is the highest generation seen of its role and name. ``proven`` is the role of the key that it has shown, ""
        where connections have no keys: then its word is taken.
        """
        if not hmac.compare_digest(hello.token, self.token):
            return TOKEN_DIFFERS
        if proven and hello.role != proven:
            return f"{hello.process} says that its role is {hello.role!r}, its key is that of {proven!r}"
        if hello.version != VERSION or hello.schema != SCHEMA:
            return f"version {hello.version} (schema {hello.schema}) calls version {VERSION} (schema {SCHEMA})"
        if hello.attempt != self.attempt:
            return f"attempt {hello.attempt!r} calls attempt {self.attempt!r}"
        if hello.generation < newest:
            return f"generation {hello.generation} of {hello.process} calls after generation {newest} was seen"
        renewed = self.followed and hello.target_generation < self.generation
        if hello.target != self.process or not (renewed or hello.target_generation == self.generation):
            called = f"{hello.target} (generation {hello.target_generation})"
            return f"{called} was called, this is {self.process} (generation {self.generation})"
        return ""


def make_token(host: Host) -> bytes:
    """A fresh job token; travels only by inherited descriptors and sockets, never in argv or environment."""
    return host.entropy(TOKEN_BYTES)


def private_folder() -> str:
    """A new folder for ipc sockets, mode 0700, with a short path (/tmp/asyncrl-xxxxxxxx)."""
    return make_private_folder("asyncrl-")


def ipc_endpoint(folder: str, name: str) -> str:
    """The endpoint of process ``name``. Raises ConfigError when the kernel would cut the path."""
    path = f"{folder}/{name}.sock"
    if len(path.encode()) > LONGEST_IPC_PATH:
        raise ConfigError("", path, f"the path of an ipc socket has at most {LONGEST_IPC_PATH} bytes", "use a shorter folder")
    return f"ipc://{path}"


def process_endpoint(folder: str, name: str, interface: str, ports: str = "") -> str:
    """Where process ``name`` listens: a socket in ``folder``, or a tcp port of ``interface``, an address in figures.

    ``ports`` is a range, "29600-29700", of which the first free one is taken; "" is any free port.
    """
    return tcp_endpoint(interface, ports) if interface else ipc_endpoint(folder, name)


def tcp_endpoint(interface: str, ports: str = "") -> str:
    """A port of ``interface``, of the range ``ports`` if there is one."""
    return f"tcp://[{interface}]:{ports or ANY}" if ":" in interface else f"tcp://{interface}:{ports or ANY}"
