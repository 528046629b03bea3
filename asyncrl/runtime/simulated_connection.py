"""A connection of a simulated network: two ends, and in each direction a lane of messages on their way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from asyncrl.runtime.transport import Frames, Receiver

if TYPE_CHECKING:
    from asyncrl.runtime.simulated_network import SimulatedNetwork, SimulatedTransport

Copies: TypeAlias = tuple[memoryview, ...]
State: TypeAlias = Literal["connecting", "open", "closing", "broken"]


class Lane:
    """One direction. Messages arrive in the order in which they were sent, each after its own time, or not at all."""

    def __init__(self, network: SimulatedNetwork, source: str, target: str, arrive: Callable[[Copies | None, str], None]) -> None:
        self.source, self.target = source, target
        self.swallows = self.severed = self.ready = False
        self._network, self._arrive = network, arrive
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[float, Copies | None, str]] = deque()
        self._unsent: deque[tuple[Copies | None, str]] = deque()
        self._last = 0.0
        self._timer: asyncio.Handle | None = None
        self._busy = False

    def put(self, frames: Copies | None, words: str = "") -> None:
        """Sends a message, or with None the last words, behind everything else."""
        self._unsent.append((frames, words))
        self._leave()
        if self._timer is None and not self._busy and self._queue:
            self._timer = self._loop.call_at(self._queue[0][0], self._due)

    def _leave(self) -> None:
        """What was sent leaves, unless the source stands still or the connection is not there yet."""
        while self._unsent and self.ready and not self._network.is_frozen(self.source):
            frames, words = self._unsent.popleft()
            if self.swallows:
                self._network.note("swallowed", self.source, self.target, frames or ())
                continue
            self._last = max(self._last, self._loop.time() + self._network.latency(self.source, self.target))
            self._queue.append((self._last, frames, words))

    def resume(self) -> None:
        """Goes on with what a fault held up."""
        self._leave()
        if self._timer is None and not self._busy and self._queue:
            self._timer = self._loop.call_soon(self._due)

    def _held(self) -> bool:
        network = self._network
        return network.is_frozen(self.target) or (not self.severed and network.is_parted(self.source, self.target))

    def _due(self) -> None:
        self._timer, self._busy = None, True
        now = self._loop.time()
        while self._queue and self._queue[0][0] <= now and not self._held():
            _, frames, words = self._queue.popleft()
            self._arrive(frames, words)
        self._busy = False
        if self._queue and not self._held():
            self._timer = self._loop.call_at(self._queue[0][0], self._due)

    def cut(self, kept: int) -> None:
        """The first ``kept`` messages on their way still arrive, the others are lost."""
        for _ in range(len(self._queue) - kept):
            self._network.note("dropped", self.source, self.target, self._queue.pop()[1] or ())
        self._unsent.clear()

    def sever(self, words: str, kept: int) -> None:
        """Ends the lane: what still arrives, and then its last words, are held up by nothing but a frozen target."""
        self.cut(kept)
        self.swallows, self.severed, self.ready = False, True, True
        self._last = max(self._last, self._loop.time() + self._network.latency(self.source, self.target))
        self._queue.append((self._last, None, words))
        self.resume()

    def __len__(self) -> int:
        return len(self._queue)


class SimulatedLink:
    """One end of a connection."""

    role = ""

    def __init__(self, connection: Connection, receiver: Receiver | None = None) -> None:
        self.connection, self.receiver = connection, receiver
        self.closed = self.abandoned = False
        self._told = False

    @property
    def state(self) -> str:
        """How far the connection has come, in words."""
        return self.connection.state

    @property
    def tells(self) -> bool:
        """Whether the receiver is told when the other end is gone."""
        return self is self.connection.near or not self.connection.router

    def send(self, frames: Frames) -> None:
        # A copy, as the kernel would make one: what the sender does to its buffers later must not be seen here.
        self.connection.send(self, tuple(memoryview(bytes(frame)) for frame in frames))

    def close(self, linger: float = 0.0) -> None:
        self.connection.close(self, linger)

    def received(self, frames: Sequence[memoryview]) -> None:
        """A message is there."""
        if not self.closed and self.receiver is not None:
            self.receiver.received(frames)

    def lost(self, cause: str) -> None:
        """The other end is gone."""
        if not self.closed and not self._told and self.receiver is not None:
            self._told = True
            self.receiver.lost(cause)


class Connection:
    """What one ``connect`` leads to. ``near`` is the end that connected, ``far`` the one that was accepted.

    A ``router`` has the manners of a ZeroMQ ROUTER: the far end is not told that the near one has gone until it sends
    something, and closing the far end tells nobody; what comes later is a new link to the listener.
    """

    def __init__(
        self, network: SimulatedNetwork, number: int, caller: SimulatedTransport, endpoint: str, receiver: Receiver, router: bool
    ) -> None:
        self.number, self.endpoint, self.router = number, endpoint, router
        self.state: State = "connecting"
        self.caller, self.listener = caller, caller
        self.near, self.far = SimulatedLink(self, receiver), SimulatedLink(self)
        self._network = network
        self._loop = asyncio.get_running_loop()
        self._obstructed_since: float | None = None
        self.outward = Lane(network, caller.node, "", self._outward_arrived)
        self.homeward = Lane(network, "", caller.node, self._homeward_arrived)

    def establish(self, listener: SimulatedTransport) -> None:
        """The listener is reached; what was sent meanwhile leaves."""
        self.state, self.listener = "open", listener
        self.outward.target = self.homeward.source = listener.node
        self.far.receiver = listener.accept(self.far)
        self._network.note("connected", self.caller.node, listener.node)
        self.outward.ready = self.homeward.ready = True
        self.outward.resume()

    def joins(self, one: str, other: str) -> bool:
        """Whether it runs between these nodes."""
        return self.state in ("open", "closing") and {self.caller.node, self.listener.node} == {one, other}

    def touches(self, node: str) -> bool:
        """Whether one end is at this node."""
        return self.caller.node == node or self.listener.node == node

    @property
    def over(self) -> bool:
        """Whether nothing will ever happen to it again."""
        return self.state == "broken" and not len(self.outward) and not len(self.homeward)

    def send(self, end: SimulatedLink, frames: Copies) -> None:
        """One end sends."""
        if end.closed or self.state == "broken":
            if end.abandoned and not end.closed:
                end.abandoned = False
                self._loop.call_soon(end.lost, "the caller is gone")
            return
        lane = self.outward if end is self.near else self.homeward
        self._network.note("sent", lane.source, lane.target, frames, self)
        lane.put(frames)

    def _outward_arrived(self, frames: Copies | None, words: str) -> None:
        if frames is None:
            self._tell_far(words)
            return
        if self.far.closed and self.router and self.listener.listens and self.state != "broken":
            self.far = SimulatedLink(self)
            self.far.receiver = self.listener.accept(self.far)
        self._network.note("delivered", self.caller.node, self.listener.node, frames, self)
        self.far.received(frames)

    def _tell_far(self, words: str) -> None:
        self.state = "broken"
        if self.router:
            self.far.abandoned = True
            self._network.note("abandoned", self.caller.node, self.listener.node, (), self)
            return
        if not self.far.closed:
            self._network.note("left", self.caller.node, self.listener.node, (), self)
        self.far.lost(words)

    def _homeward_arrived(self, frames: Copies | None, words: str) -> None:
        if frames is None:
            self.state = "broken"
            if not self.near.closed:
                self._network.note("lost", self.listener.node, self.caller.node, (), self)
            self.near.lost(words)
        elif not self.near.closed:
            self._network.note("delivered", self.listener.node, self.caller.node, frames, self)
            self.near.received(frames)

    def close(self, end: SimulatedLink, linger: float) -> None:
        """One end closes."""
        if end.closed:
            return
        end.closed = True
        if self.state == "connecting":
            self.state = "broken"
            return
        if end is self.near:
            self.homeward.cut(0)
            if self.state == "open":
                self.state = "closing"
                if not linger:
                    self.outward.cut(self._network.prefix(len(self.outward)))
                self.outward.put(None, "connection closed")
        elif not self.router:
            self.outward.cut(0)
            if self.state == "open":
                self.state = "closing"
                self.homeward.put(None, "connection closed")

    def listener_left(self) -> None:
        """The listening socket was closed; what was sent may still arrive."""
        self.far.closed = True
        self.outward.cut(0)
        if self.state == "open":
            self.state = "closing"
            self.homeward.put(None, "connection lost")

    def crash(self, node: str, silent: bool) -> None:
        """The process at one end is gone. ``silent``: with its machine, so that only missing heartbeats tell."""
        gone, inbound, outbound = self.near, self.homeward, self.outward
        if self.caller.node != node:
            gone, inbound, outbound = self.far, self.outward, self.homeward
        gone.closed = True
        if self.state in ("connecting", "broken"):
            self.state = "broken"
            return
        inbound.cut(0)
        self.state = "closing"
        if silent:
            outbound.swallows = True
            self._loop.call_later(self._network.heartbeat(), self.break_off, "no heartbeat")
        else:
            self.break_off("connection lost")

    def break_off(self, cause: str) -> None:
        """Cuts the connection; both ends are told. What was on its way may have arrived, in order, up to some point."""
        if self.state in ("connecting", "broken"):
            return
        self.state = "broken"
        for lane in (self.outward, self.homeward):
            lane.sever(cause, self._network.prefix(len(lane)))

    def look(self) -> None:
        """The faults have changed: goes on, or starts to count the time without a heartbeat."""
        self.outward.resume()
        self.homeward.resume()
        if self.state == "broken" or not self._obstructed():
            self._obstructed_since = None
        elif self._obstructed_since is None and self.state in ("open", "closing"):
            self._obstructed_since = self._loop.time()
            self._loop.call_later(self._network.heartbeat(), self._judge, self._obstructed_since)

    def _obstructed(self) -> bool:
        caller, listener = self.caller.node, self.listener.node
        network = self._network
        frozen = network.is_frozen(caller) or network.is_frozen(listener)
        return frozen or network.is_parted(caller, listener) or self.outward.swallows or self.homeward.swallows

    def _judge(self, since: float) -> None:
        if self._obstructed_since == since:
            self.break_off("no heartbeat")
