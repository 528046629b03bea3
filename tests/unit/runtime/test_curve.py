"""The keys that are derived from a job key, and what a process does that has the wrong ones."""

import hashlib

import msgspec
import pytest

from asyncrl.errors import ConfigError
from asyncrl.runtime import Keyring
from asyncrl.runtime.curve import ROLES

KEY = bytes(range(32))
CALLERS = {"controller": ("controller", "worker"), "worker": ("controller",)}


def blake2b(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()


def hmac_by_hand(key: bytes, message: bytes) -> bytes:
    """RFC 2104 with BLAKE2b-256, whose block has 128 bytes."""
    padded = key.ljust(128, b"\0")
    inner = blake2b(bytes(each ^ 0x36 for each in padded) + message)
    return blake2b(bytes(each ^ 0x5C for each in padded) + inner)


def x25519_base(secret: bytes) -> bytes:
    """The public key by the Montgomery ladder of RFC 7748, section 5."""
    p = 2**255 - 19
    scalar = int.from_bytes(secret, "little") & ~7 & ~(128 << 8 * 31) | 64 << 8 * 31
    x1, x2, z2, x3, z3 = 9, 1, 0, 9, 1
    for bit in reversed(range(255)):
        swap = scalar >> bit & 1
        if swap:
            x2, x3, z2, z3 = x3, x2, z3, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb = d * a, c * b
        x3, z3 = (da + cb) ** 2 % p, x1 * (da - cb) ** 2 % p
        e = a * a - b * b
        x2, z2 = a * a * b * b % p, e * (a * a + 121665 * e) % p
        if swap:
            x2, x3, z2, z3 = x3, x2, z3, z2
    return (x2 * pow(z2, -1, p) % p).to_bytes(32, "little")


def test_a_pair_is_that_of_the_documented_construction() -> None:
    master = hmac_by_hand(b"asyncrl job key 1", KEY)
    secret = hmac_by_hand(master, b"curve25519 agent\x01")
    ring = Keyring.from_job_key(KEY, "agent")
    assert ring.secret == secret
    assert ring.public == x25519_base(secret)
    assert ring.token == hmac_by_hand(master, b"token\x01")


def test_every_role_has_a_pair_of_its_own_and_all_processes_derive_the_same() -> None:
    rings = {role: Keyring.from_job_key(KEY, role) for role in ROLES}
    assert len({ring.secret for ring in rings.values()}) == len(ROLES)
    assert len({ring.token for ring in rings.values()}) == 1
    for role, ring in rings.items():
        assert ring.servers == ring.callers == {each: rings[each].public for each in ROLES}
        assert ring.role_of(rings["shard"].public) == "shard"
        assert rings["controller"].for_role(role).secret == ring.secret
    other = Keyring.from_job_key(bytes(32), "agent")
    assert rings["agent"].role_of(other.public) == ""


def test_a_child_gets_its_own_pair_and_the_public_keys_of_whom_it_may_call_and_admit() -> None:
    whole = Keyring.from_job_key(KEY, "controller", CALLERS)
    ring = whole.for_role("worker")
    assert (list(ring.servers), list(ring.callers)) == (["controller"], ["controller"])
    assert ring.servers["controller"] == whole.public
    assert (ring.master, ring.table) == (b"", {})
    papers = msgspec.msgpack.encode(ring)
    assert ring.secret in papers
    assert KEY not in papers
    assert whole.secret not in papers
    assert whole.master not in papers
    assert msgspec.msgpack.decode(papers, type=Keyring) == ring
    with pytest.raises(ConfigError, match="a process without the job key makes no keys for others"):
        ring.for_role("controller")


def test_secrets_are_not_in_the_text_of_a_keyring() -> None:
    ring = Keyring.from_job_key(KEY, "controller", CALLERS)
    assert repr(ring) == "Keyring(role='controller', servers=['controller', 'worker'], callers=['controller', 'worker'])"


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_of_another_size_is_refused_with_the_command_that_makes_one(size: int) -> None:
    with pytest.raises(ConfigError, match=rf"got '{size} bytes'; allowed: 32 random bytes .*head -c 32 /dev/urandom > key"):
        Keyring.from_job_key(bytes(size), "controller")


def test_a_role_that_the_job_does_not_have_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(ConfigError, match=r"role: got 'judge'; allowed: controller, rank, agent, reward, shard, engine, worker"):
        Keyring.from_job_key(KEY, "judge")
    with pytest.raises(ConfigError, match=r"role: got 'judge'; allowed: worker"):
        Keyring.from_job_key(KEY, "worker", {"worker": ("judge",)})
    with pytest.raises(ConfigError, match=r"role: got 'judge'; allowed: controller, worker"):
        Keyring.from_job_key(KEY, "worker", CALLERS).for_role("judge")
