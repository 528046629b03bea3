"""The keys of a job: from one secret of 32 bytes, a CURVE key pair for every role.

Construction: HKDF (RFC 5869) with HMAC over BLAKE2b-256. ``extract(salt="asyncrl job key 1", job key)`` gives a master;
``expand(master, "curve25519 ROLE")``, one block of 32 bytes, is the Curve25519 secret of a role (clamped where it is
used, as RFC 7748 says), its public key is libzmq's; ``expand(master, "token")`` is the token of the HELLO. So who holds the
job key can take any role, and neither a pair nor the token leads back to the master or to another pair.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Self

import msgspec
import zmq
from zmq.utils import z85

from asyncrl.errors import ConfigError

KEY_BYTES = 32
MAKE_KEY = "(umask 077; head -c 32 /dev/urandom > key)"
"""The command that makes a key file."""
KEY_DIFFERS = "the job key differs"
"""Begins every refusal of a caller, or of a server, that was given another key or none."""

CONTROLLER = "controller"
"""The role of a process that was started by nobody of the job."""
ROLES = (CONTROLLER, "rank", "agent", "reward", "shard", "engine", "worker")
"""The roles of a job that does not say which it has."""

_SALT = b"asyncrl job key 1"
_BLAKE2 = functools.partial(hashlib.blake2b, digest_size=KEY_BYTES)


def derive(master: bytes, label: str) -> bytes:
    """One block of HKDF's expand step."""
    return hmac.digest(master, label.encode() + b"\x01", _BLAKE2)


def public_key(secret: bytes) -> bytes:
    """The public key of a Curve25519 secret, 32 bytes each."""
    return z85.decode(zmq.curve_public(z85.encode(secret)))


class Keyring(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The keys that one process holds.

    ``servers`` and ``callers`` are the public keys of the roles that ``role`` may call, and that may call it. ``master`` and
    ``table`` are empty in the ring of a child: it can neither derive another pair nor take another role.
    """

    role: str
    secret: bytes
    token: bytes
    servers: dict[str, bytes]
    callers: dict[str, bytes]
    master: bytes = b""
    table: dict[str, list[str]] = {}

    @classmethod
    def from_job_key(cls, key: bytes, role: str, callers: Mapping[str, Sequence[str]] | None = None) -> Self:
        """The ring of a process that holds the job key.

        ``callers`` has every role of the job, and for each the roles that may call it; without it the roles are ``ROLES``, and
        all may call all. Every process of a job must use the same. Raises ConfigError for a key of another size, and for a
        role that ``callers`` does not have.
        """
        if len(key) != KEY_BYTES:
            raise ConfigError("job key", f"{len(key)} bytes", f"allowed: {KEY_BYTES} random bytes", f"make a file of them: {MAKE_KEY}")
        table = {each: list(ROLES) for each in ROLES} if callers is None else {each: list(may) for each, may in callers.items()}
        for each in [role, *(caller for may in table.values() for caller in may)]:
            if each not in table:
                raise ConfigError("role", each, f"allowed: {', '.join(table)}", "callers={role: the roles that may call it} names others")
        return cls._made(hmac.digest(_SALT, key, _BLAKE2), role, table, whole=True)

    @classmethod
    def _made(cls, master: bytes, role: str, table: dict[str, list[str]], whole: bool) -> Self:
        def publics(roles: Sequence[str]) -> dict[str, bytes]:
            return {each: public_key(derive(master, f"curve25519 {each}")) for each in roles}

        return cls(
            role=role,
            secret=derive(master, f"curve25519 {role}"),
            token=derive(master, "token"),
            servers=publics([each for each, may in table.items() if role in may]),
            callers=publics(table[role]),
            master=master if whole else b"",
            table=table if whole else {},
        )

    def for_role(self, role: str) -> Self:
        """The ring of a child: its own pair, and the public keys of its servers and callers.

        Raises ConfigError for a role that the job does not have, and when this ring is a child's itself.
        """
        if not self.master:
            raise ConfigError("role", role, f"allowed: {self.role}; a process without the job key makes no keys for others")
        if role not in self.table:
            raise ConfigError("role", role, f"allowed: {', '.join(self.table)}", "an actor class names it by process_role")
        return self._made(self.master, role, self.table, whole=False)

    @property
    def public(self) -> bytes:
        """This process's own public key."""
        return public_key(self.secret)

    def role_of(self, public: bytes) -> str:
        """The role of a caller by its public key, "" for a stranger and for a role that may not call this one."""
        return next((role for role, known in self.callers.items() if known == public), "")

    def __repr__(self) -> str:
        return f"Keyring(role={self.role!r}, servers={list(self.servers)}, callers={list(self.callers)})"
