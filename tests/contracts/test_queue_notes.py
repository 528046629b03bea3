"""What a shard notes of rows in its event file never changes whether a put is applied."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from asyncrl.errors import FieldMismatch, MissingField
from asyncrl.observe.events import read_events
from asyncrl.observe.trace import life_of
from asyncrl.runtime import ActorSystem, EventWriter, RealHost, private_folder
from asyncrl.tensors.wire import Column
from asyncrl.transfer_queue.client import TransferQueue
from asyncrl.transfer_queue.keys import placement
from asyncrl.transfer_queue.shard import QueueShard


@pytest.fixture
async def noted(tmp_path: Path) -> AsyncIterator[tuple[TransferQueue, EventWriter]]:
    """One shard with an event file."""
    folder, host = private_folder(), RealHost()
    with EventWriter(str(tmp_path / "main-0.msgpack"), host, process="main") as events:
        async with ActorSystem.bind("main", f"ipc://{folder}/main.sock", host=host, events=events) as system:
            yield TransferQueue([await system.spawn(QueueShard, 0, name="shard-0")]), events
    shutil.rmtree(folder)


TAGS: list[dict[str, Any]] = [
    {"a": {None: 1}},
    {"a": {True: [1]}},
    {"a": [{(1, 2): "x"}]},
    {"a": {b"x": 1}},
    {"a": {1.5: 2}},
    {"a": {"b": None}},
]


@pytest.mark.parametrize("tag", TAGS, ids=repr)
async def test_a_tag_that_json_has_no_form_for_is_applied_and_noted(noted: tuple[TransferQueue, EventWriter], tag: dict[str, Any]) -> None:
    queue, events = noted
    await queue.kv_put("u_0", "train", {"x": Column.dense([1])}, tag)
    await queue.kv_set_tags(["u_0"], "train", [tag])
    await queue.kv_batch_put([], "train", also_tags={"u": tag})
    assert dict(await queue.kv_list("train")) == {"u_0": tag, "u": tag}
    events.flush()
    told = [(step.key, step.verb, bool(step.tag)) for step in life_of(read_events(events.path), "u").steps]
    assert told == [("u_0", "put", True), ("u_0", "tags", True), ("u", "tags", True)]


async def test_no_keys_give_fields_that_lie_on_different_shards() -> None:
    async with ActorSystem.local() as system:
        queue = TransferQueue([await system.spawn(QueueShard, slot, name=f"shard-{slot}") for slot in range(3)])
        first, second = (next(key for key in map("k{}".format, range(99)) if placement(key, 3) == slot) for slot in (0, 2))
        await queue.kv_put(first, "train", {"x": Column.dense([1])})
        await queue.kv_put(second, "train", {"y": Column.jagged("float32", [[1.0]])})
        found = await queue.kv_batch_get([], "train", ["y", "x"])
        layouts = {name: (column.layout, column.rows) for name, column in found.items()}
        assert layouts == {"y": (("float32", (), True), 0), "x": (("int64", (), False), 0)}
        with pytest.raises(MissingField) as missing:
            await queue.kv_batch_get([], "train", ["y", "z", "x"])
        assert missing.value.field == "z"
        # Shards know nothing of each other's layouts: who reads rows of both is told.
        await queue.kv_put(second, "train", {"x": Column.jagged("int64", [[1]])})
        with pytest.raises(FieldMismatch, match="field 'x'"):
            await queue.kv_batch_get([first, second], "train", ["x"])
