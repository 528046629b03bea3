"""What a connection leaves behind when it is over: nothing at its process, and no call that runs for nobody."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest

from asyncrl.errors import ActorDied, ActorError
from asyncrl.runtime import ActorAddress, ActorSystem, MemoryNetwork, RealHost
from asyncrl.runtime.memory import MemoryTransport
from asyncrl.runtime.messages import TO_CALLER, Call, Message, Refused
from asyncrl.runtime.outgoing import Outgoing
from asyncrl.runtime.security import Identity
from asyncrl.runtime.transport import Link
from tests.unit.runtime.runtime_actors import Counter, Slow


class Far:
    """The receiver of a link. What comes is answered with ``answer``, and b"" hangs up."""

    admitted = True

    def __init__(self, link: Link | None = None, answer: bytes | None = None) -> None:
        self._link, self._answer = link, answer
        self.heard: list[Message] = []
        self.ended = asyncio.Event()

    def received(self, frames: Sequence[memoryview]) -> None:
        if self._link is None:
            self.heard.append(msgspec.msgpack.decode(frames[0], type=TO_CALLER))
        elif self._answer:
            self._link.send([self._answer])
        else:
            self._link.close()

    def lost(self, cause: str) -> None:
        self.ended.set()
        if self._link is not None:
            self._link.close()

    def refused(self, cause: str) -> None:
        self.lost(cause)

    def broken(self, seen: str) -> None:
        self.lost(seen)


class Peers:
    """A caller ``here``, and the peers that come and go. Each end of a connection is one of the functions below."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.here = ActorSystem.local(process="here", network=self.network)
        self.connections: list[weakref.ref[Outgoing]] = []
        self._count = 0

    def name(self) -> str:
        self._count += 1
        return f"peer-{self._count}"

    async def connected(self, identity: Identity) -> ActorSystem:
        """A peer that has answered a call."""
        peer = ActorSystem(identity, RealHost(), MemoryTransport(f"memory://{identity.process}", self.network))
        await peer.spawn(Counter, name="counter")
        await self.call(peer.address("counter"))
        return peer

    async def call(self, address: ActorAddress) -> None:
        found = self.here.outgoing(address)
        assert found is not None
        self.connections.append(weakref.ref(found))
        del found
        await self.here.ref(address, Counter).with_deadline(3).call(Counter.add, 1)

    async def answered(self, answer: bytes) -> None:
        """Calls a peer that has this answer to everything."""
        name = self.name()
        transport = MemoryTransport(f"memory://{name}", self.network)
        transport.listen(lambda link: Far(link, answer))
        with pytest.raises(ActorError):
            await self.call(ActorAddress(name, transport.endpoint, "counter"))
        await transport.close()


async def goodbye(peers: Peers) -> None:
    peer = await peers.connected(Identity(peers.name(), role="controller"))
    await peer.close()


async def word_of_a_death(peers: Peers) -> None:
    peer = await peers.connected(Identity(peers.name(), role="controller"))
    peers.here.peer_died(peer.process, "gone")
    await peer.close()


async def a_newer_life(peers: Peers) -> None:
    name = peers.name()
    peer = await peers.connected(Identity(name, role="controller"))
    with pytest.raises(ActorError):
        await peers.call(ActorAddress(name, peer.endpoint, "counter", "", 1))
    await peer.close()


async def refusal(peers: Peers) -> None:
    identity = Identity(peers.name(), role="controller", token=b"another")
    async with ActorSystem(identity, RealHost(), MemoryTransport(f"memory://{identity.process}", peers.network)) as peer:
        with pytest.raises(ActorError, match="the job token differs"):
            await peers.call(peer.address("counter"))


async def a_cut(peers: Peers) -> None:
    await peers.answered(b"")


async def garbage(peers: Peers) -> None:
    await peers.answered(b"\xc1")


@pytest.mark.parametrize("end", [goodbye, word_of_a_death, a_newer_life, refusal, a_cut, garbage])
async def test_a_connection_that_is_over_is_not_kept(end: Callable[[Peers], Awaitable[None]]) -> None:
    peers = Peers()
    async with peers.here:
        for _ in range(5):
            await end(peers)
        # The transport lets go of what is closed when it connects again.
        last = await peers.connected(Identity("last", role="controller"))
        gc.collect()
        kept = [found for each in peers.connections if (found := each()) is not None]
        assert [each.process for each in kept] == ["last"]
        await last.close()


async def test_a_peer_that_said_goodbye_and_is_known_to_be_dead_is_not_called_again() -> None:
    peers = Peers()
    async with peers.here:
        peer = await peers.connected(Identity("peer", generation=3, role="controller"))
        address = peer.address("counter")
        await peer.close()
        peers.here.peer_died("peer", "signal 9")
        with pytest.raises(ActorDied, match="peer died: signal 9"):
            await peers.call(address)


async def test_a_listener_in_memory_forgets_the_callers_that_have_left() -> None:
    network = MemoryNetwork()
    there, here = MemoryTransport("memory://there", network), MemoryTransport("memory://here", network)
    ends: list[weakref.ref[Far]] = []

    def accept(link: Link) -> Far:
        far = Far(link)
        ends.append(weakref.ref(far))
        return far

    there.listen(accept)
    for _ in range(20):
        here.connect("memory://there", Far()).close()
        far = ends[-1]()
        assert far is not None
        await far.ended.wait()
        del far
    here.connect("memory://there", Far())
    gc.collect()
    assert sum(each() is not None for each in ends) == 1
    await here.close()
    await there.close()


LIES = {
    "garbage": b"\xc1",
    "a limit that cannot be": msgspec.msgpack.encode(
        Call(2, "counter", "add", "call", -0.001, 0.0, 0, -1, 0, "", msgspec.Raw(msgspec.msgpack.encode([1])))
    ),
    "a name that is too long": msgspec.msgpack.encode(
        Call(2, "c" * 257, "add", "call", 1.0, 0.0, 0, -1, 0, "", msgspec.Raw(msgspec.msgpack.encode([1])))
    ),
    "a call that comes twice": msgspec.msgpack.encode(Call(1, "slow", "hang", "call", 0.0, 0.0, 0, -1, 0, "", msgspec.Raw(b"\x90"))),
    "a second hello": msgspec.msgpack.encode(Identity("stranger", role="controller").hello_to(ActorAddress("there", "", "slow"))),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_caller_that_is_cut_off_for_what_it_sent_has_its_calls_cancelled(lie: str) -> None:
    network = MemoryNetwork()
    async with ActorSystem.local(process="there", network=network) as there:
        slow = await there.spawn(Slow, name="slow")
        transport, caller = MemoryTransport("memory://stranger", network), Far()
        link = transport.connect("memory://there", caller)
        link.send([LIES["a second hello"]])
        link.send([LIES["a call that comes twice"]])
        assert await slow.with_deadline(3).call(Slow.has_started)
        link.send([LIES[lie]])
        assert await slow.with_deadline(3).call(Slow.was_cancelled)
        await asyncio.wait_for(caller.ended.wait(), 3)
        assert isinstance(caller.heard[-1], Refused)
        assert not caller.heard[-1].before_hello
        await transport.close()
