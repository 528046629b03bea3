"""An agent worker with its queue, a reward and scripted engines, in one process."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.runtime import ActorRef, ActorSystem
from asyncrl.training.device_thread import DeviceRunner, InlineDevice
from asyncrl.trajectory import PromptGroup, SamplingParams, Status
from asyncrl.transfer_queue.client import TransferQueue
from asyncrl.transfer_queue.shard import QueueShard
from asyncrl.workers.agent import AgentWorker
from asyncrl.workers.reward import RewardWorker
from asyncrl.workers.rollout import RolloutWorker
from tests.unit.agents.conftest import write_folder
from tests.unit.workers.engine_room import SpyEngine

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    score = float(len(solution_str))
    return {"score": score, "half": score / 2} if score < 9 else {"score": score}
"""


def group(uid: str, *, sessions: int = 2, max_tokens: int = 6, lease: int = 1, **changes: Any) -> PromptGroup:
    made = PromptGroup(
        uid=uid,
        partition_id="train",
        prompt="3+4=",
        data_source="any",
        ground_truth="7",
        sessions=sessions,
        sampling=SamplingParams(max_tokens=max_tokens),
        seed=3,
        lease=lease,
        step=5,
    )
    return msgspec.structs.replace(made, **changes)


@dataclass(slots=True)
class AgentRoom:
    """What a test drives."""

    system: ActorSystem
    queue: TransferQueue
    agent: ActorRef[AgentWorker]
    workers: list[ActorRef[RolloutWorker]]

    async def issue(self, *groups: PromptGroup) -> None:
        """Markers first, then the groups, as a feeder does."""
        tags = [{"is_prompt": True, "status": Status.PENDING, "lease": each.lease} for each in groups]
        await self.queue.kv_batch_put([each.uid for each in groups], "train", tags=tags)
        await self.agent.call(AgentWorker.run_groups, list(groups))

    async def marker(self, uid: str, *statuses: Status, **expected: Any) -> dict[str, Any]:
        """The marker of a group as soon as it has one of these statuses and these values."""
        async with contextlib.aclosing(self.queue.watch("train", {"is_prompt": True})) as events:
            async for event in events:
                tag = event.rows.get(uid)
                if tag is not None and tag["status"] in statuses and all(tag.get(name) == value for name, value in expected.items()):
                    return tag
        raise AssertionError("a watch does not end")

    async def settled(self, *uids: str) -> list[dict[str, Any]]:
        return [await self.marker(uid, Status.FINISHED, Status.FAILURE) for uid in uids]


def write_files(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    write_folder(folder)
    (folder / "reward.py").write_text(REWARD)


@contextlib.asynccontextmanager
async def agent_room(
    folder: Path,
    *engines: SpyEngine,
    devices: Mapping[int, DeviceRunner] | None = None,
    lockstep: bool = False,
    judge: type[RewardWorker] = RewardWorker,
) -> AsyncIterator[AgentRoom]:
    write_files(folder)
    async with ActorSystem.local() as system:
        shard = await system.spawn(QueueShard, 0, name="shard-0")
        reward = await system.spawn(judge, str(folder / "reward.py"), "compute_score", {}, 1, 10.0, True, name="reward-0")
        workers = [
            await system.spawn(RolloutWorker, (devices or {}).get(number) or InlineDevice(), engine, name=f"rollout-{number}")
            for number, engine in enumerate(engines)
        ]
        agent = await system.spawn(AgentWorker, str(folder), 64, None, {}, 10.0, lockstep, name="agent-0")
        addresses = [worker.address for worker in workers]
        await agent.call(AgentWorker.connect, addresses, [shard.address], [reward.address])
        yield AgentRoom(system, TransferQueue([shard]), agent, workers)
