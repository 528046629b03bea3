"""Agent workers that were started again: each learns where the others are, and what it held is issued again."""

import logging
from collections.abc import Callable

from asyncrl.errors import ActorDied
from asyncrl.launch.cluster import Cluster
from asyncrl.launch.session import say
from asyncrl.runtime.directory import Directory
from asyncrl.runtime.ref import ActorRef
from asyncrl.runtime.whereabouts import Whereabouts

logger = logging.getLogger(__name__)


class Revival:
    """Follows the lives of the agent workers.

    consumes: the directory's news of processes
    produces: workers that are connected, ended leases
    waits for: a new life of an agent worker
    unblocked by: the supervisor, through the directory
    """

    def __init__(self, directory: ActorRef[Directory], cluster: Cluster, worker_died: Callable[[int, str], None]) -> None:
        """``worker_died`` is told the number of a worker whose life before has ended, and the cause."""
        # It waits as long as nothing happens.
        self._directory = directory.with_deadline(0.0)
        self._cluster, self._worker_died = cluster, worker_died
        self._numbers = {agent.address.process: number for number, agent in enumerate(cluster.agents)}
        self._lives = {agent.address.process: agent.address.generation for agent in cluster.agents}

    async def run(self) -> None:
        """Follow until cancelled."""
        async for news in self._directory.stream(Directory.watch):
            for each in news:
                if each.process in self._numbers:
                    await self._hear(each)

    async def _hear(self, news: Whereabouts) -> None:
        if news.state != "up" or news.generation <= self._lives[news.process]:
            return
        self._lives[news.process] = news.generation
        number = self._numbers[news.process]
        try:
            await self._cluster.join(number)
        except ActorDied as error:
            # The life after it will be heard of too.
            logger.warning("%s has ended again: %s", news.process, error)
            return
        self._worker_died(number, f"{news.process} died")
        say(f"{news.process} serves again; what it held is issued again")
