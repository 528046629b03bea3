"""Who may talk to whom: the job token, incarnations, and folders that only this user can enter."""

import hmac

import msgspec

from asyncrl.errors import ConfigError
from asyncrl.runtime.host import Host, make_private_folder
from asyncrl.runtime.messages import SCHEMA, VERSION, ActorAddress, Hello

TOKEN_BYTES = 32
TOKEN_DIFFERS = "the job token differs"
"""The refusal of a caller that has another token."""
LONGEST_IPC_PATH = 107
"""Bytes of a unix socket's path on Linux."""


class Identity(msgspec.Struct):
    """Who a process is. ``attempt`` is the job's nonce, ``generation`` counts the lives of a process name."""

    process: str
    attempt: str = ""
    generation: int = 0
    token: bytes = b""

    def hello_to(self, address: ActorAddress) -> Hello:
        """The first message to another process."""
        return Hello(VERSION, SCHEMA, self.process, self.attempt, self.generation, self.token, address.process, address.generation)

    def refusal_of(self, hello: Hello, newest: int) -> str:
        """Why a caller is refused, "" when it is welcome. ``newest`` is the highest generation seen of its name."""
        if not hmac.compare_digest(hello.token, self.token):
            return TOKEN_DIFFERS
        if hello.version != VERSION or hello.schema != SCHEMA:
            return f"version {hello.version} (schema {hello.schema}) calls version {VERSION} (schema {SCHEMA})"
        if hello.attempt != self.attempt:
            return f"attempt {hello.attempt!r} calls attempt {self.attempt!r}"
        if hello.generation < newest:
            return f"generation {hello.generation} of {hello.process} calls after generation {newest} was seen"
        if (hello.target, hello.target_generation) != (self.process, self.generation):
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


def process_endpoint(folder: str, name: str, interface: str) -> str:
    """Where process ``name`` listens: a socket in ``folder``, or a free tcp port of ``interface``, an address in figures."""
    return f"tcp://{interface}:*" if interface else ipc_endpoint(folder, name)
