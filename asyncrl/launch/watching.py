"""How the processes of a run are looked after: their event files, their watcher threads, their stacks on request."""

import asyncio

from asyncrl.launch.environment import Place
from asyncrl.launch.guard import Guard
from asyncrl.launch.run_folder import RunFolder
from asyncrl.runtime.events import EventWriter, open_events
from asyncrl.runtime.host import RealHost
from asyncrl.runtime.stacks import answer_signal
from asyncrl.runtime.system import ActorSystem
from asyncrl.runtime.watching import Watching

SHORTEST_BUDGET = 120.0


def watching(folder: RunFolder, silence: float | None = None) -> Watching:
    """The settings of a process of the run. The event loop of a rank may stand still for as long as a call may be silent:
    it reads prompts and loads models."""
    budget = SHORTEST_BUDGET if silence is None else max(SHORTEST_BUDGET, silence)
    return Watching(budget=budget, stacks=str(folder.logs), events=str(folder.path / "events"))


def open_rank_events(host: RealHost, folder: RunFolder, place: Place, attempt: str, guard: Guard) -> EventWriter | None:
    """The event file of a rank, which the guard writes out before it ends the rank."""
    events = open_events(host, watching(folder), f"rank{place.rank}", 0, attempt)
    guard.last_act = None if events is None else events.flush
    return events


def watch_rank(system: ActorSystem, folder: RunFolder, guard: Guard) -> None:
    """A rank that is ended because it is stuck says so as the first cause; SIGUSR1 writes its stacks into its log."""
    system.observation.on_stuck = lambda report: guard.claim(f"{system.process}: {report}")
    # Open as long as the process lives: the signal may come at any time.
    answer_signal((folder.logs / f"{system.process}.log").open("a", encoding="utf-8"), asyncio.get_running_loop())
