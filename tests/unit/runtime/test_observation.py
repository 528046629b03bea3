"""Counters, traces and event files of real calls between processes."""

import asyncio
import logging
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from asyncrl.errors import ActorDied, CallFailed, Undeliverable
from asyncrl.observe.events import Event, read_run
from asyncrl.runtime import Actor, ActorSystem, EventWriter, RealHost, SupervisorClient, Watching, endpoint
from asyncrl.runtime.events import event_file
from asyncrl.runtime.inspector import INSPECTOR, Inspector
from asyncrl.runtime.liveness import Liveness
from asyncrl.runtime.records import Called, Died, EndpointStats, Refused, Restarted, Spanned, Started, Stats, Summary, Waited
from tests.unit.runtime.conftest import ROOT, Job
from tests.unit.runtime.runtime_actors import Caller, Counter, Slow


class Tracer(Actor):
    """Says which trace it serves, and what the next one in the row says."""

    concurrency = 0

    @endpoint
    async def trace(self, depth: int) -> list[str]:
        if not depth:
            return [self.context.trace]
        here = self.context.system.ref(self.context.system.address("tracer"), Tracer)
        return [self.context.trace, *await here.call(Tracer.trace, depth - 1)]


def of(stats: list[EndpointStats], endpoint: str) -> EndpointStats:
    return next(each for each in stats if each.endpoint == endpoint)


async def test_a_trace_begins_with_the_outermost_call_and_passes_on_to_the_calls_inside() -> None:
    async with ActorSystem.local(process="rank0") as system:
        ref = await system.spawn(Tracer, name="tracer")
        assert await ref.call(Tracer.trace, 2) == ["rank0.0-1"] * 3
        assert await ref.call(Tracer.trace, 0) == ["rank0.0-2"]


async def test_calls_are_counted_and_timed_at_both_ends() -> None:
    async with ActorSystem.local() as system:
        ref = await system.spawn(Counter, name="counter")
        for _ in range(3):
            await ref.call(Counter.add, 1)
        for _ in range(2):
            with pytest.raises(CallFailed):
                await ref.call(Counter.fail, "x")
        await ref.tell(Counter.add, 1)
        await ref.call(Counter.repeat)
        stats = system.stats()
        served, called = of(stats.served, "counter.add"), of(stats.called, "Counter.add")
        # Nobody waits for a tell, so only its callee times it.
        assert (served.calls, called.calls) == (4, 3)
        assert (of(stats.served, "counter.fail").failures, of(stats.called, "Counter.fail").failures) == (2, 2)
        assert 0 < served.quantile(0.5) < 1
        assert called.seconds > 0
        assert (stats.queued, stats.unanswered, stats.waits, stats.refusals) == ({}, {}, 0, 0)
        async with asyncio.timeout(10):
            assert await system.ref(system.address(INSPECTOR), Inspector).call(Inspector.waits) == [
                "0 s for asyncrl.inspector@main: Inspector.waits"
            ]


async def test_queues_and_what_is_owed_are_shown_while_they_are() -> None:
    class OneByOne(Slow):
        concurrency = 1

    async with ActorSystem.local() as system:
        ref = await system.spawn(OneByOne, name="slow")
        calls = [asyncio.ensure_future(ref.watched(60).call(OneByOne.hang)) for _ in range(3)]
        instance = system.instance("slow", OneByOne)
        await instance.started.wait()
        assert (system.stats().queued, system.stats().unanswered, system.stats().waits) == ({"slow": 2}, {"main": 3}, 3)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)


@pytest.fixture
async def recorded(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Job]:
    """A supervisor and a system whose processes all write event files."""
    monkeypatch.setenv("PYTHONPATH", ROOT)
    host, events = RealHost(), str(tmp_path / "events")
    watching = Watching(events=events, stacks=str(tmp_path / "logs"))
    client = SupervisorClient.start(
        host=host, folder=folder, log_folder=str(tmp_path / "logs"), attempt="a1", env_allow=["PYTHONPATH"], watching=watching
    )
    deaths: asyncio.Queue[object] = asyncio.Queue()
    client.attach_loop(deaths.put_nowait)
    writer = EventWriter(event_file(events, "rank0", 0), host, process="rank0", attempt="a1")
    endpoint = f"ipc://{folder}/rank0.sock"
    async with ActorSystem.bind("rank0", endpoint, host=host, attempt="a1", token=client.token, events=writer) as system:
        system.attach(client)
        yield Job(client, system, deaths)  # type: ignore[arg-type]
    await client.stop(grace=2.0)


def records(folder: Path, process: str, kind: type[object]) -> list[Event]:
    return [event for event in read_run(folder) if event.process == process and isinstance(event.record, kind)]


