"""Connections with keys: who gets through, and how everybody else is named on both sides within three seconds."""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq

from asyncrl.errors import PermissionDenied, Undeliverable
from asyncrl.runtime import Actor, ActorAddress, ActorSystem, Keyring, MemoryNetwork, RealHost, SupervisorClient, endpoint, outgoing
from asyncrl.runtime.handshake import MOST_BROKEN_OFF
from asyncrl.runtime.messages import SCHEMA, VERSION, Call, Hello
from tests.unit.runtime.conftest import ROOT
from tests.unit.runtime.runtime_actors import Caller, Counter

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
HOST = RealHost()
CALLERS = {"controller": ("controller", "rank", "agent"), "rank": ("controller", "rank"), "agent": ("controller",), "reward": ()}
LIMIT = 9.0
"""Three times the promise."""


def ring(role: str, key: bytes = KEY) -> Keyring:
    return Keyring.from_job_key(key, role, CALLERS)


def with_servers(keys: Keyring, of: Keyring) -> Keyring:
    return msgspec.structs.replace(keys, servers=of.servers)


def bound(process: str, keys: Keyring | None, *, token: bytes = b"", handshake_seconds: float = 10.0) -> ActorSystem:
    return ActorSystem.bind(process, "tcp://127.0.0.1:*", host=HOST, token=token, keys=keys, handshake_seconds=handshake_seconds)


COMBINATIONS = {
    "another job key": (ring("controller"), ring("rank", OTHER_KEY), "has another key, or none", "a caller expects another key of role"),
    "a caller without a key": (ring("controller"), None, "this process has none", "a caller has none"),
    "a callee without a key": (None, ring("rank"), "has another key, or none", "a caller has one, this process has none"),
    "a callee with another key": (
        ring("controller", OTHER_KEY),
        ring("rank"),
        "has another key, or none",
        "a caller expects another key of role controller",
    ),
    "a caller that knows the callee's key and has none of the job's": (
        ring("controller"),
        with_servers(ring("rank", OTHER_KEY), ring("rank")),
        "knows no key of a caller with role rank",
        "shows no key of controller, rank, agent",
    ),
    "a role that may not call": (
        ring("controller"),
        with_servers(ring("reward"), ring("rank")),
        "knows no key of a caller with role reward",
        "or the role may not call controller: the caller at 127.0.0.1",
    ),
}


@pytest.mark.parametrize("name", COMBINATIONS)
async def test_keys_that_do_not_fit_are_named_on_both_sides_and_no_message_arrives(name: str, caplog: pytest.LogCaptureFixture) -> None:
    callee, caller, said_there, logged_here = COMBINATIONS[name]
    token = ring("controller").token
    caplog.set_level(logging.WARNING)
    async with bound("there", callee, token=token) as there, bound("here", caller, token=token) as here:
        counter = await there.spawn(Counter, name="c")
        async with asyncio.timeout(LIMIT):
            with pytest.raises(Undeliverable, match="the job key differs") as caught:
                await here.ref(there.address("c"), Counter).call(Counter.add, 1)
        assert said_there in caught.value.reason
        assert there.endpoint in caught.value.reason
        assert await counter.call(Counter.add, 0) == 0
        assert 1 <= there.refusals <= MOST_BROKEN_OFF
        # Where one side has no key both see it, and the one that sees it first hangs up.
        hung_up = "a caller broke off the handshake: the job key differs" in caplog.text
        assert logged_here in caplog.text or ((callee is None or caller is None) and hung_up)
        # The caller has let go: nobody but the next call knocks, and that as often at most.
        with pytest.raises(Undeliverable):
            await here.ref(there.address("c"), Counter).call(Counter.add, 1)
        assert there.refusals <= 2 * MOST_BROKEN_OFF


async def test_a_role_without_the_callees_key_does_not_even_connect() -> None:
    async with bound("there", ring("rank")) as there, bound("here", ring("agent")) as here:
        await there.spawn(Counter, name="c")
        with pytest.raises(Undeliverable, match="role 'agent' has no key of role 'rank'; it may call controller"):
            await here.ref(there.address("c"), Counter).call(Counter.add, 1)
        assert there.refusals == 0


