"""The TransferQueue under load and kills: histories against a dict, a budget against a slow consumer, a frozen writer."""

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from asyncrl.errors import ActorDied, Fenced, UnknownRow
from asyncrl.runtime import Actor, ActorSystem, endpoint
from asyncrl.runtime.messages import ActorAddress
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue.client import Guard, Snapshot, Tag, TransferQueue
from asyncrl.transfer_queue.shard import QueueShard, ShardOptions

FULL = pytest.param(1250, 6, id="10000 operations", marks=[pytest.mark.faults, pytest.mark.timeout(600)])
SHORT = pytest.param(60, 2, id="480 operations")
CLIENTS = 8


async def started(system: ActorSystem, slots: int, options: ShardOptions) -> TransferQueue:
    shards = [
        await system.spawn(QueueShard, slot, options, name=f"shard-{slot}", process=f"shard-{slot}", restarts=50) for slot in range(slots)
    ]
    return TransferQueue([shard.with_deadline(60.0) for shard in shards])


def process_of(name: str) -> psutil.Process:
    for process in psutil.Process().children(recursive=True):
        if f"asyncrl:{name}" in process.cmdline():
            return process
    raise AssertionError(f"{name} does not run")


class Client:
    """Random puts, guarded puts, gets, tags and clears of its own prompts, compared with what a dict holds."""

    def __init__(self, queue: TransferQueue, number: int, partition: str = "train") -> None:
        self._queue, self._draw, self._partition = queue, random.Random(number), partition
        self._uids = [f"c{number}p{prompt}" for prompt in range(4)]
        self.rows: dict[str, tuple[Tag, dict[str, list[int]]]] = {}
        self.checked = 0

    async def run(self, operations: int, done: asyncio.Semaphore) -> None:
        for _ in range(operations):
            await self._draw.choice((self._put, self._put, self._get, self._tag, self._clear, self._guarded))()
            done.release()

    def _key(self) -> str:
        return f"{self._draw.choice(self._uids)}_{self._draw.randrange(4)}_0"

    async def _put(self) -> None:
        keys = list(dict.fromkeys(self._key() for _ in range(self._draw.randrange(1, 4))))
        values = [[self._draw.randrange(1000) for _ in range(self._draw.randrange(6))] for _ in keys]
        field, number = self._draw.choice("xy"), self._draw.randrange(9)
        await self._queue.kv_batch_put(
            keys, self._partition, {field: Column.jagged("int64", values)}, [{"n": number}] * len(keys), overwrite=True
        )
        for key, value in zip(keys, values, strict=True):
            tag, fields = self.rows.get(key, ({}, {}))
            self.rows[key] = ({**tag, "n": number}, {**fields, field: value})

    async def _guarded(self) -> None:
        uid, lease = self._draw.choice(self._uids), self._draw.randrange(3)
        tag, fields = self.rows.get(uid, ({}, {}))
        put = self._queue.kv_put(
            f"{uid}_9_0", self._partition, {"x": Column.jagged("int64", [[lease]])}, guard=Guard(uid, {"lease": lease}), overwrite=True
        )
        if tag.get("lease") == lease:
            await put
            old, held = self.rows.get(f"{uid}_9_0", ({}, {}))
            self.rows[f"{uid}_9_0"] = (old, {**held, "x": [lease]})
        else:
            with pytest.raises(Fenced):
                await put
            await self._queue.kv_put(uid, self._partition, tag={"lease": lease})
            self.rows[uid] = ({**tag, "lease": lease}, fields)

    async def _get(self) -> None:
        key = self._key()
        held = self.rows.get(key)
        if held is None:
            with pytest.raises(UnknownRow):
                await self._queue.kv_batch_get([key], self._partition, ["x"])
        elif held[1]:
            found = await self._queue.kv_batch_get([key], self._partition, sorted(held[1]))
            assert {name: column.to_list()[0] for name, column in found.items()} == held[1]
            self.checked += 1

    async def _tag(self) -> None:
        key, number = self._key(), self._draw.randrange(9)
        if key in self.rows:
            await self._queue.kv_set_tags([key], self._partition, [{"t": number}])
            tag, fields = self.rows[key]
            self.rows[key] = ({**tag, "t": number}, fields)

    async def _clear(self) -> None:
        keys = [self._key() for _ in range(2)]
        keys = list(dict.fromkeys(keys))
        await self._queue.kv_clear(keys, self._partition)
        for key in keys:
            self.rows.pop(key, None)


