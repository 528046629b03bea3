"""The client of a supervisor, whose supervisor here is a process that only sleeps and says what the test says."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from asyncrl.errors import ActorDied, WireError
from asyncrl.runtime import ActorAddress, ProcessDeath, ProcessSpec, RealHost, Restarted, SupervisorClient
from asyncrl.runtime.host import ControlSocket, launch_session, socket_pair
from asyncrl.runtime.supervisor_messages import LONGEST_ORDER, Died, Membership, NotReady, Ready, framed
from asyncrl.runtime.whereabouts import Whereabouts

NOBODY = 1 << 30
"""A number that no process has."""
SPEC = ProcessSpec("late", "module:Class", b"", {})


class Fake:
    """A client, the mouth of its supervisor, and what the loop was told of errors."""

    def __init__(self, client: SupervisorClient, mouth: ControlSocket, errors: list[BaseException]) -> None:
        self.client, self.mouth, self.errors = client, mouth, errors

    def says(self, *reports: msgspec.Struct) -> None:
        """All in one read."""
        self.mouth.sendall(b"".join(framed(report) for report in reports))


@pytest.fixture
async def fake(folder: str, tmp_path: Path) -> AsyncIterator[Fake]:
    near, far = socket_pair()
    with RealHost().open_append(str(tmp_path / "log")) as log:
        process = launch_session([sys.executable, "-c", "import time; time.sleep(60)"], {}, (), log)
    near.setblocking(False)
    client = SupervisorClient(process, near, folder, str(tmp_path / "log"), "a1", b"t" * 32)
    errors: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["exception"]))
    yield Fake(client, far, errors)
    far.close()
    client.kill()


def address(name: str, generation: int = 0) -> ActorAddress:
    return ActorAddress(name, f"ipc:///nowhere/{name}", name, "a1", generation)


def dead(name: str) -> Died:
    return Died(ProcessDeath(name, NOBODY, "exit code 1", []))


async def started(fake: Fake, *names: str) -> "list[asyncio.Task[ActorAddress]]":
    """Spawns that wait for their answers."""
    starts = [asyncio.create_task(fake.client.spawn(msgspec.structs.replace(SPEC, name=name))) for name in names]
    await asyncio.sleep(0)
    return starts


def raising(error: type[BaseException], seen: list[str], of: Callable[[ProcessDeath | Restarted], str]) -> Callable[..., None]:
    def callback(report: ProcessDeath | Restarted) -> None:
        seen.append(of(report))
        raise error(f"a bug of the user at {of(report)}")

    return callback


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
async def test_a_callback_that_raises_costs_no_other_report(fake: Fake, error: type[BaseException]) -> None:
    told: list[str] = []
    learnt: list[str] = []
    callback = raising(error, told, lambda report: report.name)
    fake.client.attach_loop(callback, callback)

    def bad(news: Whereabouts) -> None:
        raise error("a bug of the first system")

    fake.client.adopt(Membership("a1", b""), bad)
    fake.client.adopt(Membership("a1", b""), lambda news: learnt.append(f"{news.process} {news.state}"))
    late, worse = await started(fake, "late", "worse")
    fake.says(dead("one"), Restarted("two", NOBODY, address("two", 1)), dead("three"), Ready("late", NOBODY, address("late")))
    fake.says(NotReady("worse", "no memory", []))
    async with asyncio.timeout(3):
        assert await late == address("late")
        with pytest.raises(ActorDied, match="no memory"):
            await worse
    assert told == ["one", "two", "three"]
    assert learnt == ["one dead", "two up", "three dead", "late up"]
    # Three of the user, and one of the first system for each of four processes.
    assert [type(each) for each in fake.errors] == [error] * 7


async def test_a_callback_that_raises_at_the_supervisors_end_leaves_nobody_waiting(fake: Fake) -> None:
    told: list[str] = []
    fake.client.attach_loop(raising(ValueError, told, lambda report: report.name))
    (late,) = await started(fake, "late")
    fake.says(dead("one"), dead("two"))
    os.kill(fake.client.pid, 9)
    async with asyncio.timeout(3):
        with pytest.raises(ActorDied, match="its supervisor ended"):
            await late
    assert told == ["one", "two", "supervisor"]
    assert fake.client.gone


def test_a_callback_that_ends_the_program_costs_no_other_report(folder: str, tmp_path: Path) -> None:
    near, far = socket_pair()
    with RealHost().open_append(str(tmp_path / "log")) as log:
        process = launch_session([sys.executable, "-c", "import time; time.sleep(60)"], {}, (), log)
    near.setblocking(False)
    told: list[str] = []

    async def main() -> None:
        last = asyncio.Event()

        def leave(death: ProcessDeath) -> None:
            told.append(death.name)
            if death.name == "one":
                sys.exit(3)
            if death.name == "three":
                last.set()

        client = SupervisorClient(process, near, folder, str(tmp_path / "log"), "a1", b"t" * 32)
        client.attach_loop(leave)
        far.sendall(b"".join(framed(dead(name)) for name in ("one", "two", "three")))
        try:
            await asyncio.Event().wait()
        finally:
            async with asyncio.timeout(3):
                await last.wait()
            client.kill()

    with pytest.raises(SystemExit), asyncio.Runner() as runner:
        runner.run(main())
    far.close()
    assert told == ["one", "two", "three"]


@pytest.mark.parametrize("way", ["kill", "stop"])
async def test_a_client_that_is_over_touches_no_process_and_no_descriptor(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    fake.client.attach_loop(lambda death: None)
    if way == "kill":
        fake.client.kill()
    else:
        stop = asyncio.create_task(fake.client.stop(grace=0.1))
        await asyncio.sleep(0)
        os.kill(fake.client.pid, 9)
        await stop
    # Files that get the numbers which the client had.
    files = [os.open(tmp_path / f"file-{number}", os.O_CREAT | os.O_WRONLY) for number in range(6)]
    signalled: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda pid, number: signalled.append(pid))
    fake.client.kill()
    await fake.client.stop()
    fake.client.replace("one", 0, "frozen")
    fake.client.kill()
    assert signalled == []
    for file in files:
        assert os.write(file, b"still mine") == 10
        os.close(file)


async def test_what_waits_for_a_killed_supervisor_is_answered(fake: Fake) -> None:
    told: list[str] = []
    learnt: list[str] = []
    fake.client.attach_loop(lambda death: told.append(death.name))
    fake.client.adopt(Membership("a1", b""), lambda news: learnt.append(f"{news.process} {news.state}: {news.cause}"))
    late, up = await started(fake, "late", "up")
    fake.says(Ready("up", NOBODY, address("up")))
    async with asyncio.timeout(3):
        await up
        stop = asyncio.create_task(fake.client.stop_child("up"))
        await asyncio.sleep(0)
        fake.client.kill()
        with pytest.raises(ActorDied, match=r"late died: its supervisor ended: signal 9 \(SIGKILL\)"):
            await late
        assert await stop == "signal 9 (SIGKILL)"
    assert list(dict.fromkeys(learnt)) == ["up up: ", "up dead: it was stopped"]
    assert told == []
    assert not fake.client.watches("up")


async def test_a_spawn_that_is_given_up_as_its_supervisor_goes_is_given_up(fake: Fake) -> None:
    fake.client.attach_loop(lambda death: None)
    (late,) = await started(fake, "late")
    fake.client.kill()
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late


@pytest.mark.parametrize("where", ["arguments", "environment", "name"])
async def test_an_order_too_large_for_a_supervisor_is_refused_before_it_is_sent(fake: Fake, where: str) -> None:
    fake.client.attach_loop(lambda death: None)
    fake.mouth.setblocking(False)
    large = {"arguments": b"x" * LONGEST_ORDER, "environment": {"X": "x" * LONGEST_ORDER}, "name": "x" * LONGEST_ORDER}[where]
    with pytest.raises(WireError, match=rf"Spawn of 16777\d+ bytes.* at most {LONGEST_ORDER} travel"):
        await fake.client.spawn(msgspec.structs.replace(SPEC, **{where: large}))
    with pytest.raises(BlockingIOError):
        fake.mouth.recv(1)
    # The name is free.
    (late,) = await started(fake, "late")
    fake.says(Ready("late", NOBODY, address("late")))
    async with asyncio.timeout(3):
        assert await late == address("late")


async def test_a_child_may_not_have_the_name_of_its_supervisor(fake: Fake) -> None:
    fake.client.attach_loop(lambda death: None)
    with pytest.raises(ValueError, match="supervisor is the name of the supervisor, a child needs another"):
        await fake.client.spawn(msgspec.structs.replace(SPEC, name="supervisor"))
