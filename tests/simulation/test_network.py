"""The simulated network by itself: order, and each fault as its ends see it."""

import asyncio
from collections.abc import Callable, Sequence
from random import Random

import pytest

from asyncrl.errors import Undeliverable
from asyncrl.runtime.simulation import Faults, SimulatedNetwork, SimulatedTransport
from asyncrl.runtime.transport import Link, Receiver

LATENCY = (0.001, 0.5)
PLAIN = Faults(latency=LATENCY, heartbeat=10.0, routers=0.0)


class Ear:
    """A receiver that remembers, with times."""

    admitted = True

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.times: list[float] = []
        self.ends: list[tuple[str, float]] = []
        self.link: Link | None = None

    def received(self, frames: Sequence[memoryview]) -> None:
        self.heard.append(bytes(frames[0]).decode())
        self.times.append(asyncio.get_running_loop().time())

    def lost(self, cause: str) -> None:
        self.ends.append((cause, asyncio.get_running_loop().time()))

    def refused(self, cause: str) -> None:
        self.ends.append((f"refused: {cause}", 0.0))

    def broken(self, seen: str) -> None:
        self.ends.append((f"broken: {seen}", 0.0))


class Net:
    """A network with a listener at "b" and a caller at "a"."""

    def __init__(self, seed: int = 1, faults: Faults = PLAIN) -> None:
        self.network = SimulatedNetwork(seed, faults)
        self.accepted: list[Ear] = []
        self.listener = self.network.transport("b")
        self.listener.listen(self.accept)
        self.caller = self.network.transport("a")
        self.near = Ear()
        self.near.link = self.caller.connect("sim://b", self.near)

    def accept(self, link: Link) -> Receiver:
        self.accepted.append(Ear())
        self.accepted[-1].link = link
        return self.accepted[-1]

    def call(self, *texts: str) -> None:
        assert self.near.link is not None
        for text in texts:
            self.near.link.send([text.encode()])

    def answer(self, *texts: str) -> None:
        link = self.accepted[-1].link
        assert link is not None
        for text in texts:
            link.send([text.encode()])

    @property
    def far(self) -> Ear:
        return self.accepted[0]


NUMBERS = [str(number) for number in range(100)]


@pytest.mark.parametrize("seed", range(5))
async def test_messages_take_their_time_and_keep_their_order(seed: int) -> None:
    net = Net(seed)
    net.call(*NUMBERS)
    await asyncio.sleep(3)
    net.answer(*NUMBERS)
    await asyncio.sleep(3)
    assert net.far.heard == NUMBERS
    assert net.near.heard == NUMBERS
    assert net.far.times[0] > LATENCY[0]
    assert len(set(net.far.times)) > 1


@pytest.mark.parametrize("seed", range(40))
async def test_no_mix_of_faults_changes_the_order(seed: int) -> None:
    net, random = Net(seed, Faults(latency=(0.001, 0.1), heartbeat=3.0, routers=0.0)), Random(seed)
    network = net.network
    faults: list[Callable[[], None]] = [
        lambda: network.freeze("a", random.uniform(0.1, 3.0)),
        lambda: network.freeze("b", random.uniform(0.1, 3.0)),
        lambda: network.partition(["a"], random.uniform(0.1, 2.0)),
        lambda: network.slow("a", "b", 20.0, random.uniform(0.1, 3.0)),
        network.heal,
    ]
    if seed % 4 == 0:
        faults += [lambda: network.cut("a", "b"), lambda: network.half_open("a", "b")]
    for number in NUMBERS:
        net.call(number)
        if random.random() < 0.2:
            random.choice(faults)()
        await asyncio.sleep(random.expovariate(5.0))
    network.heal()
    await asyncio.sleep(10.0)
    heard = net.far.heard if net.accepted else []
    assert heard == NUMBERS[: len(heard)]
    assert len(heard) == len(NUMBERS) or net.near.ends
    assert len(net.near.ends) <= 1


async def test_a_listener_that_comes_in_time_is_reached_and_one_that_does_not_is_missed() -> None:
    net = Net()
    late, never = Ear(), Ear()
    net.caller.connect("sim://late", late).send([b"hello"])
    net.caller.connect("sim://never", never)
    await asyncio.sleep(1.5)
    there = net.network.transport("late")
    there.listen(net.accept)
    await asyncio.sleep(2)
    assert net.accepted[-1].heard == ["hello"]
    assert not late.ends
    assert never.ends
    assert never.ends[0][0] == "nobody listens at sim://never"


async def test_a_cut_is_told_to_both_ends_after_some_of_what_was_on_its_way() -> None:
    prefixes = set[int]()
    for seed in range(20):
        net = Net(seed)
        net.call("first")
        await asyncio.sleep(2)
        net.call(*NUMBERS)
        net.network.cut("a", "b")
        net.call("into the void")
        await asyncio.sleep(2)
        assert net.far.heard[1:] == NUMBERS[: len(net.far.heard) - 1]
        assert net.near.ends
        assert net.far.ends
        prefixes.add(len(net.far.heard))
    assert len(prefixes) > 5


