"""A network in memory under virtual time, with the faults of real ones, all drawn from one seed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

import msgspec

from asyncrl.errors import Undeliverable
from asyncrl.runtime.simulated_connection import Connection, SimulatedLink
from asyncrl.runtime.transport import Link, Receiver


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """How a simulated network behaves, in virtual seconds.

    ``latency`` of a message, at least and at most; ``heartbeat``: silence after which an end takes the other for dead;
    ``patience``: how long a connection waits for a listener; ``routers``: share of connections whose accepting end has the
    manners of a ZeroMQ ROUTER; ``lengths`` of the faults that ``disturb`` injects; ``slowdown``: how many times longer a
    message takes on a slow link, at most.
    """

    latency: tuple[float, float] = (1e-4, 3e-3)
    heartbeat: float = 10.0
    patience: float = 2.0
    routers: float = 0.5
    lengths: tuple[float, float] = (0.05, 20.0)
    slowdown: float = 300.0


class NetworkEvent(NamedTuple):
    """Something that happened: "sent", "delivered", "swallowed", "dropped", "connected", or the name of a fault.

    "lost": the caller ``target`` is told that its connection to ``source`` is gone; "left": the callee ``target`` is told that
    its caller ``source`` is; "abandoned": it is not told. ``connection`` is the number of the connection, 0 for a fault.
    """

    time: float
    kind: str
    source: str
    target: str
    connection: int
    frames: Sequence[memoryview]


class SimulatedTransport:
    """The transport of one process, called ``node`` by the network. Implements ``Transport``."""

    def __init__(self, network: SimulatedNetwork, node: str, endpoint: str) -> None:
        self.node, self.endpoint = node, endpoint
        self.listens = False
        self._network = network
        self._accept: Callable[[Link], Receiver] | None = None

    def listen(self, accept: Callable[[Link], Receiver]) -> None:
        self._accept, self.listens = accept, True
        self._network.listens(self)

    def accept(self, link: Link) -> Receiver:
        """The receiver for a new link."""
        assert self._accept is not None
        return self._accept(link)

    def connect(self, endpoint: str, receiver: Receiver, role: str = "") -> Link:
        return self._network.connect(self, endpoint, receiver)

    async def close(self) -> None:
        self._network.leaves(self)


class SimulatedNetwork:
    """Connects the transports it hands out. Must be used on one running loop, a ``SimulatedLoop`` for virtual time.

    Processes are known by the ``node`` of their transport; two lives of one process are two nodes. ``watchers`` hear of
    every event.
    """

    def __init__(self, seed: int, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.watchers: list[Callable[[NetworkEvent], None]] = []
        self._random = Random(f"network {seed}")
        self._listeners: dict[str, SimulatedTransport] = {}
        self._nodes: dict[str, SimulatedTransport] = {}
        self._connections: list[Connection] = []
        self._count = 0
        self._frozen: dict[str, float] = {}
        self._parted: dict[int, frozenset[str]] = {}
        self._slow: dict[frozenset[str], tuple[float, float]] = {}
        self._disturber: asyncio.TimerHandle | None = None

    def transport(self, node: str, endpoint: str = "") -> SimulatedTransport:
        """The transport of a new process, at "sim://NODE" unless said otherwise. Raises Undeliverable for a node that lives."""
        if node in self._nodes:
            raise Undeliverable(node, "a process of this name is already in the network")
        made = self._nodes[node] = SimulatedTransport(self, node, endpoint or f"sim://{node}")
        return made

    @property
    def nodes(self) -> list[str]:
        """The processes that live, in the order of their start."""
        return list(self._nodes)

    # What the transports and connections ask for.

    def listens(self, transport: SimulatedTransport) -> None:
        """A listener is there. It takes the endpoint over, as a bind to the path of a socket does."""
        self._listeners[transport.endpoint] = transport
        self._retry()

    def connect(self, caller: SimulatedTransport, endpoint: str, receiver: Receiver) -> SimulatedLink:
        """Starts to connect."""
        self._count += 1
        connection = Connection(self, self._count, caller, endpoint, receiver, self._random.random() < self.faults.routers)
        if caller.node not in self._nodes:
            connection.near.closed = True
            return connection.near
        self._connections = [each for each in self._connections if not each.over]
        self._connections.append(connection)
        loop = asyncio.get_running_loop()
        loop.call_later(self.latency(caller.node, ""), self._attempt, connection)
        loop.call_later(self.faults.patience, self._give_up, connection, loop.time())
        return connection.near

    def _attempt(self, connection: Connection) -> None:
        listener = self._listeners.get(connection.endpoint)
        if connection.state != "connecting" or listener is None:
            return
        caller = connection.caller.node
        if not (self.is_parted(caller, listener.node) or self.is_frozen(caller) or self.is_frozen(listener.node)):
            connection.establish(listener)

    def _give_up(self, connection: Connection, since: float) -> None:
        if connection.state != "connecting":
            return
        loop = asyncio.get_running_loop()
        if connection.endpoint in self._listeners and loop.time() - since < self.faults.heartbeat:
            # Somebody is there, but cannot be reached: no refusal tells so.
            loop.call_later(self.faults.patience, self._give_up, connection, since)
            return
        connection.state = "broken"
        self.note("lost", connection.endpoint, connection.caller.node)
        connection.near.lost(f"nobody listens at {connection.endpoint}")

    def leaves(self, transport: SimulatedTransport) -> None:
        """A process closes its transport."""
        self._forget(transport)
        for connection in list(self._connections):
            if connection.caller is transport:
                connection.near.close()
            elif connection.listener is transport and connection.state != "connecting":
                connection.listener_left()

    def _forget(self, transport: SimulatedTransport) -> None:
        transport.listens = False
        if self._listeners.get(transport.endpoint) is transport:
            del self._listeners[transport.endpoint]
        if self._nodes.get(transport.node) is transport:
            del self._nodes[transport.node]

    def note(self, kind: str, source: str, target: str, frames: Sequence[memoryview] = (), connection: Connection | None = None) -> None:
        """Tells the watchers."""
        if self.watchers:
            number = connection.number if connection is not None else 0
            event = NetworkEvent(asyncio.get_running_loop().time(), kind, source, target, number, frames)
            for watcher in self.watchers:
                watcher(event)

    def latency(self, source: str, target: str) -> float:
        """Seconds that the next message takes."""
        drawn = self._random.uniform(*self.faults.latency)
        if self._slow:
            factor, until = self._slow.get(frozenset((source, target)), (1.0, math.inf))
            if asyncio.get_running_loop().time() < until:
                drawn *= factor
        return drawn

    def heartbeat(self) -> float:
        """Seconds until an end notices that nothing comes."""
        return self.faults.heartbeat * self._random.uniform(1.0, 1.3)

    def prefix(self, length: int) -> int:
        """How many of ``length`` messages were past the point where a connection broke."""
        return self._random.randint(0, length)

    def is_frozen(self, node: str) -> bool:
        """Whether a process stands still."""
        return node in self._frozen

    def is_parted(self, one: str, other: str) -> bool:
        """Whether a partition lies between two processes."""
        return bool(self._parted) and any((one in group) != (other in group) for group in self._parted.values())

    # Faults.

    def cut(self, one: str, other: str) -> None:
        """Breaks the connections between two processes; both ends are told."""
        self.note("cut", one, other)
        for connection in self._between(one, other):
            connection.break_off("connection lost")

    def half_open(self, source: str, target: str) -> None:
        """What ``source`` sends to ``target`` over today's connections vanishes, until missing heartbeats tell both."""
        self.note("half_open", source, target)
        for connection in self._between(source, target):
            lane = connection.outward if connection.caller.node == source else connection.homeward
            lane.swallows = True
            connection.look()

    def partition(self, group: Sequence[str], seconds: float) -> None:
        """No message passes between ``group`` and the others. A short partition only delays, one beyond the heartbeat breaks."""
        self.note("partition", "+".join(group), f"{seconds:.3f}")
        self._count += 1
        self._parted[self._count] = frozenset(group)
        self._look()
        asyncio.get_running_loop().call_later(seconds, self._join, self._count)

    def _join(self, number: int) -> None:
        if self._parted.pop(number, None) is not None:
            self._look()

    def freeze(self, node: str, seconds: float) -> None:
        """The process neither receives nor sends for a time; what it had sent arrives."""
        self.note("freeze", node, f"{seconds:.3f}")
        loop = asyncio.get_running_loop()
        self._frozen[node] = max(self._frozen.get(node, 0.0), loop.time() + seconds)
        self._look()
        loop.call_at(self._frozen[node], self._thaw, node)

    def _thaw(self, node: str) -> None:
        if self._frozen.get(node, math.inf) <= asyncio.get_running_loop().time():
            del self._frozen[node]
            self._look()

    def slow(self, one: str, other: str, factor: float, seconds: float) -> None:
        """Messages between two processes take ``factor`` times as long for a time."""
        self.note("slow", one, other)
        self._slow[frozenset((one, other))] = factor, asyncio.get_running_loop().time() + seconds

    def crash(self, node: str, silent: bool = False) -> None:
        """The process is gone, without goodbye. ``silent``: its machine too, so that only missing heartbeats tell."""
        self.note("crash", node, "silent" if silent else "")
        self._forget(self._nodes[node])
        for connection in list(self._connections):
            if connection.touches(node):
                connection.crash(node, silent)

    def heal(self) -> None:
        """Ends all faults that last, and injects no more."""
        if self._disturber is not None:
            self._disturber.cancel()
            self._disturber = None
        self._frozen.clear()
        self._parted.clear()
        self._slow.clear()
        self._look()

    def disturb(self, rate: float) -> None:
        """Injects ``rate`` faults a second, at random, until ``heal``: all kinds but crashes, which need a restart."""
        self._disturber = asyncio.get_running_loop().call_later(self._random.expovariate(rate), self._inject, rate)

    def _inject(self, rate: float) -> None:
        if len(self._nodes) > 1:
            one, other = self._random.sample(self.nodes, 2)
            low, high = self.faults.lengths
            seconds = math.exp(self._random.uniform(math.log(low), math.log(high)))
            kind = self._random.randrange(5)
            if kind == 0:
                self.cut(one, other)
            elif kind == 1:
                self.half_open(one, other)
            elif kind == 2:
                self.partition([node for node in self.nodes if node == one or (node != other and self._random.random() < 0.5)], seconds)
            elif kind == 3:
                self.freeze(one, seconds)
            else:
                self.slow(one, other, self._random.uniform(1.0, self.faults.slowdown), seconds)
        self.disturb(rate)

    def _between(self, one: str, other: str) -> list[Connection]:
        return [connection for connection in self._connections if connection.joins(one, other)]

    def _look(self) -> None:
        for connection in list(self._connections):
            connection.look()
        self._retry()

    def _retry(self) -> None:
        for connection in list(self._connections):
            if connection.state == "connecting":
                self._attempt(connection)
