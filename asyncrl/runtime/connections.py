"""The connections of one process, and what it does when the process at the other end is gone or has a new life."""

import asyncio
import functools
from collections.abc import Callable
from typing import Protocol

import msgspec

from asyncrl.errors import ActorDied, Undeliverable
from asyncrl.runtime.forks import FORKED, beware_of_forks, never_again
from asyncrl.runtime.incoming import Incoming
from asyncrl.runtime.liveness import Liveness
from asyncrl.runtime.messages import ActorAddress
from asyncrl.runtime.outgoing import Outgoing
from asyncrl.runtime.records import Died, Restarted
from asyncrl.runtime.site import Site
from asyncrl.runtime.transport import Link, Receiver, Transport
from asyncrl.runtime.waits import FOREVER
from asyncrl.runtime.whereabouts import KnownProcesses, Whereabouts, up

NOTICE_SECONDS = 1.0
"""How long a broken connection waits for the word on what became of the process."""


class Replacer(Protocol):
    """A supervisor, as far as connections need one."""

    def replaceable(self, process: str) -> bool:
        """Whether it may kill this process and start it again."""
        ...

    def replace(self, process: str, generation: int, cause: str) -> None:
        """Does so, if ``generation`` is the present life."""
        ...


class Connections:
    """Every incoming and outgoing connection, by peer process.

    ``way`` gives the transport for an address, and the address as that transport knows it. ``informed`` says whether news of
    other processes still come in; a ``supervisor`` is asked to replace a process that does not answer any more.
    """

    def __init__(self, site: Site, liveness: Liveness, way: Callable[[ActorAddress], tuple[Transport, ActorAddress]]) -> None:
        self.known = KnownProcesses()
        self.informed: Callable[[], bool] = lambda: False
        self.supervisor: Replacer | None = None
        self._site, self._liveness, self._way = site, liveness, way
        self._loop = asyncio.get_running_loop()
        self._outgoing: dict[str, Outgoing] = {}
        self._incoming: dict[Incoming, None] = {}
        self._lost: dict[Outgoing, None] = {}
        self._generations: dict[str, int] = {}
        self._uncertain: dict[str, asyncio.TimerHandle | None] = {}
        beware_of_forks(self)

    def forked(self) -> None:
        """This process is a copy: nothing here may be used, and whoever tries is told why."""
        self._site.copied = True
        self._outgoing.clear()
        self._incoming.clear()
        never_again(self._loop)

    def accept(self, link: Link) -> Receiver:
        """The receiver of a link that somebody opened."""
        idle = self._liveness.dead_after
        incoming = Incoming(self._site, link, self._greeted, lambda left: self._incoming.pop(left, None), idle)
        self._incoming[incoming] = None
        return incoming

    def _greeted(self, newcomer: Incoming) -> None:
        """A caller was admitted: connections of its earlier lives are over, nobody may have told of their end."""
        name, generation = (newcomer.role, newcomer.process), newcomer.generation
        for incoming in list(self._incoming):
            if (incoming.role, incoming.process) == name and incoming.generation < generation:
                incoming.fence(f"generation {generation} of {newcomer.process} has taken its place")
        self._fence_calls(newcomer.process, generation, newcomer.role)

    def _fence_calls(self, process: str, oldest: int, role: str | None = None) -> None:
        """Calls that outlived the connections of earlier lives stop."""
        for mailbox in list(self._site.mailboxes.values()):
            mailbox.effects.fence(process, oldest, role)

    def outgoing(self, address: ActorAddress) -> Outgoing | None:
        """The connection to the process of an address, or to its present life; made on first use.

        None while that is being restarted, or its fate is not known yet: ``reach`` waits. Raises ActorDied for a process
        that is known to be gone.
        """
        found = self._outgoing.get(address.endpoint)
        if found is not None and found.process == address.process and found.generation >= address.generation:
            return found
        return self._route(address)

    def _route(self, address: ActorAddress) -> Outgoing | None:
        if self._site.copied:
            raise Undeliverable(f"{address.actor}@{address.process}", FORKED)
        if self._site.closed:
            raise ActorDied(self._site.identity.process, "the system is closed")
        known = self.known.get(address.process)
        if known is not None and address.generation > known.generation:
            # Whoever gave this address has heard more.
            known = up(address, known.replaceable)
            self.learn(known)
        if known is not None:
            if known.state == "dead":
                raise ActorDied(address.process, known.cause)
            if known.state == "restarting" or address.process in self._uncertain:
                return None
            address = known.address or address
        found = self._outgoing.get(address.endpoint)
        if found is not None and found.process == address.process:
            if found.generation >= address.generation:
                return found
            self._break(found, f"generation {address.generation} has taken its place")
        made = self._outgoing[address.endpoint] = self._open(address)
        return made

    def _open(self, address: ActorAddress) -> Outgoing:
        transport, seen = self._way(address)
        endpoint = address.endpoint
        return Outgoing(self._site, seen, transport, functools.partial(self._lose, endpoint), functools.partial(self._forget, endpoint))

    def _forget(self, endpoint: str, outgoing: Outgoing) -> None:
        """A connection is over."""
        self._lost.pop(outgoing, None)
        if self._outgoing.get(endpoint) is outgoing:
            del self._outgoing[endpoint]
        if outgoing.generation:
            self._generations[outgoing.process] = max(self._generations.get(outgoing.process, 0), outgoing.generation)

    def watch(self, known: Whereabouts) -> None:
        """Keeps a connection to a process whose heartbeats are to be heard."""
        if known.address is not None and not self._site.closed:
            self.outgoing(known.address)

    async def reach(self, address: ActorAddress) -> Outgoing:
        """As ``outgoing``, once the process is there. The caller bounds it."""
        found = self.outgoing(address)
        if found is None:
            with self._site.waits.waiting(address.process, f"restart of {address.process}", FOREVER):
                while (found := self.outgoing(address)) is None:
                    await self.known.change(address.process)
        return found

    def learn(self, news: Whereabouts) -> None:
        """Takes over what a supervisor or a directory says: earlier lives of the process are cut off and fenced."""
        if not self.known.learn(news):
            return
        self._record(news)
        process, oldest = news.process, news.oldest_admitted
        latest = self.known.get(process)
        role = latest.address.role if latest is not None and latest.address is not None else ""
        self._site.outdate(role, process, oldest)
        cause = news.cause or f"generation {oldest} has taken its place"
        for outgoing in [*self._outgoing.values(), *self._lost]:
            if outgoing.process == process and outgoing.generation < oldest:
                self._break(outgoing, cause, told=True)
        for incoming in list(self._incoming):
            if incoming.process == process and incoming.generation < oldest:
                incoming.fence(f"generation {incoming.generation} of {process} is over: {cause}")
        self._fence_calls(process, oldest)
        self.settle(process)

    def unanswered(self) -> dict[str, int]:
        """How many calls each process owes an answer. Any thread."""
        counts: dict[str, int] = {}
        for outgoing in list(self._outgoing.values()):
            if owed := len(outgoing.unanswered):
                counts[outgoing.process] = counts.get(outgoing.process, 0) + owed
        return counts

    def address_of(self, process: str, actor: str) -> ActorAddress | None:
        """Where an actor of this process is, if the process is connected or known."""
        known = self.known.get(process)
        if known is not None and known.address is not None:
            return msgspec.structs.replace(known.address, actor=actor)
        attempt = self._site.identity.attempt
        found = [(endpoint, each) for endpoint, each in self._outgoing.items() if each.process == process]
        return next((ActorAddress(process, endpoint, actor, attempt, each.generation, each.role) for endpoint, each in found), None)

    def _record(self, news: Whereabouts) -> None:
        events = self._site.events
        if events is None:
            return
        if news.state != "up":
            events.write(Died(events.now(), news.process, news.cause), hurry=True)
        elif news.generation:
            events.write(Restarted(events.now(), news.process, news.generation))

    def peer_died(self, process: str, cause: str) -> None:
        """A process is known to be gone, whatever its generation was."""
        known = self.known.get(process)
        generations = [each.generation for each in self._outgoing.values() if each.process == process]
        latest = max(self._generations.get(process, 0), 0 if known is None else known.generation, *generations)
        self.learn(Whereabouts(process, latest, "dead", None, cause))

    def _lose(self, endpoint: str, outgoing: Outgoing, cause: str) -> None:
        """A connection broke. Where news will come, its calls wait for them a moment, and new calls until the matter is settled."""
        process = outgoing.process
        known = self.known.get(process)
        present = known is not None and known.state == "up" and known.generation == outgoing.generation
        if known is None or not present or process in self._uncertain or not self.informed():
            self._break(outgoing, cause)
            return
        if self._outgoing.get(endpoint) is outgoing:
            del self._outgoing[endpoint]
        self._lost[outgoing] = None
        self._loop.call_later(NOTICE_SECONDS, self._break, outgoing, cause)
        if self.supervisor is not None and self.supervisor.replaceable(process) and known.address is not None:
            probe = self._open(known.address)
            self._lost[probe] = None
            timer = self._loop.call_later(self._liveness.heartbeat, self._judge, known, probe, cause)
        else:
            # A peer may see it later than this process does, by one heartbeat, and takes another one to make sure.
            hold = NOTICE_SECONDS + (2 * self._liveness.heartbeat if known.replaceable else 0.0)
            timer = self._loop.call_later(hold, self.settle, process)
        self._uncertain[process] = timer

    def _judge(self, known: Whereabouts, probe: Outgoing, cause: str) -> None:
        """A process lost its connection and did not end: either it answers a second one, or it is replaced."""
        process = known.process
        if probe.welcome and not probe.closed and known.address is not None:
            del self._lost[probe]
            self._outgoing[known.address.endpoint] = probe
            self.settle(process)
            return
        self._uncertain[process] = None
        reason = f"frozen: {cause}, and no answer to another within {self._liveness.heartbeat:g} s"
        self._break(probe, reason)
        if self.supervisor is not None:
            self.supervisor.replace(process, known.generation, reason)

    def settle(self, process: str) -> None:
        """Who waits for the fate of a process looks again; without other news the next call connects anew."""
        timer = self._uncertain.pop(process, None)
        if timer is not None:
            timer.cancel()
        self.known.wake(process)

    def _break(self, outgoing: Outgoing, cause: str, told: bool = False) -> None:
        outgoing.break_off(functools.partial(_lost, outgoing.process, cause, told or outgoing.welcome), lost=True)

    def farewell(self, cause: str) -> None:
        """Ends every call of others with the cause for which this process leaves."""
        for incoming in list(self._incoming):
            incoming.close(cause)

    def close(self, cause: str) -> None:
        """Answers every waiter, here and elsewhere."""
        self.farewell(cause)
        own = self._site.identity.process
        for outgoing in [*self._outgoing.values(), *self._lost]:
            outgoing.leave(cause, lambda: ActorDied(own, cause))
        self._lost.clear()
        for process in list(self._uncertain):
            self.settle(process)


def _lost(process: str, cause: str, lived: bool) -> ActorDied:
    """What the callers of a connection are told when it breaks."""
    error = ActorDied(process, cause)
    error.lost, error.lived = True, lived
    return error