async def test_a_half_open_connection_swallows_one_direction_until_the_heartbeat() -> None:
    net = Net()
    net.call("first")
    await asyncio.sleep(2)
    net.network.half_open("a", "b")
    start = asyncio.get_running_loop().time()
    net.call("lost")
    net.answer("heard")
    await asyncio.sleep(9)
    assert net.far.heard == ["first"]
    assert net.near.heard == ["heard"]
    assert not net.near.ends
    await asyncio.sleep(10)
    for ear in (net.near, net.far):
        assert ear.ends
        assert ear.ends[0][0] == "no heartbeat"
        assert 10.0 <= ear.ends[0][1] - start <= 13.6


async def test_a_short_partition_delays_and_a_long_one_breaks() -> None:
    net = Net()
    net.call("before")
    await asyncio.sleep(2)
    net.network.partition(["a"], 5.0)
    net.call("during")
    await asyncio.sleep(4.9)
    assert net.far.heard == ["before"]
    await asyncio.sleep(1)
    assert net.far.heard == ["before", "during"]
    net.network.partition(["a"], 60.0)
    await asyncio.sleep(14)
    assert net.near.ends
    other = Ear()
    net.caller.connect("sim://b", other)
    await asyncio.sleep(14)
    assert other.ends


async def test_a_frozen_process_hears_and_says_nothing_until_it_thaws() -> None:
    net = Net()
    net.call("before")
    await asyncio.sleep(2)
    net.network.freeze("b", 5.0)
    net.call("during")
    net.answer("held back")
    await asyncio.sleep(4.9)
    assert net.far.heard == ["before"]
    assert net.near.heard == []
    await asyncio.sleep(1)
    assert net.far.heard == ["before", "during"]
    assert net.near.heard == ["held back"]


async def test_a_process_that_was_frozen_for_too_long_learns_it_when_it_thaws() -> None:
    net = Net()
    net.call("before")
    await asyncio.sleep(2)
    net.network.freeze("b", 40.0)
    net.answer("too late")
    await asyncio.sleep(20)
    assert net.near.ends
    assert not net.far.ends
    await asyncio.sleep(21)
    assert net.far.ends
    assert net.near.heard == []


@pytest.mark.parametrize(("silent", "least", "most"), [(False, 0.0, 1.0), (True, 10.0, 13.6)])
async def test_a_crash_is_seen_by_the_others_only(silent: bool, least: float, most: float) -> None:
    net = Net()
    net.call("before")
    await asyncio.sleep(2)
    start = asyncio.get_running_loop().time()
    net.network.crash("b", silent)
    net.answer("from the grave")
    net.call("to the grave")
    await asyncio.sleep(15)
    assert net.near.ends
    assert least <= net.near.ends[0][1] - start <= most
    assert (net.near.heard, net.far.heard, net.far.ends) == ([], ["before"], [])
    assert net.network.nodes == ["a"]
    again = net.network.transport("b")
    again.listen(net.accept)
    net.near.link = net.caller.connect("sim://b", Ear())
    net.call("to its next life")
    await asyncio.sleep(2)
    assert net.accepted[-1].heard == ["to its next life"]


async def test_a_slow_link_is_slow_for_its_time() -> None:
    net = Net(faults=Faults(latency=(0.01, 0.02), routers=0.0))
    net.call("before")
    await asyncio.sleep(1)
    net.network.slow("a", "b", 100.0, 3.0)
    start = asyncio.get_running_loop().time()
    net.call("slow")
    await asyncio.sleep(3.5)
    net.call("fast")
    await asyncio.sleep(1)
    assert 1.0 <= net.far.times[1] - start <= 2.1
    assert net.far.times[2] - start <= 3.6


async def test_with_the_manners_of_a_router_the_far_end_learns_of_a_loss_when_it_sends() -> None:
    net = Net(faults=Faults(latency=LATENCY, routers=1.0))
    net.call("before")
    await asyncio.sleep(2)
    net.network.cut("a", "b")
    await asyncio.sleep(20)
    assert net.near.ends
    assert not net.far.ends
    net.answer("is anybody there?")
    await asyncio.sleep(1)
    assert net.far.ends
    assert net.far.ends[0][0] == "the caller is gone"


async def test_with_the_manners_of_a_router_a_closed_far_end_is_a_new_link_for_what_comes() -> None:
    net = Net(faults=Faults(latency=LATENCY, routers=1.0))
    net.call("before")
    await asyncio.sleep(2)
    assert net.far.link is not None
    net.far.link.close()
    net.call("after")
    await asyncio.sleep(2)
    assert [ear.heard for ear in net.accepted] == [["before"], ["after"]]
    assert not net.near.ends


async def test_closing_a_transport_ends_its_connections_after_what_was_sent() -> None:
    net = Net()
    net.call("before")
    await asyncio.sleep(2)
    net.answer("last words")
    await net.listener.close()
    await asyncio.sleep(2)
    assert net.near.heard == ["last words"]
    assert net.near.ends


async def test_what_is_sent_is_a_copy() -> None:
    net = Net()
    buffer = bytearray(b"as sent")
    assert net.near.link is not None
    net.near.link.send([buffer])
    buffer[:] = b"changed"
    await asyncio.sleep(2)
    assert net.far.heard == ["as sent"]


async def test_a_name_can_be_taken_once_and_an_endpoint_again() -> None:
    net = Net()
    with pytest.raises(Undeliverable, match="already in the network"):
        net.network.transport("b")
    successor = SimulatedTransport(net.network, "b#1", "sim://b")
    successor.listen(net.accept)
    net.call("goes on at the old one")
    await asyncio.sleep(2)
    assert net.accepted[-1].heard == ["goes on at the old one"]
