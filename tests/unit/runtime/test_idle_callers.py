"""Callers without calls: one that is gone without a goodbye is noticed, and one that is there costs next to nothing."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
import zmq
import zmq.asyncio

from asyncrl.runtime import Keyring, Liveness, RealHost
from asyncrl.runtime.incoming import PULSE, PULSE_SECONDS, Incoming
from asyncrl.runtime.messages import SCHEMA, TO_CALLER, VERSION, Hello, Message, Welcome
from asyncrl.runtime.security import Identity
from asyncrl.runtime.shared_memory import BUDGET, SharedMemory
from asyncrl.runtime.sharing_messages import MARK
from asyncrl.runtime.sharing_transport import sharing
from asyncrl.runtime.simulation import Faults, NetworkEvent, Simulation
from asyncrl.runtime.site import Site
from asyncrl.runtime.waits import WaitRegistry
from asyncrl.runtime.zeromq import ZeroMQTransport
from tests.unit.runtime.runtime_actors import Counter, Slow

IDLE = 0.3
LENIENCE = 3.0
KEYS = Keyring.from_job_key(b"k" * 32, "controller")


class Callee:
    """The accepting end of a process, as far as it knows callers. ``gone`` is set when one has left."""

    def __init__(self, endpoint: str, keys: Keyring | None) -> None:
        host = RealHost()
        self.memory = SharedMemory(host, BUDGET)
        self.transport = sharing(ZeroMQTransport(endpoint, keys), self.memory)
        self.gone = asyncio.Event()
        site = Site(Identity("there", role="controller", token=KEYS.token if keys else b"", keys=keys), host, WaitRegistry(host))
        self.transport.listen(lambda link: Incoming(site, link, lambda greeted: None, lambda left: self.gone.set(), IDLE))


class RawCaller:
    """A caller of which only the sockets are there."""

    def __init__(self, endpoint: str, keys: Keyring | None) -> None:
        self.context = zmq.asyncio.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        if keys is not None:
            self.socket.setsockopt(zmq.CURVE_SERVERKEY, keys.servers["controller"])
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
            self.socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
        self.socket.connect(endpoint)
        self._token = keys.token if keys else b""

    async def greet(self) -> None:
        hello = Hello(VERSION, SCHEMA, "caller", "", 0, self._token, "there", 0, "controller")
        await self.socket.send(msgspec.msgpack.encode(hello))
        assert isinstance(await self.heard(), Welcome)

    async def heard(self) -> Message:
        """The next message, without what is said about shared memory."""
        while (frame := await self.socket.recv())[:1] == MARK:
            pass
        message: Message = msgspec.msgpack.decode(frame, type=TO_CALLER)
        return message

    def vanish(self) -> None:
        """As a process that was killed: its sockets close, and say nothing."""
        self.socket.close()
        self.context.term()


@pytest.mark.parametrize("kind", ["ipc", "tcp", "tcp with keys"])
async def test_a_caller_that_vanishes_while_it_has_no_calls_is_noticed(folder: str, kind: str) -> None:
    keys = KEYS if kind == "tcp with keys" else None
    callee = Callee(f"ipc://{folder}/there.sock" if kind == "ipc" else "tcp://127.0.0.1:*", keys)
    caller = RawCaller(callee.transport.endpoint, keys)
    try:
        async with asyncio.timeout(LENIENCE * 1.0):
            await caller.greet()
        async with asyncio.timeout(LENIENCE * IDLE):
            assert await caller.heard() == PULSE
        assert not callee.gone.is_set()
        assert bool(callee.memory.borrowers) == (kind == "ipc")
    finally:
        caller.vanish()
    async with asyncio.timeout(LENIENCE * IDLE):
        await callee.gone.wait()
    # With the connection everything goes that was kept for it: what it had on loan, and what it had lent.
    assert not callee.memory.borrowers
    await callee.transport.close()
    await callee.memory.close()


def pulses(seconds: float, routers: float) -> int:
    """How many messages an idle caller gets in so many virtual seconds, after it has made one call."""
    simulation = Simulation(1, Faults(routers=routers))
    sent: list[Sequence[memoryview]] = []

    def watch(event: NetworkEvent) -> None:
        if (event.kind, event.source) == ("sent", "there#0"):
            sent.append(event.frames)

    async def main() -> int:
        async with simulation.system("there") as there, simulation.system("here") as here:
            await there.spawn(Counter, name="counter")
            await here.ref(there.address("counter"), Counter).call(Counter.add, 1)
            await asyncio.sleep(PULSE_SECONDS + 1)
            simulation.network.watchers.append(watch)
            await asyncio.sleep(seconds)
            simulation.network.watchers.remove(watch)
            assert await here.ref(there.address("counter"), Counter).call(Counter.add, 1) == 2
        return len(sent)

    return simulation.run(main)


def test_a_caller_without_calls_is_sent_one_message_in_each_time_after_which_a_silent_process_is_dead() -> None:
    expected = 1000.0 / Liveness().dead_after
    assert expected - 1 <= pulses(1000.0, routers=1.0) <= expected + 1


def test_where_the_end_of_a_caller_is_told_nothing_asks_for_it() -> None:
    assert pulses(1000.0, routers=0.0) == 0


def test_a_call_after_a_long_rest_is_felt_for_as_soon_as_any() -> None:
    """The pulse of a caller with calls does not wait for that of one without."""
    simulation = Simulation(1, Faults(routers=1.0))
    pulse = msgspec.msgpack.encode(PULSE)
    felt: list[float] = []

    def watch(event: NetworkEvent) -> None:
        if event.kind == "sent" and bytes(event.frames[0]) == pulse:
            felt.append(event.time)

    async def main() -> None:
        async with simulation.system("there") as there, simulation.system("here") as here:
            await there.spawn(Slow, name="slow")
            slow = here.ref(there.address("slow"), Slow)
            assert await slow.call(Slow.made) == 0
            await asyncio.sleep(PULSE_SECONDS + 10.5 * Liveness().dead_after)
            simulation.network.watchers.append(watch)
            began = asyncio.get_running_loop().time()
            call = asyncio.ensure_future(slow.call(Slow.hang))
            await asyncio.sleep(1.5 * PULSE_SECONDS)
            assert [round(at - began, 1) for at in felt] == [PULSE_SECONDS]
            call.cancel()
            await asyncio.wait([call])

    simulation.run(main)
