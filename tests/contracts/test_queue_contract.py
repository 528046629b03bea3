"""The TransferQueue's client over shards in this process, over sockets, and over shards in processes of their own."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from asyncrl.errors import ActorDied, Fenced, FieldExists, FieldMismatch, MissingField, UnknownRow, WireError
from asyncrl.runtime import ActorRef, ActorSystem, RealHost, SupervisorClient, private_folder
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue.client import Change, Guard, Snapshot, Tag, TransferQueue, WatchEvent
from asyncrl.transfer_queue.keys import placement
from asyncrl.transfer_queue.shard import QueueShard

SLOTS = 3
PROMPTS = [f"s1e0p{position}" for position in range(12)]
KEYS = [f"{uid}_{session}_0" for uid in PROMPTS for session in range(2)]


@asynccontextmanager
async def _shards_here(slots: int) -> AsyncIterator[list[ActorRef[QueueShard]]]:
    async with ActorSystem.local() as system:
        yield [await system.spawn(QueueShard, slot, name=f"shard_{slot}") for slot in range(slots)]


@asynccontextmanager
async def _shards_over_sockets(slots: int) -> AsyncIterator[list[ActorRef[QueueShard]]]:
    folder = private_folder()
    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        client = await stack.enter_async_context(ActorSystem.bind("client", f"ipc://{folder}/client.sock", host=RealHost()))
        server = await stack.enter_async_context(ActorSystem.bind("server", f"ipc://{folder}/server.sock", host=RealHost()))
        refs = []
        for slot in range(slots):
            await server.spawn(QueueShard, slot, name=f"shard_{slot}")
            refs.append(client.ref(server.address(f"shard_{slot}"), QueueShard))
        yield refs


@asynccontextmanager
async def _supervised(logs: Path) -> AsyncIterator[tuple[ActorSystem, SupervisorClient]]:
    folder, host = private_folder(), RealHost()
    supervisor = SupervisorClient.start(host=host, folder=folder, log_folder=str(logs), attempt="test", env_allow=[])
    supervisor.attach_loop(lambda death: None)
    try:
        async with ActorSystem.bind("main", f"ipc://{folder}/main.sock", host=host, attempt="test", token=supervisor.token) as system:
            system.attach(supervisor)
            yield system, supervisor
    finally:
        await supervisor.stop()


@pytest.fixture(params=[_shards_here, _shards_over_sockets], ids=["memory", "ipc"])
async def queue(request: pytest.FixtureRequest) -> AsyncIterator[TransferQueue]:
    open_shards: Callable[[int], AsyncIterator[list[ActorRef[QueueShard]]]] = request.param
    async with open_shards(SLOTS) as shards:  # type: ignore[attr-defined]
        yield TransferQueue(shards)


def _rows(count: int) -> Column:
    return Column.jagged("int64", [list(range(index % 4)) for index in range(count)])


async def test_rows_come_back_in_the_order_asked_for(queue: TransferQueue) -> None:
    tags: list[Tag] = [{"number": number} for number in range(len(KEYS))]
    await queue.kv_batch_put(KEYS, "train", {"x": _rows(len(KEYS)), "s": Column.strings(KEYS)}, tags)
    asked = [KEYS[index] for index in (20, 3, 3 + 8, 0, 17)]
    found = await queue.kv_batch_get(asked, "train", ["s", "x"])
    assert found["s"].to_list() == asked
    assert found["x"].to_list() == [list(range(KEYS.index(key) % 4)) for key in asked]
    assert await queue.kv_list("train") == dict(zip(KEYS, tags, strict=True))
    assert await queue.kv_list("train", {"number": 5}) == {KEYS[5]: {"number": 5}}
    assert await queue.kv_list("val") == {}
    stats = await queue.stats()
    assert [shard.slot for shard in stats] == [0, 1, 2]
    assert sum(shard.partitions["train"] for shard in stats) == len(KEYS)


@pytest.mark.parametrize("size", [3, 100_000])
async def test_every_kind_of_value_makes_the_round_trip(queue: TransferQueue, size: int) -> None:
    columns = {
        "jagged": Column.jagged("bfloat16", [np.arange(2 * size, dtype=np.uint16).reshape(size, 2)]),
        "empty": Column.jagged("float32", [[]]),
        "dense": Column.dense(np.arange(size, dtype=np.float64).reshape(1, size)),
        "flags": Column.dense(np.ones((1, size), np.bool_)),
        "scalar": Column.dense(np.array([7], np.int16)),
        "text": Column.strings(["é" * size]),
        "blob": Column.blobs([b"\0" * size]),
        "object": Column.objects([{"a": [1, None, {"b": "x" * size}]}]),
    }
    await queue.kv_put("s1e0p0_0_0", "train", columns)
    found = await queue.kv_batch_get(["s1e0p0_0_0"], "train", list(columns))
    assert {name: column.layout for name, column in found.items()} == {name: column.layout for name, column in columns.items()}
    assert {name: column.to_list() for name, column in found.items()} == {name: column.to_list() for name, column in columns.items()}


async def test_refusals_arrive_as_themselves_with_their_data(queue: TransferQueue) -> None:
    shard = placement("s1e0p0", SLOTS)
    await queue.kv_put("s1e0p0", "train", {"x": _rows(1)}, {"lease": 2})
    with pytest.raises(UnknownRow) as unknown:
        await queue.kv_batch_get(["s1e0p0_9_9"], "train", ["x"])
    assert (unknown.value.key, unknown.value.partition, unknown.value.shard) == ("s1e0p0_9_9", "train", shard)
    with pytest.raises(MissingField) as missing:
        await queue.kv_batch_get(["s1e0p0"], "train", ["y"])
    assert (missing.value.field, missing.value.known) == ("y", ("x",))
    with pytest.raises(FieldExists):
        await queue.kv_put("s1e0p0", "train", {"x": _rows(1)})
    with pytest.raises(FieldMismatch) as mismatch:
        await queue.kv_put("s1e0p0", "train", {"x": Column.dense([1])}, overwrite=True)
    assert (mismatch.value.seen, mismatch.value.expected) == ("dense int64 []", "jagged int64 [*]")
    with pytest.raises(Fenced) as fenced:
        await queue.kv_put("s1e0p0_0_0", "train", {"x": _rows(1)}, guard=Guard("s1e0p0", {"lease": 1}))
    assert (fenced.value.expected, fenced.value.seen) == ("{'lease': 1}", "{'lease': 2}")
    with pytest.raises(UnknownRow):
        await queue.kv_set_tags(["s1e0p0_5_0"], "train", [{}])
    assert await queue.kv_list("train") == {"s1e0p0": {"lease": 2}}


async def test_a_guarded_put_writes_rows_and_marker_at_once(queue: TransferQueue) -> None:
    await queue.kv_put("s1e0p0", "train", tag={"lease": 1, "status": "running"})
    rows = ["s1e0p0_0_0", "s1e0p0_1_0"]
    guard = Guard("s1e0p0", {"lease": 1, "status": "running"})
    async with aclosing(queue.watch("train")) as events:
        for _ in range(SLOTS):
            await anext(events)
        await queue.kv_batch_put(rows, "train", {"x": _rows(2)}, [{}, {}], also_tags={"s1e0p0": {"status": "finished"}}, guard=guard)
        change = await anext(events)
    assert change.rows == {"s1e0p0_0_0": {}, "s1e0p0_1_0": {}, "s1e0p0": {"lease": 1, "status": "finished"}}
    with pytest.raises(Fenced):
        await queue.kv_batch_put(rows, "train", {"x": _rows(2)}, guard=guard, overwrite=True)


async def test_requests_that_do_not_fit_are_refused_before_they_are_sent(queue: TransferQueue) -> None:
    with pytest.raises(ValueError, match="field 'x' has 1 rows for 2 keys"):
        await queue.kv_batch_put(["a", "b"], "train", {"x": _rows(1)})
    with pytest.raises(ValueError, match="1 tags for 2 keys"):
        await queue.kv_batch_put(["a", "b"], "train", tags=[{}])
    with pytest.raises(ValueError, match="'a' is named twice"):
        await queue.kv_batch_put(["a", "a"], "train", {"x": _rows(2)})
    with pytest.raises(ValueError, match="'a' is named twice"):
        await queue.kv_batch_put(["a"], "train", also_tags={"a": {}})
    with pytest.raises(ValueError, match="'a' is named twice"):
        await queue.kv_batch_get(["a", "a"], "train", ["x"])
    with pytest.raises(ValueError, match="different shards"):
        await queue.kv_batch_put(PROMPTS, "train", tags=[{} for _ in PROMPTS], guard=Guard(PROMPTS[0], {}))
    with pytest.raises(ValueError, match="1 tags for 2 keys"):
        await queue.kv_set_tags(["a", "b"], "train", [{}])
    assert await queue.kv_list("train") == {}


async def test_no_rows_are_put_and_read_as_no_rows(queue: TransferQueue) -> None:
    await queue.kv_batch_put([], "train", {"x": _rows(0)}, [])
    with pytest.raises(MissingField):
        await queue.kv_batch_get([], "train", ["x"])
    await queue.kv_put("s1e0p0", "train", {"x": _rows(1)})
    found = await queue.kv_batch_get([], "train", ["x"])
    assert (found["x"].rows, found["x"].layout) == (0, ("int64", (), True))


async def test_tags_are_merged_and_rows_cleared_with_their_memory(queue: TransferQueue) -> None:
    await queue.kv_batch_put(KEYS, "train", {"x": _rows(len(KEYS))}, [{"a": 1} for _ in KEYS])
    await queue.kv_set_tags(KEYS, "train", [{"b": index} for index in range(len(KEYS))])
    assert await queue.kv_list("train", {"b": 3}) == {KEYS[3]: {"a": 1, "b": 3}}
    await queue.kv_clear([*KEYS, "absent", KEYS[0]], "train")
    await queue.kv_clear(KEYS, "train")
    assert await queue.kv_list("train") == {}
    assert [(shard.segments, shard.stored_bytes, shard.partitions) for shard in await queue.stats()] == [(0, 0, {})] * SLOTS


async def test_a_column_whose_buffer_does_not_fit_is_refused_by_the_shard(queue: TransferQueue) -> None:
    bad = Column("int64", (), np.zeros(3, np.int64), np.array([0, 3, 2, 3]), 3)
    with pytest.raises(WireError, match="do not rise from 0"):
        await queue.kv_batch_put(["a_0", "a_1", "a_2"], "train", {"x": bad})
    assert await queue.kv_list("train") == {}


def _apply(event: WatchEvent, seen: dict[int, dict[str, Tag]], numbers: dict[int, int]) -> None:
    """What a watcher knows of each shard after an event; its numbers must have no gap."""
    assert event.seq == numbers.get(event.slot, -1) + 1
    numbers[event.slot] = event.seq
    if isinstance(event, Snapshot):
        seen[event.slot] = dict(event.rows)
        return
    for key, tag in event.rows.items():
        if tag is None:
            seen[event.slot].pop(key, None)
        else:
            seen[event.slot][key] = tag


async def test_a_watch_joins_all_shards_and_ends_in_what_is_listed(queue: TransferQueue) -> None:
    await queue.kv_batch_put(PROMPTS[:4], "train", tags=[{"status": "old"} for _ in range(4)])
    seen: dict[int, dict[str, Tag]] = {}
    numbers: dict[int, int] = {}

    async def follow() -> None:
        async with aclosing(queue.watch("train")) as events:
            async for event in events:
                _apply(event, seen, numbers)
                if len(seen) == SLOTS and all("end" in rows for rows in map(_statuses, seen.values())):
                    return

    async def write() -> None:
        for number in range(40):
            await queue.kv_batch_put(PROMPTS, "train", tags=[{"status": number} for _ in PROMPTS])
            await queue.kv_clear([PROMPTS[number % len(PROMPTS)]], "train")
        ends = {placement(uid, SLOTS): uid for uid in PROMPTS}
        await queue.kv_batch_put([f"{uid}_end" for uid in ends.values()], "train", tags=[{"status": "end"} for _ in ends])

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(follow())
        group.create_task(write())
    listed = await queue.kv_list("train")
    assert {key: tag for rows in seen.values() for key, tag in rows.items()} == listed
    assert len(listed) == len(PROMPTS) - 1 + SLOTS


def _statuses(rows: dict[str, Tag]) -> list[object]:
    return [tag.get("status") for tag in rows.values()]


async def test_a_slow_watcher_gets_merged_states_and_the_last_one(queue: TransferQueue) -> None:
    async with aclosing(queue.watch("train", {"kind": "marker"})) as events:
        for _ in range(SLOTS):
            assert isinstance(await anext(events), Snapshot)
        for number in range(300):
            await queue.kv_put("s1e0p0", "train", tag={"kind": "marker", "number": number})
            await queue.kv_put("s1e0p0_0_0", "train", tag={"kind": "row", "number": number})
        read = 0
        while True:
            event = await anext(events)
            assert isinstance(event, Change)
            assert list(event.rows) == ["s1e0p0"]
            read += 1
            if event.rows["s1e0p0"] == {"kind": "marker", "number": 299}:
                break
    assert read < 100


async def _until_watchers_are(queue: TransferQueue, count: int) -> None:
    """Ask until so many watch, which takes a few round trips."""
    for _ in range(1000):
        if sum(shard.watchers for shard in await queue.stats()) == count:
            return
    raise AssertionError(f"there never were {count} watchers")


async def test_a_watcher_that_leaves_or_is_cancelled_is_forgotten(queue: TransferQueue) -> None:
    async with aclosing(queue.watch("train")) as events:
        await anext(events)
        await _until_watchers_are(queue, SLOTS)
    await _until_watchers_are(queue, 0)

    async def wait_for_ever() -> None:
        async for _ in queue.watch("train"):
            pass

    task = asyncio.get_running_loop().create_task(wait_for_ever())
    await _until_watchers_are(queue, SLOTS)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _until_watchers_are(queue, 0)


async def test_a_watch_can_rest_longer_than_a_call_may(queue: TransferQueue) -> None:
    short = TransferQueue([shard.with_deadline(0.2) for shard in queue._shards])
    async with aclosing(short.watch("train")) as events:
        for _ in range(SLOTS):
            await anext(events)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await anext(events)


async def test_eight_clients_at_once_lose_nothing(queue: TransferQueue) -> None:
    async def client(number: int) -> None:
        uids = [f"c{number}n{index}" for index in range(6)]
        for uid in uids:
            keys = [f"{uid}_{session}_0" for session in range(4)]
            await queue.kv_put(uid, "train", tag={"lease": number})
            await queue.kv_batch_put(keys, "train", {"x": _rows(4)}, guard=Guard(uid, {"lease": number}))
            found = await queue.kv_batch_get(list(reversed(keys)), "train", ["x"])
            assert found["x"].to_list() == list(reversed(_rows(4).to_list()))
        await queue.kv_clear([f"{uids[0]}_{session}_0" for session in range(4)], "train")

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(client(number))
    listed = await queue.kv_list("train")
    assert len(listed) == 8 * (6 + 6 * 4 - 4)


def _maps(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


async def test_shards_in_processes_of_their_own_serve_and_their_death_is_told(tmp_path: Path) -> None:
    async with _supervised(tmp_path) as (system, supervisor):
        shards = [await system.spawn(QueueShard, slot, name=f"shard_{slot}", process=f"shard_{slot}") for slot in range(2)]
        queue = TransferQueue(shards)
        await queue.kv_batch_put(KEYS, "train", {"x": _rows(len(KEYS))}, [{"n": 1} for _ in KEYS])
        assert (await queue.kv_batch_get(KEYS, "train", ["x"]))["x"].to_list() == _rows(len(KEYS)).to_list()
        assert len({(shard.slot, shard.incarnation) for shard in await queue.stats()}) == 2
        maps = _maps(supervisor.pid_of("shard_0"))
        assert "numpy" in maps
        assert "torch" not in maps
        async with aclosing(queue.watch("train")) as events:
            assert {(await anext(events)).slot for _ in range(2)} == {0, 1}
            os.kill(supervisor.pid_of("shard_1"), signal.SIGKILL)
            with pytest.raises(ActorDied, match="shard_1"):
                await anext(events)
        with pytest.raises(ActorDied, match="shard_1"):
            await queue.kv_batch_get(KEYS, "train", ["x"])
        survivors = [key for key in KEYS if placement(key, 2) == 0]
        assert (await queue.kv_batch_get(survivors, "train", ["x"]))["x"].rows == len(survivors)
