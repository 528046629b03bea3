"""Pauses of engines in processes of their own: one that dies meanwhile ends nothing, and nobody waits for its next life."""

import functools
import logging
from collections.abc import Awaitable, Callable, Sequence

from asyncrl.errors import ActorDied, CallTimedOut, Undeliverable
from asyncrl.runtime.ref import ActorRef
from asyncrl.runtime.tasks import all_of, running
from asyncrl.workers.fleet import EngineFleet
from asyncrl.workers.rollout import RolloutWorker

logger = logging.getLogger(__name__)

TRIES = 3
"""How often an order is given to an engine whose connection breaks and that lives."""
NOTICE_SECONDS = 1.0
"""How long word of an engine's death may take after its connection has broken."""


class EngineDown(Exception):
    """An engine has died, and has not begun its next life."""


async def pause_living(engines: Sequence[ActorRef[RolloutWorker]], fleet: ActorRef[EngineFleet]) -> None:
    """Pause every engine that lives. A dead one has nothing to give back, and begins its next life unpaused."""
    await all_of([functools.partial(_order, engine, fleet, RolloutWorker.pause) for engine in engines])


async def resume_living(engines: Sequence[ActorRef[RolloutWorker]], fleet: ActorRef[EngineFleet]) -> None:
    """Resume every engine that lives, whether it was paused or not."""
    await all_of([functools.partial(_order, engine, fleet, RolloutWorker.resume) for engine in engines])


async def _order(
    engine: ActorRef[RolloutWorker], fleet: ActorRef[EngineFleet], order: Callable[[RolloutWorker], Awaitable[object]]
) -> None:
    """Return when the engine has followed the order, or is down.

    A connection that breaks does not say that the engine is dead, and it may be paused: one that lives is told again.
    """
    process = engine.address.process

    async def until_down() -> None:
        # It waits as long as the engine lives.
        await fleet.with_deadline(0.0).call(EngineFleet.down, process)
        raise EngineDown(process)

    for tried in range(1, TRIES + 1):
        try:
            async with running(until_down):
                await engine.call(order)
            return
        except EngineDown:
            return
        except (ActorDied, Undeliverable) as error:
            logger.warning("%s has not followed: %s", process, error)
            if await _is_down(fleet, process):
                return
            if tried == TRIES:
                raise


async def _is_down(fleet: ActorRef[EngineFleet], process: str) -> bool:
    """Whether an engine whose connection broke has died."""
    try:
        await fleet.with_deadline(NOTICE_SECONDS).call(EngineFleet.down, process)
    except CallTimedOut:
        return False
    return True
