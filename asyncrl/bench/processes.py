"""What a child process costs: the time until it answers, and what it takes while nobody calls it.

The reference of these figures is what the runtime promises: 0.5 s on an idle machine, 0.5 % of a core, 45 MB.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence

import psutil

from asyncrl.bench.report import Figure
from asyncrl.runtime.actor import Actor, endpoint
from asyncrl.runtime.host import own_pid
from asyncrl.runtime.ref import ActorRef
from asyncrl.runtime.system import ActorSystem

SPAWN_SECONDS, IDLE_PERCENT, IDLE_MEGABYTES = 0.5, 0.5, 45.0
SETTLE_SECONDS = 1.0


class Idler(Actor):
    """Does nothing; needs nothing but the runtime."""

    @endpoint
    async def pid(self) -> int:
        """Its process."""
        return own_pid()


async def processes(system: ActorSystem, spawns: int, seconds: float) -> dict[str, Figure]:
    """``spawns`` starts, one after another; then the last child is left alone for ``seconds``."""

    async def spawn(number: int) -> None:
        child: ActorRef[Idler] = await system.spawn(Idler, name=f"idler-{number}", process=f"idler-{number}")
        await child.call(Idler.pid)

    return await cost_of(spawn, [f"idler-{number}" for number in range(spawns)], seconds, IDLE_MEGABYTES)


async def cost_of(spawn: Callable[[int], Awaitable[object]], names: Sequence[str], seconds: float, megabytes: float) -> dict[str, Figure]:
    """What a kind of process costs: ``spawn(number)`` starts the one called ``names[number]``; ``megabytes`` is promised."""
    took = []
    for number in range(len(names)):
        start = time.perf_counter()
        await spawn(number)
        took.append(time.perf_counter() - start)
    process = psutil.Process(pid_of(names[-1]))
    # What its start has left to do is not what it costs to wait.
    await asyncio.sleep(SETTLE_SECONDS)
    before = sum(process.cpu_times()[:2])
    await asyncio.sleep(seconds)
    # A share of nothing would be no ratio: the kernel counts in hundredths of a second.
    share = max(sum(process.cpu_times()[:2]) - before, 0.001) / seconds * 100.0
    return {
        "spawn": Figure.of(statistics.median(took), "s", SPAWN_SECONDS),
        "idle_cpu": Figure.of(share, "%", IDLE_PERCENT),
        "idle_memory": Figure.of(process.memory_info().rss / 1e6, "MB", megabytes),
    }


def pid_of(name: str) -> int:
    """The child of this name among the processes that this one has started."""
    for child in psutil.Process().children(recursive=True):
        if f"asyncrl:{name}" in child.cmdline():
            return child.pid
    raise RuntimeError(f"no process of ours is called {name}")
