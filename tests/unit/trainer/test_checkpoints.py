"""A checkpoint is the state of one moment, written while the run goes on; whatever goes wrong meanwhile, the one before it stays."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from asyncrl.algorithms.kl_in_reward import FixedKL
from asyncrl.data.dataset import PromptStream
from asyncrl.data.prompts import PromptRow
from asyncrl.errors import CheckpointError
from asyncrl.runtime import ActorSystem
from asyncrl.runtime.host import RealHost
from asyncrl.tensors.wire import Column
from asyncrl.trainer.checkpoint import Checkpoints, TrainerState
from asyncrl.trainer.ledger import Ledger
from asyncrl.trainer.stages import ScheduleMoves, Stages
from asyncrl.training.checkpoint import Checkpoint, CheckpointFolder
from asyncrl.trajectory import Kept, PartialGroup, Status
from asyncrl.transfer_queue.client import TransferQueue
from asyncrl.transfer_queue.shard import QueueShard, ShardOptions


class Ranks(Stages):
    """Ranks that write one file each, when they are let."""

    def __init__(self) -> None:
        self.kl = FixedKL(0.5)
        self.may_write = asyncio.Event()
        self.copying, self.may_copy = asyncio.Event(), asyncio.Event()
        self.may_copy.set()
        self.broken = ""
        self.copied: list[int] = []

    async def save(self, folder: str) -> ScheduleMoves:
        self.folder = Path(folder)
        self.copied.append(int(self.folder.name.removeprefix("global_step_").removesuffix(".partial")))
        self.copying.set()
        await self.may_copy.wait()
        return ScheduleMoves(7, 8)

    async def saved(self) -> None:
        await self.may_write.wait()
        if self.broken:
            raise CheckpointError(self.broken)
        (self.folder / "weights").write_text("weights")


class Room:
    """A run folder, a queue of two shards, a ledger and the checkpoints over them."""

    def __init__(self, system: ActorSystem, queue: TransferQueue, folder: Path) -> None:
        self.system, self.queue, self.ranks, self.ledger = system, queue, Ranks(), Ledger()
        self.path, self.folder = folder, CheckpointFolder(str(folder), None)
        rows = [PromptRow(prompt="1+1=", data_source="any", ground_truth="2", index=index) for index in range(4)]
        self.prompts = PromptStream(rows, train_batch_size=2, seed=1, shuffle=False)
        self.checkpoints = Checkpoints(self.folder, None, self.ranks, self.prompts, self.ledger, queue, RealHost())

    async def group(self, uid: str, status: Status) -> None:
        """Issue a prompt; a finished group has one row."""
        self.ledger.issue(uid, 1)
        await self.queue.kv_put(uid, "train", tag={"is_prompt": True, "status": status})
        if status.settled:
            await self.queue.kv_put(f"{uid}_0_0", "train", {"responses": Column.jagged("int64", [[1, 2]])}, {"status": "success"})

    async def save(self, step: int, *begun: PartialGroup, trained: tuple[str, ...] = ()) -> None:
        """The updates of a step are done, and it is saved."""
        self.checkpoints.whole(step)
        await self.checkpoints.save(begun, trained, "train")

    def newest(self) -> Checkpoint | None:
        return self.folder.newest(print)

    def behind(self) -> bool:
        """Whether there is something to save."""
        return self.checkpoints.behind

    def step(self) -> int | None:
        """The step of the newest one."""
        found = self.newest()
        return None if found is None else found.step


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    async with ActorSystem.local() as system:
        queue = TransferQueue([await system.spawn(QueueShard, slot, name=f"shard-{slot}") for slot in range(2)])
        room = Room(system, queue, tmp_path)
        yield room
        await room.checkpoints.close()


async def test_the_run_goes_on_while_it_is_written_and_what_happens_meanwhile_is_not_in_it(room: Room) -> None:
    await room.group("u0", Status.FINISHED)
    await room.group("u1", Status.RUNNING)
    kept = Kept(prompt_ids=[3], token_ids=[4, 5], log_probs=[-1.0, -2.0], versions=[0, 0])
    await room.save(1, PartialGroup(uid="u1", partition_id="train", lease=1, sessions={"0": kept}))
    assert room.newest() is None
    room.ledger.drop("u0", "stale")
    room.ledger.issue("u2", 2)
    room.checkpoints.torn()
    room.ranks.may_write.set()
    await room.checkpoints.settled()
    found = room.newest()
    assert found is not None
    state = msgspec.json.decode(found.state, type=TrainerState)
    assert (state.step, state.learning_rate_moves, state.critic_learning_rate_moves, state.kl_coefficient) == (1, 7, 8, 0.5)
    assert (state.ledger.in_flight, state.ledger.dropped) == ({"u0": 1, "u1": 1}, {})
    assert Checkpoints.begun(found)["u1"]["0"].token_ids == [4, 5]


async def test_the_queue_is_in_it_as_it_was_without_what_was_trained(room: Room) -> None:
    for uid in ("u0", "u1", "u2"):
        await room.group(uid, Status.FINISHED)
    room.ledger.train(["u0"], 1)
    await room.save(1, trained=("u0", "u0_0_0"))
    await room.queue.kv_clear(["u0", "u0_0_0", "u1", "u1_0_0"], "train")
    await room.queue.kv_put("later", "train", tag={"is_prompt": True})
    room.ranks.may_write.set()
    await room.checkpoints.settled()
    found = room.newest()
    assert found is not None
    options = ShardOptions(restore=found.queue(2))
    again = TransferQueue([await room.system.spawn(QueueShard, slot, options, name=f"again-{slot}") for slot in range(2)])
    assert sorted(await again.kv_list("train")) == ["u1", "u1_0_0", "u2", "u2_0_0"]
    assert (await again.kv_batch_get(["u1_0_0"], "train", ["responses"]))["responses"].to_list() == [[1, 2]]
    assert found.queue(3) == ""


async def test_a_snapshot_does_not_take_the_place_of_what_a_journal_has_brought(room: Room, tmp_path: Path) -> None:
    await room.group("u0", Status.RUNNING)
    await room.save(1)
    room.ranks.may_write.set()
    await room.checkpoints.settled()
    found = room.newest()
    assert found is not None
    options = ShardOptions(journal="interval", journal_folder=str(tmp_path / "queue"), restore=found.queue(2), resume_step=1)

    async def shards(name: str) -> TransferQueue:
        return TransferQueue([await room.system.spawn(QueueShard, slot, options, name=f"{name}-{slot}") for slot in range(2)])

    first = await shards("first")
    assert (await first.kv_list("train"))["u0"]["status"] == "running"
    await first.kv_set_tags(["u0"], "train", [{"status": "finished"}])
    assert (await (await shards("second")).kv_list("train"))["u0"]["status"] == "finished"


async def test_the_next_one_waits_until_one_is_written(room: Room) -> None:
    await room.save(1)
    second = asyncio.get_running_loop().create_task(room.save(2))
    await room.queue.stats()
    assert room.ranks.copied == [1]
    room.ranks.may_write.set()
    await second
    await room.checkpoints.settled()
    assert room.ranks.copied == [1, 2]
    assert room.step() == 2


async def test_one_that_cannot_be_written_is_named_and_the_one_before_it_stays(room: Room) -> None:
    room.ranks.may_write.set()
    await room.save(1)
    await room.checkpoints.settled()
    room.ranks.broken = "rank 1: no space left on the device"
    await room.save(2)
    with pytest.raises(CheckpointError, match="the checkpoint of step 2 could not be written: rank 1: no space left on the device"):
        await room.checkpoints.settled()
    assert room.step() == 1
    room.ranks.broken = ""
    await room.save(3)
    await room.checkpoints.settled()
    assert room.step() == 3
    assert sorted(path.name for path in room.path.glob("global_step_*")) == ["global_step_1", "global_step_3"]


async def test_one_whose_moment_a_shard_has_not_kept_is_named_and_the_run_goes_on(room: Room) -> None:
    await room.group("u0", Status.FINISHED)
    await room.save(1)
    # As after a restart of a shard: it cannot give the rows of that moment any more.
    await room.queue.cut([], "train")
    room.ranks.may_write.set()
    with pytest.raises(CheckpointError, match=r"of step 1 could not be written: .*the rows of event \d of incarnation .* are gone"):
        await room.checkpoints.settled()
    assert room.step() is None
    await room.save(2)
    await room.checkpoints.settled()
    assert room.step() == 2


async def test_an_end_in_the_midst_leaves_the_one_before(room: Room) -> None:
    room.ranks.may_write.set()
    await room.save(1)
    await room.checkpoints.settled()
    room.ranks.may_write.clear()
    await room.save(2)
    await room.checkpoints.close()
    assert room.step() == 1


async def test_a_step_can_be_saved_until_the_next_update_begins(room: Room) -> None:
    room.ranks.may_write.set()
    assert not room.behind()
    room.checkpoints.whole(1)
    assert room.behind()
    # The weight of the KL moves with the advantages of the next step.
    room.ranks.kl = FixedKL(0.75)
    await room.checkpoints.save([], [], "train")
    assert not room.behind()
    await room.checkpoints.settled()
    found = room.newest()
    assert found is not None
    assert msgspec.json.decode(found.state, type=TrainerState).kl_coefficient == 0.5
    room.checkpoints.whole(2)
    room.checkpoints.torn()
    assert not room.behind()


async def test_one_that_has_begun_when_a_signal_comes_is_taken_and_no_second_one_of_the_same_step(room: Room) -> None:
    await room.group("u0", Status.RUNNING)
    room.ranks.may_copy.clear()
    saving = asyncio.get_running_loop().create_task(room.save(1))
    await room.ranks.copying.wait()
    saving.cancel()
    # The ranks copy and write whoever has left: a second call would have them write into the same folder again.
    await room.queue.stats()
    assert not saving.done()
    room.ranks.may_copy.set()
    with pytest.raises(asyncio.CancelledError):
        await saving
    assert not room.behind()
    room.ranks.may_write.set()
    await room.checkpoints.settled()
    assert room.ranks.copied == [1]
    assert room.step() == 1


async def test_a_signal_that_comes_before_one_has_begun_leaves_it_to_be_taken(room: Room) -> None:
    await room.save(1)
    saving = asyncio.get_running_loop().create_task(room.save(2))
    await room.queue.stats()
    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving
    assert room.behind()
    room.ranks.may_write.set()
    await room.checkpoints.save([], [], "train")
    await room.checkpoints.settled()
    assert room.ranks.copied == [1, 2]
    assert room.step() == 2