async def follow(queue: TransferQueue, seen: dict[int, dict[str, Tag]]) -> None:
    """What a watcher believes, shard by shard."""
    async for event in queue.watch("train"):
        if isinstance(event, Snapshot):
            seen[event.slot] = dict(event.rows)
            continue
        for key, tag in event.rows.items():
            if tag is None:
                seen[event.slot].pop(key, None)
            else:
                seen[event.slot][key] = tag


@pytest.mark.parametrize(("operations", "kills"), [SHORT, FULL])
async def test_eight_clients_and_killed_shards_leave_what_a_dict_holds(operations: int, kills: int, tmp_path: Path) -> None:
    async with ActorSystem.local() as system:
        queue = await started(system, 2, ShardOptions(journal="interval", journal_folder=str(tmp_path)))
        clients = [Client(queue, number) for number in range(CLIENTS)]
        done, draw = asyncio.Semaphore(0), random.Random(1)
        seen: dict[int, dict[str, Tag]] = {}

        async def killer() -> None:
            for _ in range(kills):
                for _ in range(operations * CLIENTS // (kills + 1)):
                    await done.acquire()
                process_of(f"shard-{draw.randrange(2)}").kill()

        watching = asyncio.ensure_future(follow(queue, seen))
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(client.run(operations, done))
            group.create_task(killer())
        rows: dict[str, tuple[Tag, dict[str, list[int]]]] = {}
        for client in clients:
            rows |= client.rows
            assert client.checked
        listed = await queue.kv_list("train")
        assert listed == {key: tag for key, (tag, _) in rows.items()}
        for name in "xy":
            keys = [key for key, (_, fields) in rows.items() if name in fields]
            found = (await queue.kv_batch_get(keys, "train", [name]))[name].to_list()
            assert found == [rows[key][1][name] for key in keys]
        await queue.kv_put("last", "train", tag={"end": True})
        async with asyncio.timeout(30):
            while {key for known in seen.values() for key in known} != {*rows, "last"}:
                assert not watching.done(), watching
                await queue.stats()
        assert {key: tag for known in seen.values() for key, tag in known.items()} == {**dict(listed), "last": {"end": True}}
        watching.cancel()


@pytest.mark.faults
@pytest.mark.timeout(300)
async def test_a_shard_with_ten_thousand_rows_is_back_after_a_kill(tmp_path: Path) -> None:
    async with ActorSystem.local() as system:
        queue = await started(system, 1, ShardOptions(journal="interval", journal_folder=str(tmp_path)))
        keys = [f"u{number}_0" for number in range(10_000)]
        for start in range(0, 10_000, 500):
            rows = Column.jagged("int32", [[number] * (number % 50) for number in range(start, start + 500)])
            await queue.kv_batch_put(keys[start : start + 500], "train", {"x": rows})
        process_of("shard-0").kill()
        since = asyncio.get_running_loop().time()
        found = await queue.kv_batch_get(keys, "train", ["x"])
        print(f"10,000 rows served again {asyncio.get_running_loop().time() - since:.2f} s after the kill")
        assert found["x"].to_list() == [[number] * (number % 50) for number in range(10_000)]


@pytest.mark.parametrize(
    ("rows", "megabytes"),
    [pytest.param(3000, 20, id="30 MB"), pytest.param(100_000, 64, id="1 GB", marks=[pytest.mark.faults, pytest.mark.timeout(600)])],
)
async def test_a_slow_consumer_blocks_producers_within_the_budget_and_nothing_is_dropped(rows: int, megabytes: int) -> None:
    budget = megabytes * 1_000_000
    async with ActorSystem.local() as system:
        queue = await started(system, 1, ShardOptions(budget_bytes=budget))
        process = process_of("shard-0")
        row = Column.dense(np.zeros((1, 10_000), np.uint8))
        # What the first traffic allocates for good is no growth.
        warm = [f"w{index}_0" for index in range(200)]
        for key in warm:
            await queue.kv_put(key, "train", {"x": row})
        await queue.kv_batch_get(warm, "train", ["x"])
        await queue.kv_clear(warm, "train")
        base = process.memory_info().rss
        consumed: list[str] = []
        most = waiting = 0

        async def produce(number: int) -> None:
            for index in range(number, rows, 4):
                await queue.kv_put(f"r{index}_0", "train", {"x": row})

        async def consume() -> None:
            nonlocal most, waiting
            while len(consumed) < rows:
                stats = (await queue.stats())[0]
                most, waiting = max(most, process.memory_info().rss - base), max(waiting, len(stats.waiting))
                # The consumer lets the shard fill up before it takes anything.
                if stats.waiting or stats.partitions.get("train", 0) == rows - len(consumed):
                    keys = list(await queue.kv_list("train"))[:50]
                    assert (await queue.kv_batch_get(keys, "train", ["x"]))["x"].rows == len(keys)
                    await queue.kv_clear(keys, "train")
                    consumed.extend(keys)

        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(produce(number))
            group.create_task(consume())
        print(f"budget {budget / 1e6:.0f} MB, the shard grew by {most / 1e6:.1f} MB at most, {waiting} producers waited at once")
        assert sorted(consumed) == sorted(f"r{index}_0" for index in range(rows))
        assert waiting
        assert most <= 1.2 * budget


class Writer(Actor):
    """An agent that holds a lease, and writes when it is told."""

    @endpoint
    async def connect(self, shards: list[ActorAddress]) -> None:
        self._queue = TransferQueue([self.context.system.ref(address, QueueShard) for address in shards])

    @endpoint
    async def write(self, lease: int) -> str:
        try:
            await self._queue.kv_put("u_0_0", "train", {"x": Column.dense([lease])}, guard=Guard("u", {"lease": lease}))
        except Fenced:
            return "fenced"
        return "written"


async def test_a_frozen_agent_that_was_replaced_cannot_write_when_it_wakes() -> None:
    async with ActorSystem.local() as system:
        shard = await system.spawn(QueueShard, 0, name="shard-0", process="new")
        queue = TransferQueue([shard])
        agents = [await system.spawn(Writer, name=f"agent-{number}", process="new") for number in range(2)]
        for agent in agents:
            await agent.call(Writer.connect, [shard.address])
        await queue.kv_put("u", "train", tag={"lease": 1})
        process_of("agent-0").send_signal(signal.SIGSTOP)
        late: asyncio.Future[Any] = asyncio.ensure_future(agents[0].call(Writer.write, 1))
        await queue.kv_put("u", "train", tag={"lease": 2})
        assert await agents[1].call(Writer.write, 2) == "written"
        os.kill(process_of("agent-0").pid, signal.SIGCONT)
        assert await late == "fenced"
        assert (await queue.kv_batch_get(["u_0_0"], "train", ["x"]))["x"].to_list() == [2]


async def test_a_shard_over_its_restarts_ends_its_callers_and_the_other_goes_on(tmp_path: Path) -> None:
    async with ActorSystem.local() as system:
        shards = [await system.spawn(QueueShard, slot, name=f"shard-{slot}", process=f"shard-{slot}") for slot in range(2)]
        queue = TransferQueue(shards)
        await queue.kv_batch_put(["a", "b", "c", "d"], "train", tags=[{}] * 4)
        process_of("shard-0").kill()
        with pytest.raises(ActorDied, match=r"shard-0"):
            await queue.kv_list("train")
        assert (await shards[1].call(QueueShard.stats)).partitions["train"] >= 1