async def test_every_process_of_a_job_writes_what_happens_in_it(recorded: Job, tmp_path: Path, folder: str) -> None:
    counter = await recorded.system.spawn(Counter, name="counter", process="child-0", restarts=1)
    caller = await recorded.system.spawn(Caller, name="caller", process="child-1")
    await recorded.system.spawn(Counter, name="counter")
    assert recorded.system.events is not None
    with recorded.system.events.span("train", step=4):
        os.kill(recorded.client.pid_of("child-0"), signal.SIGKILL)
        await recorded.deaths.get()
        assert await counter.call(Counter.add, 1) == 1
        assert await caller.call(Caller.relay, recorded.system.address("counter"), 3) == 3
    async with ActorSystem.bind("stranger", f"ipc://{folder}/stranger.sock", host=RealHost(), attempt="a1") as stranger:
        with pytest.raises(Undeliverable, match="token"):
            await stranger.ref(recorded.system.address("x"), Counter).call(Counter.add, 1)
    await recorded.system.close()
    await recorded.client.stop()
    events = tmp_path / "events"
    starts = {(event.process, event.generation, event.record.attempt) for event in read_run(events) if isinstance(event.record, Started)}
    assert starts == {("rank0", 0, "a1"), ("child-0", 0, "a1"), ("child-0", 1, "a1"), ("child-1", 0, "a1")}
    calls = [event.record for event in read_run(events) if isinstance(event.record, Called)]
    (relay,) = [call for call in calls if call.endpoint == "caller.relay"]
    (add,) = [call for call in calls if call.caller == "child-1" and call.endpoint == "counter.add"]
    assert relay.caller == "rank0"
    assert relay.trace == add.trace
    assert relay.trace.startswith("rank0.0-")
    assert relay.seconds >= add.seconds
    death, *_ = records(events, "rank0", Died)
    assert isinstance(death.record, Died)
    assert (death.record.process, "SIGKILL" in death.record.cause) == ("child-0", True)
    (restart,) = records(events, "rank0", Restarted)
    assert isinstance(restart.record, Restarted)
    assert (restart.record.process, restart.record.generation) == ("child-0", 1)
    refusal, *_ = records(events, "rank0", Refused)
    (span,) = records(events, "rank0", Spanned)
    assert death.time <= restart.time <= span.time <= refusal.time
    summary = records(events, "child-1", Summary)[-1].record
    assert isinstance(summary, Summary)
    assert of(summary.stats.served, "caller.relay").calls == 1


async def test_a_wait_of_a_second_is_recorded_when_it_ends(tmp_path: Path) -> None:
    path = event_file(str(tmp_path), "main", 0)
    async with ActorSystem.bind(
        "main", f"ipc://{tmp_path}/s", host=RealHost(), events=EventWriter(path, RealHost(), process="main")
    ) as system:
        ref = await system.spawn(Slow, name="slow")
        call = asyncio.ensure_future(ref.call(Slow.hang))
        await ref.call(Slow.has_started)
        # It is made to look old.
        system.waits.snapshot()[0].since -= 5.0
        await system.stop("slow")
        with pytest.raises(ActorDied):
            await call
    (waited,) = [event.record for event in read_run(tmp_path) if isinstance(event.record, Waited)]
    assert (waited.who, waited.what) == ("slow@main", "Slow.hang")
    assert 5.0 <= waited.seconds < 60


def test_stats_travel() -> None:
    stats = Stats(served=[EndpointStats("a.b", 2, 1, 0.5, [(3, 2)])], queued={"a": 1})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(stats), type=Stats) == stats


class Said(logging.Handler):
    """Sets an event at a line that has the words."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words
        self.lines: list[str] = []
        self.heard = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        if self.words in record.getMessage():
            self.lines.append(record.getMessage())
            self._loop.call_soon_threadsafe(self.heard.set)


async def test_a_wait_past_its_limit_brings_the_stacks_of_the_process_that_is_waited_for(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", ROOT)
    stacks, said = tmp_path / "logs", Said("past its limit")
    logger = logging.getLogger("asyncrl.runtime.watchdog")
    logger.addHandler(said)
    liveness = Liveness(stalled_after=0.2)
    async with (
        ActorSystem.bind("there", f"ipc://{folder}/there.sock", host=RealHost()) as there,
        ActorSystem.bind(
            "main", f"ipc://{folder}/main.sock", host=RealHost(), liveness=liveness, watching=Watching(budget=None, stacks=str(stacks))
        ) as system,
    ):
        ref = system.ref((await there.spawn(Slow, name="slow")).address, Slow)
        assert await ref.call(Slow.made) == 0
        # As if the timer of this wait had not been served for long.
        system.waits.enter("slow@there", "Slow.hang", 1.0).since -= 60.0
        async with asyncio.timeout(20):
            await said.heard.wait()
    logger.removeHandler(said)
    (line,) = said.lines
    assert re.match(r"waited 6\d\.\d s for slow@there: Slow.hang, 2 s past its limit of 1 s\nstacks of main: ", line)
    assert sorted(os.listdir(stacks)) == ["stacks-main-1.txt", "stacks-there-2.txt"]
    assert (stacks / "stacks-there-2.txt").read_text().startswith("stacks of there:\nthread MainThread:")
