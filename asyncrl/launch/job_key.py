"""The key of a job on several nodes: the same 32 bytes in a file on each node, which only its user can read.

Each rank reads it and derives the keys of every role from it. Other processes are given those of their own role.
"""

import os
import stat
from collections.abc import Mapping

from asyncrl.errors import ConfigError
from asyncrl.runtime.curve import CONTROLLER, KEY_BYTES, MAKE_KEY, Keyring

KEY_FILE = "ASYNCRL_KEY_FILE"
"""The environment variable that names the file."""

HOW = f"{MAKE_KEY}, then the same file on each node and export ASYNCRL_KEY_FILE=$PWD/key"

RANK = "rank"
CHILDREN = ("agent", "reward", "shard", "engine")
EVERYBODY = (CONTROLLER, RANK, *CHILDREN)
CALLERS = {
    CONTROLLER: EVERYBODY,
    RANK: EVERYBODY,
    "agent": (CONTROLLER, RANK),
    "reward": (CONTROLLER, RANK, "agent"),
    "shard": (CONTROLLER, RANK, "agent"),
    "engine": (CONTROLLER, RANK, "agent"),
}
"""The roles of a run, and for each who may connect to it. What a caller may ask there is said by the endpoints' ``roles``."""


def role_of(rank: int) -> str:
    """The role of a rank's process: rank 0 has the controller in it."""
    return CONTROLLER if rank == 0 else RANK


def job_keys(key: bytes, rank: int) -> Keyring:
    """The keys of a rank."""
    return Keyring.from_job_key(key, role_of(rank), CALLERS)


def read_job_key(environment: Mapping[str, str]) -> bytes:
    """The job's key. Raises ConfigError, with the command that makes one, when it is missing, open to others or of a wrong size."""
    path = environment.get(KEY_FILE)
    if not path:
        raise ConfigError(KEY_FILE, path, "several nodes need a key file on each", f"make one: {HOW}")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(KEY_FILE, path, f"it cannot be read: {error.strerror}", f"make one: {HOW}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(KEY_FILE, path, "allowed: a file", f"make one: {HOW}")
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            seen = f"its mode is {stat.S_IMODE(status.st_mode):04o}, its owner {status.st_uid}"
            raise ConfigError(KEY_FILE, path, f"{seen}; allowed: 0600, owned by user {os.geteuid()}", f"chmod 600 {path}")
        key = os.read(descriptor, KEY_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(key) != KEY_BYTES:
        size = f"more than {KEY_BYTES}" if len(key) > KEY_BYTES else len(key)
        raise ConfigError(KEY_FILE, path, f"it holds {size} bytes; allowed: {KEY_BYTES} random ones", f"make one: {HOW}")
    return key