async def test_a_key_of_one_role_cannot_speak_for_another() -> None:
    liar = msgspec.structs.replace(ring("agent"), role="rank")
    async with bound("there", ring("controller")) as there, bound("rank1", liar) as here:
        counter = await there.spawn(Counter, name="c")
        with pytest.raises(Undeliverable, match="rank1 says that its role is 'rank', its key is that of 'agent'"):
            await here.ref(there.address("c"), Counter).call(Counter.add, 1)
        assert await counter.call(Counter.add, 0) == 0
        # The call that followed the hello at once is refused too.
        assert there.refusals in (1, 2)


async def test_a_caller_of_another_role_cannot_fence_the_owner_of_a_name() -> None:
    async with bound("there", ring("controller")) as there, bound("rank1", ring("rank")) as owner:
        await there.spawn(Counter, name="c")
        thief = ActorSystem.bind("rank1", "tcp://127.0.0.1:*", host=HOST, keys=ring("agent"), generation=7)
        async with thief:
            assert await thief.ref(there.address("c"), Counter).call(Counter.add, 1) == 1
        assert await owner.ref(there.address("c"), Counter).call(Counter.add, 1) == 2


def raw_caller(context: "zmq.Context[zmq.Socket[bytes]]", there: ActorSystem, keys: Keyring, identity: bytes) -> "zmq.Socket[bytes]":
    """A connection with a key of its own and a routing id of its choice."""
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.ROUTING_ID, identity)
    dealer.setsockopt(zmq.CURVE_SERVERKEY, keys.servers["controller"])
    dealer.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
    dealer.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
    dealer.connect(there.endpoint)
    return dealer


async def test_the_routing_id_of_a_caller_that_is_gone_gives_no_rights_to_another_role() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    loop = asyncio.get_running_loop()
    call = Call(1, "g", "guarded", "call", 9.0, 0.0, 0, -1, 0, "", msgspec.Raw(msgspec.msgpack.encode([])))

    def talk(keys: Keyring, *messages: msgspec.Struct) -> list[bytes]:
        dealer = raw_caller(context, there, keys, b"chosen")
        for message in messages:
            dealer.send(msgspec.msgpack.encode(message))
        answers = [dealer.recv() for _ in messages]
        dealer.close(linger=0)
        return answers

    async with bound("there", ring("controller")) as there:
        await there.spawn(Guarded, name="g")
        hello = Hello(VERSION, SCHEMA, "rank1", "", 0, ring("rank").token, "there", 0, "rank")
        welcome, reply = await loop.run_in_executor(None, talk, ring("rank"), hello, call)
        assert (b"welcome" in welcome, b"reply" in reply) == (True, True)
        (answer,) = await loop.run_in_executor(None, talk, ring("agent"), msgspec.structs.replace(call, id=2))
        assert b"a message came before the hello" in answer
    context.term()


class Guarded(Actor):
    """Asks who calls."""

    @endpoint(roles=("rank", "controller"))
    async def guarded(self) -> tuple[str, str]:
        return self.context.caller, self.context.caller_role

    @endpoint(roles=("controller",))
    async def numbers(self) -> AsyncIterator[int]:
        yield 1


@pytest.mark.parametrize("kind", ["memory", "ipc", "tcp with keys"])
async def test_an_endpoint_with_roles_serves_them_and_names_them_to_others(kind: str, folder: str) -> None:
    network = MemoryNetwork()

    def make(process: str, role: str) -> ActorSystem:
        if kind == "memory":
            return ActorSystem.local(process=process, network=network, role=role)
        if kind == "ipc":
            return ActorSystem.bind(process, f"ipc://{folder}/{process}.sock", host=HOST, role=role)
        return bound(process, ring(role))

    async with make("there", "controller") as there, make("rank1", "rank") as rank, make("agent-0", "agent") as agent:
        own = await there.spawn(Guarded, name="g")
        address = there.address("g")
        assert address.role == "controller"
        assert await rank.ref(address, Guarded).call(Guarded.guarded) == ("rank1", "rank")
        assert await own.call(Guarded.guarded) == ("there", "controller")
        with pytest.raises(
            PermissionDenied, match=r"Guarded\.guarded of g@there refuses role 'agent'; allowed: rank, controller"
        ) as caught:
            await agent.ref(address, Guarded).call(Guarded.guarded)
        assert (caught.value.role, tuple(caught.value.allowed)) == ("agent", ("rank", "controller"))
        async with aclosing(rank.ref(address, Guarded).stream(Guarded.numbers)) as numbers:
            with pytest.raises(PermissionDenied, match="refuses role 'rank'; allowed: controller"):
                await anext(numbers)
        async with aclosing(own.stream(Guarded.numbers)) as numbers:
            assert [number async for number in numbers] == [1]


