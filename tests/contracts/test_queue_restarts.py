"""Shards in processes of their own that are killed: restarted in place, with a journal nothing acknowledged is lost."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from unittest import mock

import psutil
import pytest

from asyncrl.errors import ActorDied, QueueStorageError, ShardLost
from asyncrl.runtime import ActorSystem, endpoint
from asyncrl.runtime.files import DiskFolder
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue.client import Snapshot, Tag, TransferQueue, WatchEvent
from asyncrl.transfer_queue.keys import placement
from asyncrl.transfer_queue.shard import QueueShard, ShardOptions

NOTICED = 2.0
"""Seconds within which a dead shard is noticed and restarted, on a quiet machine."""


async def started(system: ActorSystem, slots: int, options: ShardOptions) -> TransferQueue:
    return TransferQueue(
        [await system.spawn(QueueShard, slot, options, name=f"shard-{slot}", process=f"shard-{slot}", restarts=3) for slot in range(slots)]
    )


def kill(slot: int) -> None:
    """Kills the process of a shard as it is now."""
    for process in psutil.Process().children(recursive=True):
        if f"asyncrl:shard-{slot}" in process.cmdline():
            os.kill(process.pid, signal.SIGKILL)
            return
    raise AssertionError(f"shard {slot} does not run")


def kept(folder: Path) -> ShardOptions:
    return ShardOptions(journal="interval", journal_folder=str(folder))


async def test_a_killed_shard_has_all_its_rows_again_and_the_other_never_stopped(tmp_path: Path) -> None:
    async with ActorSystem.local() as system:
        queue = await started(system, 2, kept(tmp_path))
        keys = [f"u{number}_0" for number in range(1000)]
        for start in range(0, 1000, 100):
            batch = keys[start : start + 100]
            rows = Column.jagged("int64", [[number] * (number % 5) for number in range(start, start + 100)])
            await queue.kv_batch_put(batch, "train", {"x": rows}, [{"n": start}] * 100)
        loop = asyncio.get_running_loop()
        kill(0)
        since = loop.time()
        other = next(key for key in keys if placement(key, 2) == 1)
        assert (await queue.kv_batch_get([other], "train", ["x"]))["x"].rows == 1
        found = await queue.kv_batch_get(keys, "train", ["x"])
        assert loop.time() - since < 3 * NOTICED
        assert found["x"].to_list() == [[number] * (number % 5) for number in range(1000)]
        assert len(await queue.kv_list("train")) == 1000


async def test_without_a_journal_the_loss_is_told_to_readers_and_watchers(tmp_path: Path) -> None:
    async with ActorSystem.local() as system:
        queue = await started(system, 1, ShardOptions())
        await queue.kv_put("u_0", "train", {"x": Column.dense([1])}, {"n": 1})
        async with aclosing(queue.watch("train")) as events:
            before = await anext(events)
            assert isinstance(before, Snapshot)
            assert (sorted(before.rows), before.lost) == (["u_0"], "")
            kill(0)
            after = await anext(events)
            assert isinstance(after, Snapshot)
            assert (after.rows, after.lost) == ({}, before.incarnation)
        with pytest.raises(ShardLost) as lost:
            await queue.kv_batch_get(["u_0"], "train", ["x"])
        assert (lost.value.slot, lost.value.incarnation) == (0, before.incarnation)
        await queue.kv_put("u_0", "train", {"x": Column.dense([2])})
        assert (await queue.kv_batch_get(["u_0"], "train", ["x"]))["x"].to_list() == [2]


async def test_puts_that_meet_kills_have_one_effect_each_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    async with ActorSystem.local() as system:
        queue = await started(system, 2, kept(tmp_path))
        draw = random.Random(3)
        done: list[str] = []
        milestones = {count: asyncio.Event() for count in (60, 160, 260)}

        async def client(number: int) -> None:
            for step in range(60):
                key = f"c{number}s{step}_0"
                await queue.kv_put(key, "train", {"x": Column.dense([step])}, {"step": step})
                done.append(key)
                if len(done) in milestones:
                    milestones[len(done)].set()

        async def killer() -> None:
            for reached in milestones.values():
                await reached.wait()
                kill(draw.randrange(2))

        async with asyncio.timeout(50), asyncio.TaskGroup() as group:
            for number in range(6):
                group.create_task(client(number))
            group.create_task(killer())
        found = await queue.kv_batch_get(done, "train", ["x"])
        assert found["x"].to_list() == [int(key.split("s")[1].split("_")[0]) for key in done]
        assert len(done) == 360


async def test_a_watch_goes_on_over_a_restart_and_sees_the_last_state(tmp_path: Path) -> None:
    async with ActorSystem.local() as system:
        queue = await started(system, 1, kept(tmp_path))
        await queue.kv_put("u", "train", tag={"n": 0})
        async with aclosing(queue.watch("train")) as events:
            seen = dict((await anext(events)).rows)
            kill(0)
            await queue.kv_set_tags(["u"], "train", [{"n": 1}])
            async with asyncio.timeout(20):
                while seen != {"u": {"n": 1}}:
                    event = await anext(events)
                    seen = dict(event.rows) if isinstance(event, Snapshot) else {**seen, **event.rows}


class ShortLived(QueueShard):
    """A shard whose next lives end when somebody begins to watch: the kill comes before the first event."""

    @endpoint
    async def watch(self, partition_id: str, where: Tag | None) -> AsyncIterator[WatchEvent]:
        ends = Path(self._options.journal_folder) / "ends"
        if ends.exists() and (left := int(ends.read_text())):
            ends.write_text(str(left - 1))
            os.kill(os.getpid(), signal.SIGKILL)
        async for event in super().watch(partition_id, where):
            yield event


async def test_a_watch_outlives_lives_that_end_before_their_first_event(tmp_path: Path) -> None:
    async with ActorSystem.local() as system:
        options = ShardOptions(journal="interval", journal_folder=str(tmp_path))
        shard = await system.spawn(ShortLived, 0, options, name="shard-0", process="shard-0", restarts=4)
        queue = TransferQueue([system.ref(shard.address, QueueShard).with_deadline(60.0)])
        await queue.kv_put("u_0", "train", tag={"n": 1})
        async with aclosing(queue.watch("train")) as events:
            assert isinstance(await anext(events), Snapshot)
            (tmp_path / "ends").write_text("2")
            kill(0)
            again = await anext(events)
            assert isinstance(again, Snapshot)
            assert dict(again.rows) == {"u_0": {"n": 1}}
            assert (tmp_path / "ends").read_text() == "0"


async def test_a_watch_of_a_shard_that_is_gone_for_good_ends_with_its_death(tmp_path: Path) -> None:
    async with ActorSystem.local() as system:
        shard = await system.spawn(QueueShard, 0, name="shard-0", process="shard-0")
        async with aclosing(TransferQueue([shard]).watch("train")) as events:
            assert isinstance(await anext(events), Snapshot)
            kill(0)
            with pytest.raises(ActorDied, match="shard-0"):
                await anext(events)


class InterruptedStart(QueueShard):
    """A shard whose first life is killed when it has written down what it takes over, and nobody knows it yet."""

    async def on_start(self) -> None:
        if self.context.system.identity.generation == 0:
            mock.patch.object(DiskFolder, "rename", _dies).start()
        await super().on_start()


def _dies(folder: DiskFolder, name: str, new: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def test_a_first_start_that_was_killed_is_done_again_by_the_next_one_of_the_attempt(tmp_path: Path) -> None:
    saved, empty, used = str(tmp_path / "saved"), str(tmp_path / "empty"), str(tmp_path / "used")
    async with ActorSystem.local() as system:
        options = ShardOptions(journal="interval", journal_folder=used)
        before = TransferQueue([await system.spawn(QueueShard, 0, options, name="before")])
        await before.kv_batch_put(["a_0", "b_0"], "train", {"x": Column.dense([1, 2])})
        await before.snapshot(saved)
        await before.kv_clear(["a_0"], "train", retain=2)

        async def rows(name: str, options: ShardOptions) -> list[str]:
            with pytest.raises(ActorDied):
                await system.spawn(InterruptedStart, 0, options, name=name, process=name, restarts=3)
            shard = await system.spawn(InterruptedStart, 0, options, name=name, process=name, restarts=3)
            queue = TransferQueue([system.ref(shard.address, QueueShard).with_deadline(20.0)])
            [figures] = await queue.stats()
            assert figures.incarnation.endswith(".1")
            assert figures.damaged == []
            return sorted(await queue.kv_list("train"))

        restore = ShardOptions(journal="interval", journal_folder=empty, restore=saved, resume_step=1)
        resume = ShardOptions(journal="interval", journal_folder=used, resume_step=1)
        restored, resumed = await asyncio.gather(rows("restored", restore), rows("resumed", resume))
        assert restored == resumed == ["a_0", "b_0"]


async def test_a_cut_that_went_with_its_shard_is_not_taken_for_another_moment(tmp_path: Path) -> None:
    async with ActorSystem.local() as system:
        queue = await started(system, 1, kept(tmp_path))
        await queue.kv_batch_put(["a_0", "trained_0"], "train", {"x": Column.dense([1, 2])})
        cuts = await queue.cut(["trained_0"], "train")
        kill(0)
        await queue.kv_put("a_0", "train", {"adv": Column.dense([9])}, step=2)
        with pytest.raises(QueueStorageError, match=r"shard-0: the rows of event 1 of incarnation .* are gone"):
            await queue.snapshot(str(tmp_path / "saved"), cuts)
        [again] = await queue.cut(["trained_0"], "train")
        assert [manifest.rows for manifest in await queue.snapshot(str(tmp_path / "saved"), [again])] == [1]
