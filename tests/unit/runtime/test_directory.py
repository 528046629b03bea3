"""References, callers and names while a directory tells that processes die and come again; all systems in this process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest

from asyncrl.errors import ActorDied, CallTimedOut, Undeliverable
from asyncrl.runtime import ActorAddress, ActorSystem, Liveness, RealHost
from asyncrl.runtime.directory import Directory
from asyncrl.runtime.whereabouts import KnownProcesses, Whereabouts, up
from tests.unit.runtime.runtime_actors import Counter, Slow


def bound(folder: str, process: str, generation: int = 0, socket: str = "") -> ActorSystem:
    endpoint = f"ipc://{folder}/{socket or process}.sock"
    quick = Liveness(heartbeat=0.2, dead_after=0.6)
    return ActorSystem.bind(process, endpoint, host=RealHost(), attempt="a1", generation=generation, token=b"t" * 32, liveness=quick)


class Town:
    """A caller that follows a directory, and what the directory knows."""

    def __init__(self, folder: str, owner: ActorSystem, caller: ActorSystem, known: KnownProcesses) -> None:
        self.folder, self.owner, self.caller, self.known = folder, owner, caller, known
        self.rest = contextlib.AsyncExitStack()

    async def shard(self, generation: int, socket: str = "") -> ActorSystem:
        """One life of "shard", with a counter and a slow actor; the directory is not told."""
        system = await self.rest.enter_async_context(bound(self.folder, "shard", generation, socket or f"shard-{generation}"))
        await system.spawn(Counter, 100 * generation, name="counter")
        await system.spawn(Slow, name="slow")
        return system

    def tell(self, state: str, generation: int, address: ActorAddress | None = None) -> None:
        news = Whereabouts("shard", generation, "dead", None, "exit code 3")
        if state == "restarting":
            news = Whereabouts("shard", generation, "restarting", None, "signal 9 (SIGKILL)", replaceable=True)
        self.known.learn(news if address is None else up(address, replaceable=True))

    async def hears(self, waiting: str) -> None:
        """Returns when the caller, which knows what the directory has told, waits for ``waiting``."""
        for _ in range(10):
            if waiting in [wait.what for wait in self.caller.waits.snapshot()]:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"nobody waits for {waiting}")


@pytest.fixture
async def town(folder: str) -> AsyncIterator[Town]:
    async with bound(folder, "owner") as owner, bound(folder, "caller") as caller:
        known = KnownProcesses()
        directory = await owner.spawn(Directory, known, lambda actor: [], name="directory")
        await caller.join(directory.address)
        town = Town(folder, owner, caller, known)
        async with town.rest:
            yield town


async def told(system: ActorSystem, owner: ActorSystem) -> None:
    """Returns when everything that the directory has said by now has arrived: its answers keep their order."""
    await system.ref(owner.address("directory"), Directory).call(Directory.find, "x")
    await asyncio.sleep(0)


async def test_a_call_to_a_process_that_is_restarted_waits_and_reaches_the_new_life(town: Town) -> None:
    old = await town.shard(0)
    town.tell("up", 0, old.address("counter"))
    counter, slow = town.caller.ref(old.address("counter"), Counter), town.caller.ref(old.address("slow"), Slow)
    assert await counter.call(Counter.add, 1) == 1
    in_flight = asyncio.ensure_future(slow.call(Slow.hang))
    await slow.call(Slow.has_started)
    town.tell("restarting", 0)
    with pytest.raises(ActorDied, match=r"shard died: signal 9 \(SIGKILL\)"):
        await in_flight
    waiting = asyncio.ensure_future(counter.with_deadline(10).call(Counter.add, 1))
    stream = slow.with_deadline(10).stream(Slow.count, 3)
    first = asyncio.ensure_future(anext(stream))
    await town.hears("restart of shard")
    await old.close()
    new = await town.shard(1)
    await told(town.caller, town.owner)
    assert not waiting.done()
    town.tell("up", 1, new.address("counter"))
    assert await waiting == 101
    assert await first == 0
    await stream.aclose()
    # The old reference goes on, at the new endpoint.
    assert (counter.address.generation, await counter.call(Counter.add, 1)) == (0, 102)


async def test_the_wait_for_a_restart_ends_with_the_deadline_of_the_call(town: Town) -> None:
    old = await town.shard(0)
    town.tell("up", 0, old.address("counter"))
    counter = town.caller.ref(old.address("counter"), Counter)
    await counter.call(Counter.add, 1)
    town.tell("restarting", 0)
    await told(town.caller, town.owner)
    for limited in (counter.with_deadline(0.1), counter.watched(0.1)):
        with pytest.raises(CallTimedOut, match=r"counter@shard did not answer Counter.add \(in its restart\) within 0.1 s"):
            await limited.call(Counter.add, 1)


async def test_the_time_of_the_restart_counts_for_the_call(town: Town) -> None:
    old = await town.shard(0)
    town.tell("up", 0, old.address("counter"))
    slow = town.caller.ref(old.address("slow"), Slow)
    await slow.call(Slow.made)
    town.tell("restarting", 0)
    await told(town.caller, town.owner)
    begun = asyncio.get_running_loop().time()
    call = asyncio.ensure_future(slow.with_deadline(1.0).call(Slow.hang))
    await town.hears("restart of shard")
    new = await town.shard(1)
    await asyncio.sleep(0.6)
    town.tell("up", 1, new.address("counter"))
    with pytest.raises(CallTimedOut, match=r"Slow.hang within 0\.\d+ s"):
        await call
    assert asyncio.get_running_loop().time() - begun < 3.0


async def test_a_death_for_good_ends_every_wait_with_its_cause(town: Town) -> None:
    old = await town.shard(0)
    town.tell("up", 0, old.address("counter"))
    counter = town.caller.ref(old.address("counter"), Counter)
    await counter.call(Counter.add, 1)
    town.tell("restarting", 0)
    await told(town.caller, town.owner)
    waiting = asyncio.ensure_future(counter.call(Counter.add, 1))
    await town.hears("restart of shard")
    town.tell("dead", 1)
    for call in (waiting, counter.call(Counter.add, 1)):
        with pytest.raises(ActorDied, match="shard died: exit code 3"):
            await call


async def test_a_directory_that_leaves_lets_nobody_wait_for_its_news(town: Town) -> None:
    old = await town.shard(0)
    town.tell("up", 0, old.address("counter"))
    counter = town.caller.ref(old.address("counter"), Counter)
    await counter.call(Counter.add, 1)
    town.tell("restarting", 0)
    await told(town.caller, town.owner)
    waiting = asyncio.ensure_future(counter.call(Counter.add, 1))
    await town.hears("restart of shard")
    await town.owner.close()
    async with asyncio.timeout(8):
        with pytest.raises(ActorDied, match=r"SIGKILL.*; owner, which could tell of its restart, is gone"):
            await waiting


class Wire:
    """A stretch of tcp between two processes that can be cut."""

    def __init__(self, endpoint: str) -> None:
        self._to = int(endpoint.rsplit(":", 1)[1])
        self._ends: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None
        self.hangs_up = False
        self._hung_up: asyncio.Queue[None] = asyncio.Queue()

    async def open(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def hung_up(self, times: int) -> None:
        """Returns when it has hung up so many times since the last call."""
        for _ in range(times):
            await self._hung_up.get()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.hangs_up:
            writer.transport.abort()
            self._hung_up.put_nowait(None)
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
        self._ends += [writer, far_writer]
        await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)

    def cut(self) -> None:
        for end in self._ends:
            end.transport.abort()
        self._ends.clear()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()


async def test_a_connection_that_breaks_without_any_news_is_made_again(town: Town) -> None:
    async with ActorSystem.bind("shard", "tcp://127.0.0.1:*", host=RealHost(), attempt="a1", token=b"t" * 32) as shard:
        await shard.spawn(Counter, name="counter")
        await shard.spawn(Slow, name="slow")
        wire = Wire(shard.endpoint)
        address = msgspec.structs.replace(shard.address("counter"), endpoint=await wire.open())
        town.tell("up", 0, address)
        await told(town.caller, town.owner)
        counter = town.caller.ref(address, Counter)
        slow = town.caller.ref(msgspec.structs.replace(address, actor="slow"), Slow)
        call = asyncio.ensure_future(slow.call(Slow.hang))
        await slow.call(Slow.has_started)
        wire.cut()
        with pytest.raises(ActorDied, match="shard died: connection lost"):
            await call
        assert await counter.with_deadline(10).call(Counter.add, 1) == 1
        await wire.close()


async def test_a_line_that_hangs_up_for_a_time_has_no_other_key_and_the_directory_is_followed_again(town: Town) -> None:
    tcp = "tcp://127.0.0.1:*"
    async with (
        ActorSystem.bind("far", tcp, host=RealHost(), attempt="a1", token=b"t" * 32) as far,
        ActorSystem.bind("near", tcp, host=RealHost(), attempt="a1", token=b"t" * 32) as near,
    ):
        directory = await far.spawn(Directory, town.known, lambda actor: [], name="directory")
        counter = await far.spawn(Counter, name="counter")
        wire = Wire(far.endpoint)
        endpoint = await wire.open()
        new = await town.shard(3)
        town.tell("restarting", 2)
        await near.join(msgspec.structs.replace(directory.address, endpoint=endpoint))
        early = msgspec.structs.replace(new.address("counter"), generation=2)
        waiting = asyncio.ensure_future(near.ref(early, Counter).with_deadline(20).call(Counter.add, 1))
        wire.hangs_up = True
        wire.cut()
        await wire.hung_up(3)
        with pytest.raises(ActorDied, match=f"far died: ({endpoint} hangs up|connection lost)"):
            await near.ref(msgspec.structs.replace(counter.address, endpoint=endpoint), Counter).call(Counter.add, 1)
        await wire.hung_up(3)
        wire.hangs_up = False
        town.tell("up", 3, new.address("counter"))
        assert await waiting == 301
        await wire.close()


async def test_a_process_that_is_followed_may_be_called_by_the_address_of_an_earlier_life(town: Town) -> None:
    new = await town.shard(3)
    early = ActorAddress("shard", new.endpoint, "counter", "a1", 1)
    with pytest.raises(Undeliverable, match=r"shard \(generation 1\) was called, this is shard \(generation 3\)"):
        await town.caller.ref(early, Counter).call(Counter.add, 1)
    await new.join(town.owner.address("directory"))
    assert await town.caller.ref(early, Counter).call(Counter.add, 1) == 301
    late = ActorAddress("shard", new.endpoint, "counter", "a1", 4)
    with pytest.raises(Undeliverable, match=r"shard \(generation 4\) was called, this is shard \(generation 3\)"):
        await town.caller.ref(late, Counter).call(Counter.add, 1)


async def test_an_earlier_life_is_fenced_by_name_as_soon_as_the_directory_tells_of_a_later_one(town: Town, folder: str) -> None:
    await town.caller.spawn(Counter, name="own")
    own = town.caller.address("own")
    old = await town.shard(0)
    await town.caller.spawn(Slow, name="slow")
    stale, stale_slow = old.ref(own, Counter), old.ref(town.caller.address("slow"), Slow)
    assert await stale.call(Counter.add, 1) == 1
    stale_call = asyncio.ensure_future(stale_slow.call(Slow.hang))
    await stale_slow.call(Slow.has_started)
    in_flight = asyncio.ensure_future(town.caller.ref(old.address("slow"), Slow).call(Slow.hang))
    town.tell("up", 1, ActorAddress("shard", f"ipc://{folder}/elsewhere.sock", "counter", "a1", 1, old.address("counter").role))
    with pytest.raises(ActorDied, match="generation 1 has taken its place"):
        await in_flight
    # The connection that it had, and any new one.
    with pytest.raises(Undeliverable, match="generation 0 of shard is over: generation 1 has taken its place"):
        await stale_call
    with pytest.raises(Undeliverable, match="generation 0 of shard calls after generation 1"):
        await stale.call(Counter.add, 1)
    assert await town.caller.ref(own, Counter).call(Counter.add, 0) == 1


async def test_whoever_gives_an_address_of_a_later_life_has_heard_more(town: Town) -> None:
    old, new = await town.shard(0), await town.shard(1)
    town.tell("up", 0, old.address("counter"))
    await told(town.caller, town.owner)
    first = town.caller.ref(old.address("counter"), Counter)
    assert await first.call(Counter.add, 1) == 1
    assert await town.caller.ref(new.address("counter"), Counter).call(Counter.add, 1) == 101
    assert await first.call(Counter.add, 1) == 102


async def test_names_are_found_here_and_wherever_the_directory_knows(town: Town) -> None:
    shard = await town.shard(2)
    town.tell("up", 2, shard.address("counter"))
    await town.caller.spawn(Counter, 7, name="own")
    assert await (await town.caller.lookup("own", Counter)).call(Counter.add, 0) == 7
    assert await (await town.caller.lookup("counter", Counter)).call(Counter.add, 0) == 200
    with pytest.raises(Undeliverable, match="nobody: an actor of this name is in no process that is known here"):
        await town.caller.lookup("nobody", Counter)
    town.known.learn(up(ActorAddress("other", "ipc:///other", "counter", "a1", 0)))
    with pytest.raises(Undeliverable, match="is in each of other, shard; say in which"):
        await town.caller.lookup("counter", Counter)
    assert (await town.caller.lookup("counter", Counter, process="shard")).address == shard.address("counter")
    # A process without any directory knows its own.
    with pytest.raises(Undeliverable, match="no process that is known here"):
        await shard.lookup("own", Counter)


async def test_directories_hand_news_on(town: Town, folder: str) -> None:
    async with bound(folder, "far") as far:
        await town.caller.spawn(Directory, KnownProcesses(), lambda actor: [town.caller.address(actor)], name="second")
        await far.join(town.caller.address("second"))
        await town.caller.spawn(Counter, name="own")
        assert (await far.lookup("own", Counter)).address == town.caller.address("own")
