"""The shipped loop, which keeps the rows it trains and the weights of each moment beside them.

    torchrun … -m tests.processes.noted_rows FOLDER config=quickstart key=value …

``rows.jsonl`` holds for each trained row and greedy baseline its step and local update, what the engine sampled with the versions, and the
trainer's ``old_log_probs``. ``version_V.safetensors`` are the weights that were published as V, ``now_K_U.safetensors`` those under
which local update U of step K was learned.
"""

import dataclasses
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncrl.launch import __main__ as launch
from asyncrl.launch.controller import tracked_trainer
from asyncrl.launch.session import Session
from asyncrl.metrics import Metrics
from asyncrl.trainer.batch import KVBatchMeta
from asyncrl.trainer.stages import Stages
from asyncrl.workers.meta import BatchMeta
from asyncrl.workers.trained import TrainedWorker

SAMPLED = ("prompts", "responses", "response_mask", "rollout_log_probs", "rollout_versions")


@dataclasses.dataclass(slots=True)
class NotedStages(Stages):
    """The stages as shipped; writes down what passes."""

    folder: Path
    number: int = 0
    step: int = 0

    @classmethod
    def over(cls, stages: Stages, folder: Path) -> "NotedStages":
        shipped = {field.name: getattr(stages, field.name) for field in dataclasses.fields(stages)}
        return cls(**shipped, folder=folder)

    async def old_log_prob(self, shares: Sequence[BatchMeta]) -> Metrics:
        metrics = await Stages.old_log_prob(self, shares)
        self.number = self.number + 1 if shares[0].step == self.step else 0
        self.step = shares[0].step
        keys = [key for share in shares for key in share.keys]
        await self._note(keys, shares[0].partition_id, (*SAMPLED, "old_log_probs"))
        await self._export(f"now_{self.step}_{self.number}")
        return metrics

    async def advantages(self, batch: KVBatchMeta, shares: Sequence[BatchMeta]) -> tuple[list[float], Metrics]:
        await self._note(batch.greedy, batch.partition_id, SAMPLED)
        return await Stages.advantages(self, batch, shares)

    async def publish(self, version: int) -> str:
        await self._export(f"version_{version}")
        return await Stages.publish(self, version)

    async def _note(self, keys: Sequence[str], partition: str, fields: Sequence[str]) -> None:
        columns = await self.queue.kv_batch_get(keys, partition, fields) if keys else {}
        with (self.folder / "rows.jsonl").open("a") as file:
            for key, *values in zip(keys, *(columns[field].to_list() for field in fields if keys), strict=True):
                row = {"key": key, "step": self.step, "update": self.number, **dict(zip(fields, values, strict=True))}
                file.write(json.dumps(row) + "\n")

    async def _export(self, name: str) -> None:
        file = str(self.folder / f"{name}.safetensors")
        await self.policy.call_each(TrainedWorker.export, [(file, rank == 0) for rank in range(len(self.policy))])


async def run(folder: Path, session: Session) -> None:
    """The whole run, noted."""
    with tracked_trainer(session) as trainer:
        trainer.parts = dataclasses.replace(trainer.parts, stages=NotedStages.over(trainer.parts.stages, folder))
        await trainer.run()


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """What ``run`` has written."""
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


if __name__ == "__main__":
    sys.exit(launch.main(sys.argv[2:], controller=functools.partial(run, Path(sys.argv[1]))))