async def test_a_process_that_is_connected_and_says_nothing_is_named_with_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "WELCOME_SECONDS", 0.3)
    # The kernel takes the connection; nobody reads from it.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        where = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        silent = ActorAddress("silent", where, "c", "", 0, "controller")
        async with bound("here", ring("rank")) as here:
            with pytest.raises(Undeliverable, match=rf"no welcome within 0\.3 s: connected to {where}, no answer to the handshake"):
                await here.ref(silent, Counter).watched(60).call(Counter.add, 1)


async def test_a_child_holds_its_own_keys_alone_and_shows_none_of_them(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", ROOT)
    keys = Keyring.from_job_key(KEY, "controller", {"controller": ("controller", "worker"), "worker": ("controller",)})
    client = SupervisorClient.start(
        host=HOST, folder=folder, log_folder=str(tmp_path), attempt="a1", env_allow=["PYTHONPATH"], interface="127.0.0.1"
    )
    client.attach_loop(lambda death: None)
    async with ActorSystem.bind("main", "tcp://127.0.0.1:*", host=HOST, attempt="a1", keys=keys) as system:
        system.attach(client)
        counter = await system.spawn(Counter, name="counter", process="counter-0")
        caller = await system.spawn(Caller, name="caller", process="caller-0")
        assert counter.address.role == "worker"
        assert await counter.call(Counter.add, 2) == 2
        with pytest.raises(Undeliverable, match="role 'worker' has no key of role 'worker'; it may call controller"):
            await caller.call(Caller.relay, counter.address, 1)
        async with ActorSystem.bind(
            "stranger", "tcp://127.0.0.1:*", host=HOST, attempt="a1", keys=ring("controller", OTHER_KEY)
        ) as stranger:
            there = msgspec.structs.replace(counter.address, role="controller")
            with pytest.raises(Undeliverable, match="the job key differs"):
                await stranger.ref(there, Counter).call(Counter.add, 1)
        secrets = [KEY, keys.master, keys.secret, keys.for_role("worker").secret, keys.token]
        processes = [psutil.Process(client.pid), *(psutil.Process(client.pid_of(name)) for name in ("counter-0", "caller-0"))]
        for process in processes:
            shown = f"{process.cmdline()} {process.environ()}".encode(errors="surrogateescape")
            assert not [secret for secret in secrets if secret in shown or secret.hex().encode() in shown]
    await client.stop(grace=2.0)
    logged = b"".join([path.read_bytes() for path in sorted(tmp_path.iterdir())])  # noqa: ASYNC240
    assert b"a caller expects another key of role worker" in logged
    assert not [secret for secret in secrets if secret in logged or secret.hex().encode() in logged]


async def test_silent_strangers_are_dropped_and_do_not_keep_a_caller_out() -> None:
    within = 0.7
    began = time.monotonic()

    async def until_dropped() -> float:
        reader, writer = await asyncio.open_connection(*there.endpoint.removeprefix("tcp://").split(":"))
        await reader.read()
        writer.close()
        return time.monotonic() - began

    async with bound("there", ring("controller"), handshake_seconds=within) as there, bound("here", ring("rank")) as here:
        await there.spawn(Counter, name="c")
        strangers = asyncio.gather(*[until_dropped() for _ in range(500)])
        async with asyncio.timeout(3.0):
            assert await here.ref(there.address("c"), Counter).call(Counter.add, 1) == 1
        assert max(await strangers) < 3 * (within + 2.0)
        assert await here.ref(there.address("c"), Counter).call(Counter.add, 1) == 2
