"""Log-probs of the weights with which a step began, while the policy learns on."""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore
from torch.distributed.tensor import DTensor
from transformers import Qwen3ForCausalLM

from asyncrl.config.load import assembled
from asyncrl.launch.models import policy_settings
from asyncrl.runtime import ActorGroup, ActorSystem
from asyncrl.tensors.wire import Column
from asyncrl.training.device_thread import InlineDevice
from asyncrl.training.fsdp import FSDPEngine
from asyncrl.training.model import ModelConfig
from asyncrl.training.optimizer import OptimizerConfig
from asyncrl.transfer_queue.client import TransferQueue
from asyncrl.transfer_queue.shard import QueueShard
from asyncrl.workers.meta import BatchMeta, MiniBatch
from asyncrl.workers.policy import PolicyWorker
from asyncrl.workers.rank import Device, QueueWorker
from tests.unit.training.tiny_rows import VOCABULARY, write_model

ROWS = [([1, 2, 3], [4, 5, 6, 7]), ([8], [9, 10]), ([11, 12], [13, 14, 15])]
LATER = [([3, 1], [7, 7, 2]), ([5, 6, 7, 8], [1]), ([2], [16, 0, 4, 9, 11])]


class NoSync:
    """Publishes nothing."""

    def publish(self, version: int, parameters: Sequence[tuple[str, Tensor]]) -> str:
        return ""


@dataclass(slots=True)
class Policy:
    """A policy worker with its queue, and the model that it started from."""

    group: ActorGroup[PolicyWorker]
    queue: TransferQueue
    engine: FSDPEngine
    start: nn.Module

    async def put(self, name: str, rows: list[tuple[list[int], list[int]]]) -> BatchMeta:
        keys = [f"{name}{number}_0_0" for number in range(len(rows))]
        fields = {
            "prompts": Column.jagged("int64", [prompt for prompt, _ in rows]),
            "responses": Column.jagged("int64", [response for _, response in rows]),
            "response_mask": Column.jagged("int64", [[1] * len(response) for _, response in rows]),
            "rollout_log_probs": Column.jagged("float32", [[-1.0] * len(response) for _, response in rows]),
        }
        await self.queue.kv_batch_put(keys, "train", fields, [{}] * len(rows))
        return BatchMeta("train", [MiniBatch(keys)], step=3)

    async def old_log_probs(self, rows: BatchMeta) -> list[list[float]]:
        await self.group.call_all(PolicyWorker.old_log_prob, rows)
        columns = await self.queue.kv_batch_get(rows.keys, "train", ["old_log_probs"])
        return list(columns["old_log_probs"].to_list())

    async def learn(self, rows: BatchMeta) -> None:
        await self.group.call_all(PolicyWorker.spread_advantages, rows, [2.0, -1.0, 1.0])
        await self.group.call_all(PolicyWorker.update, rows)

    def shards(self) -> list[Tensor]:
        found = [value for _, value in self.engine.named_parameters()]
        return [(value.to_local() if isinstance(value, DTensor) else value).detach().clone() for value in found]


@torch.no_grad()
def plain(model: nn.Module, rows: list[tuple[list[int], list[int]]]) -> list[list[float]]:
    found = []
    for prompt, response in rows:
        logits = model(input_ids=torch.tensor([prompt + response]), use_cache=False).logits[0, len(prompt) - 1 : -1]
        found.append(logits.log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0].tolist())
    return found


def furthest(left: list[list[float]], right: list[list[float]]) -> float:
    return max(abs(a - b) for x, y in zip(left, right, strict=True) for a, b in zip(x, y, strict=True))


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
async def policy(one_rank: None, tmp_path: Path) -> AsyncIterator[Policy]:
    write_model(tmp_path / "model")
    assert max(token for prompt, response in ROWS + LATER for token in prompt + response) < VOCABULARY
    start: nn.Module = Qwen3ForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    # Its moments must survive the exchange of weights too.
    engine = FSDPEngine(ModelConfig(path=str(tmp_path / "model")), OptimizerConfig(lr=0.05, weight_decay=0.0))
    settings = policy_settings(assembled({"actor_rollout_ref": {"rollout": {"n": 2}}}, "x").config)
    async with ActorSystem.local() as system:
        shard = await system.spawn(QueueShard, 0, name="shard-0")
        worker = await system.spawn(PolicyWorker, Device(InlineDevice(), 0), engine, NoSync(), settings, name="policy")
        await worker.call(QueueWorker.connect, [shard.address], None)
        yield Policy(ActorGroup([worker]), TransferQueue([shard]), engine, start)


async def test_old_log_probs_of_a_later_update_are_of_the_start_of_the_step_until_it_is_released(policy: Policy) -> None:
    await policy.group.call_all(PolicyWorker.anchor)
    first, second = await policy.put("a", ROWS), await policy.put("b", LATER)
    assert furthest(await policy.old_log_probs(first), plain(policy.start, ROWS)) <= 1e-5
    await policy.learn(first)
    learned = policy.shards()
    anchored = await policy.old_log_probs(second)
    assert all(torch.equal(before, after) for before, after in zip(learned, policy.shards(), strict=True))
    assert furthest(anchored, plain(policy.start, LATER)) <= 1e-5
    await policy.learn(second)
    assert furthest(await policy.old_log_probs(await policy.put("c", LATER)), anchored) == 0

    await policy.group.call_all(PolicyWorker.release_anchor)
    now = await policy.old_log_probs(await policy.put("d", LATER))
    with torch.no_grad():
        for parameter, (_, value) in zip(policy.start.parameters(), policy.engine.named_parameters(), strict=True):
            parameter.copy_(value.full_tensor() if isinstance(value, DTensor) else value)
    assert furthest(now, plain(policy.start, LATER)) <= 1e-5
    assert furthest(now, anchored) > 1e-3
    await policy.group.call_all(PolicyWorker.release_anchor)


async def test_an_anchor_is_of_the_moment_it_was_set_and_changes_nothing_that_is_learned(policy: Policy, tmp_path: Path) -> None:
    first, second = await policy.put("a", ROWS), await policy.put("b", LATER)
    await policy.group.call_all(PolicyWorker.anchor)
    await policy.old_log_probs(first)
    await policy.learn(first)
    await policy.group.call_all(PolicyWorker.anchor)
    anchored = await policy.old_log_probs(second)
    assert furthest(anchored, plain(policy.start, LATER)) > 1e-3
    await policy.learn(second)
    with_anchor = policy.shards()

    other = FSDPEngine(ModelConfig(path=str(tmp_path / "model")), OptimizerConfig(lr=0.05, weight_decay=0.0))
    async with ActorSystem.local() as system:
        shard = await system.spawn(QueueShard, 0, name="shard-0")
        settings = policy_settings(assembled({"actor_rollout_ref": {"rollout": {"n": 2}}}, "x").config)
        worker = await system.spawn(PolicyWorker, Device(InlineDevice(), 0), other, NoSync(), settings, name="policy")
        await worker.call(QueueWorker.connect, [shard.address], None)
        without = Policy(ActorGroup([worker]), TransferQueue([shard]), other, policy.start)
        for name, rows in (("a", ROWS), ("b", LATER)):
            batch = await without.put(name, rows)
            await without.old_log_probs(batch)
            await without.learn(batch)
        assert all(torch.equal(left, right) for left, right in zip(with_anchor, without.shards(), strict=True))
