"""What becomes of the idempotent calls of a caller that leaves: they block nobody once nobody can ask for their answer."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from asyncrl.errors import ActorDied, Undeliverable
from asyncrl.runtime import Actor, ActorRef, endpoint
from asyncrl.runtime.invocation import RETURN_SECONDS
from asyncrl.runtime.simulation import Faults, Simulation

SOON = 1.0
"""Virtual seconds in which what happens at once has happened."""


class Vault(Actor):
    """Serves one call at a time, and notes how each ended."""

    def __init__(self) -> None:
        self.begun, self.ended, self.stopped = 0, 0, 0

    @endpoint(idempotent=True)
    async def hold(self, seconds: float) -> int:
        self.begun += 1
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.stopped += 1
            raise
        self.ended += 1
        return self.ended

    @endpoint
    async def look(self) -> int:
        return self.begun


class Scene:
    """A vault ``there``, a caller ``gone`` that has one call in it and one behind that, and ``here``, who is not served meanwhile."""

    def __init__(self, simulation: Simulation, deadline: float) -> None:
        self.simulation = simulation
        self.there, self.here, self.gone = simulation.system("there"), simulation.system("here"), simulation.system("gone")
        self.theirs: ActorRef[Vault] = self.gone.ref(self.there.address("vault"), Vault).with_deadline(deadline)
        self.calls: list[asyncio.Future[int]] = []

    async def begin(self) -> None:
        await self.there.spawn(Vault, name="vault")
        self.calls = [asyncio.ensure_future(self.theirs.call(Vault.hold, 3600.0)) for _ in range(2)]
        await asyncio.sleep(SOON)
        assert self.vault.begun == 1

    @property
    def vault(self) -> Vault:
        return self.there.instance("vault", Vault)

    async def served_within(self, seconds: float) -> None:
        """The other caller gets its turn, and no call of the one that left runs on."""
        assert await self.here.ref(self.there.address("vault"), Vault).with_deadline(seconds).call(Vault.look) >= 1
        assert (self.vault.ended, self.vault.stopped) == (0, self.vault.begun)

    async def end(self) -> None:
        for system in (self.gone, self.here, self.there):
            await system.close()
        ends = await asyncio.gather(*self.calls, return_exceptions=True)
        assert all(isinstance(end, ActorDied | Undeliverable) for end in ends)


def play(scene: Callable[[Scene], Coroutine[object, object, None]], deadline: float = 3600.0, routers: float = 0.0) -> None:
    simulation = Simulation(5, Faults(routers=routers))

    async def main() -> None:
        stage = Scene(simulation, deadline)
        await stage.begin()
        await scene(stage)
        await stage.end()

    simulation.run(main)


async def says_goodbye(scene: Scene) -> None:
    await scene.gone.close()


async def begins_a_new_life(scene: Scene) -> None:
    later = scene.simulation.system("gone")
    assert await later.ref(scene.there.address("vault"), Vault).with_deadline(3 * SOON).call(Vault.look) == 1
    await later.close()


async def breaks_off_and_begins_a_new_life(scene: Scene) -> None:
    await scene.simulation.crash("gone")
    await asyncio.sleep(SOON)
    await begins_a_new_life(scene)


async def is_said_to_be_dead(scene: Scene) -> None:
    scene.there.peer_died("gone", "it was killed")


async def breaks_off_and_is_said_to_be_dead(scene: Scene) -> None:
    await scene.simulation.crash("gone")
    await asyncio.sleep(SOON)
    assert scene.vault.stopped == 0, "its answer may still be asked for"
    await is_said_to_be_dead(scene)


LEAVES = [says_goodbye, begins_a_new_life, breaks_off_and_begins_a_new_life, is_said_to_be_dead, breaks_off_and_is_said_to_be_dead]


@pytest.mark.parametrize("deadline", [3600.0, 0.0], ids=["with a deadline", "without"])
@pytest.mark.parametrize("leave", LEAVES, ids=lambda leave: leave.__name__)
def test_the_calls_of_a_caller_that_is_gone_for_good_stop_at_once(
    leave: Callable[[Scene], Coroutine[object, object, None]], deadline: float
) -> None:
    async def scene(stage: Scene) -> None:
        await leave(stage)
        await stage.served_within(3 * SOON)

    play(scene, deadline)


@pytest.mark.parametrize(("deadline", "longest"), [(20.0, 20.0), (0.0, RETURN_SECONDS)], ids=["with a deadline", "without"])
def test_the_calls_of_a_caller_that_only_broke_off_stop_when_it_cannot_be_expected_any_more(deadline: float, longest: float) -> None:
    async def scene(stage: Scene) -> None:
        await stage.simulation.crash("gone")
        await stage.served_within(3 * longest)

    play(scene, deadline)


@pytest.mark.parametrize("routers", [0.0, 1.0], ids=["both ends told", "manners of a ROUTER"])
def test_a_call_that_came_again_runs_on_although_its_first_connection_is_gone(routers: float) -> None:
    """With the manners of a ROUTER its end is noticed after the call has come over another one."""
    simulation = Simulation(5, Faults(routers=routers))
    length = 4 * RETURN_SECONDS

    async def main() -> None:
        async with simulation.system("there") as there, simulation.system("here") as here:
            await there.spawn(Vault, name="vault")
            call = asyncio.ensure_future(here.ref(there.address("vault"), Vault).with_deadline(0.0).call(Vault.hold, length))
            await asyncio.sleep(SOON)
            simulation.network.cut("there#0", "here#0")
            assert await call == 1
            assert there.instance("vault", Vault).begun == 1

    simulation.run(main)
