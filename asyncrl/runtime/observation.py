"""What can be seen of one process while it runs: its counters, its event file, its watcher thread, its stacks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from asyncrl.errors import ActorError, Undeliverable
from asyncrl.runtime.host import RealHost
from asyncrl.runtime.inspector import INSPECTOR, Inspector
from asyncrl.runtime.meters import stats_of
from asyncrl.runtime.records import Stalled, Stats, Stuck, Waited
from asyncrl.runtime.stacks import describe_stacks
from asyncrl.runtime.tasks import asked_from_thread
from asyncrl.runtime.waits import Wait
from asyncrl.runtime.watchdog import Watchdog
from asyncrl.runtime.watching import Watching

if TYPE_CHECKING:
    from asyncrl.runtime.connections import Connections
    from asyncrl.runtime.messages import ActorAddress
    from asyncrl.runtime.ref import ActorRef
    from asyncrl.runtime.site import Site

ANSWER_SECONDS = 2.0
"""How long a process has to tell its stacks, before it is asked by signal."""


class Observation:
    """Belongs to one ``ActorSystem``.

    ``ref`` makes the reference to an inspector; ``by_signal`` gets the stacks of a child of this process that may hang, ""
    for one that is no child. ``on_stuck`` is told the report just before the watcher ends the process, on its thread.
    """

    def __init__(self, site: Site, connections: Connections, ref: Callable[[ActorAddress], ActorRef[Inspector]]) -> None:
        self.by_signal: Callable[[str], str] = lambda process: ""
        self.on_stuck: Callable[[str], None] | None = None
        self._site, self._connections, self._ref = site, connections, ref
        if site.events is not None:
            site.events.summary = self.stats
            site.waits.on_long = self._waited
        self._process = site.identity.process
        self._loop = asyncio.get_running_loop()
        # Real threads beside a real loop, whatever clock the actors go by.
        self._threads = RealHost()
        self._watchdog: Watchdog | None = None

    def watch(self, watching: Watching, stalled_after: float) -> None:
        """Starts the watcher thread."""
        watchdog = self._watchdog = Watchdog(self._process, self._threads, self._site.waits, watching, stalled_after)
        watchdog.ask, watchdog.on_stall, watchdog.on_stuck = self._ask, self._stalled, self._stuck
        watchdog.start()

    def close(self) -> None:
        """Ends the watcher and writes the last summary."""
        if self._watchdog is not None:
            self._watchdog.close()
        if self._site.events is not None:
            self._site.events.close()

    def stats(self) -> Stats:
        """Counters since the start, queues at this moment. Any thread."""
        site, watchdog = self._site, self._watchdog
        served, queued = [], {}
        for mailbox in list(site.mailboxes.values()):
            served += stats_of((mailbox.labels[name], meter) for name, meter in mailbox.meters.items())
            if mailbox.depth:
                queued[mailbox.name] = mailbox.depth
        return Stats(
            served=served,
            called=site.meters.stats(),
            queued=queued,
            unanswered=self._connections.unanswered(),
            waits=len(site.waits.snapshot()),
            refusals=site.refusals,
            stalls=0 if watchdog is None else watchdog.stalls,
            loop_lag=[] if watchdog is None else watchdog.lags.buckets,
            dropped_events=0 if site.events is None else site.events.dropped,
        )

    def stacks(self) -> str:
        """Where the threads of this process and the tasks of its loop are, and what it waits for. Any thread."""
        text = describe_stacks(self._threads, self._process, self._loop)
        return "\n".join([text, *(f"waiting {line}" for line in self._site.waits.describe())])

    async def stacks_of(self, process: str) -> str:
        """The stacks of this process or of another: asked by message, and by signal if it does not answer and is a child.

        Raises ActorError for a process that does not answer and is no child of this one's supervisor.
        """
        if process == self._process:
            return self.stacks()
        try:
            address = self._connections.address_of(process, INSPECTOR)
            if address is None:
                raise Undeliverable(process, f"{self._process} has no connection to it")
            return await self._ref(address).with_deadline(ANSWER_SECONDS).call(Inspector.stacks)
        except ActorError:
            text = await self._site.host.run_blocking(self.by_signal, process)
            if not text:
                raise
            return text

    def _ask(self, process: str) -> str:
        """For the watcher, on its thread: by signal, since nothing may turn any more; else by message."""
        text = self.by_signal(process)
        if text or (self._watchdog is not None and self._watchdog.stalled):
            return text
        try:
            return asked_from_thread(self._loop, lambda: self.stacks_of(process), 2 * ANSWER_SECONDS)
        except (ActorError, TimeoutError, RuntimeError) as error:
            return f"{process} does not tell its stacks: {error}"

    def _waited(self, wait: Wait, seconds: float) -> None:
        events = self._site.events
        if events is not None:
            events.write(Waited(events.now(), wait.who, wait.what, seconds))

    def _stalled(self, seconds: float, place: str) -> None:
        events = self._site.events
        if events is not None:
            events.write(Stalled(events.now(), seconds, place))

    def _stuck(self, report: str) -> None:
        events = self._site.events
        if events is not None:
            events.write(Stuck(events.now(), report))
            events.flush()
        if self.on_stuck is not None:
            self.on_stuck(report)
