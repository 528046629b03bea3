"""A controller that drives real ranks, shards, agents and rewards step by step, and keeps what each stage left in the queue.

The spec names a folder for the results and the steps. A step is null (the real agents sample) or a list of scripted
groups, each a list of sessions, each a list of outputs {prompt_ids, response_ids, response_mask, score}, if need be with
``log_probs`` (of the policy that sampled), ``extra`` (what the reward function returned besides) or ``greedy`` (of the session whose
score is a baseline); an empty session has failed.
"""

import contextlib
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncrl.agents.columns import group_rows
from asyncrl.agents.group import ScoredTrajectory, components
from asyncrl.launch.controller import build_trainer, training_groups
from asyncrl.launch.session import Session
from asyncrl.metrics import Metrics
from asyncrl.runtime.tasks import running
from asyncrl.trainer.batch import KVBatchMeta
from asyncrl.trainer.feeder import Feeder, GroupSettings, Issue
from asyncrl.trainer.report import Number, Sample
from asyncrl.trainer.stages import Stages
from asyncrl.trajectory import GREEDY_SESSION, GenerateRequest, PromptGroup, SamplingParams, Status, Trajectory, TrajectoryKey
from asyncrl.transfer_queue.client import TransferQueue
from asyncrl.workers.fields import ADVANTAGES, KL_IN_REWARD, REF_LOG_PROB, ROLLOUT, VALUES
from asyncrl.workers.meta import BatchMeta
from asyncrl.workers.rollout import RolloutWorker
from asyncrl.workers.trained import TrainedWorker

PROBE = [3, 10, 4, 11]
"""The prompt "3+4=" in the quickstart's tokens, for asking engines what they hold."""


class ScriptedFeeder(Feeder):
    """Puts the rows of scripted groups as an agent worker would."""

    def __init__(self, queue: TransferQueue, settings: GroupSettings, groups: list[list[list[dict[str, Any]]]]) -> None:
        super().__init__(queue, [], settings)
        self._scripted_queue, self._shared, self._groups = queue, settings, groups

    async def issue(self, issues: Sequence[Issue]) -> list[Issue]:
        for issue, sessions in zip(issues, self._groups, strict=True):
            uid = issue.uid
            group = self._shared.group(issue)
            rows = [
                _scored(group, TrajectoryKey(uid, GREEDY_SESSION if output.get("greedy") else str(session), index), output)
                for session, outputs in enumerate(sessions)
                for index, output in enumerate(outputs)
            ]
            failed = [f"session {number}: scripted" for number, outputs in enumerate(sessions) if not outputs]
            scores = [outputs[-1]["score"] for outputs in sessions if outputs and not outputs[-1].get("greedy")]
            marker = {"is_prompt": True, "status": Status.FAILURE if failed else Status.FINISHED, "failures": failed, "metric": scores}
            put = group_rows(group, rows)
            await self._scripted_queue.kv_batch_put(put.keys, "train", put.fields, put.tags, also_tags={uid: marker})
        return []


def _scored(group: PromptGroup, key: TrajectoryKey, output: dict[str, Any]) -> ScoredTrajectory:
    extra = output.get("extra", {})
    parts = components(group, key, extra)
    return ScoredTrajectory(key=key, trajectory=_trajectory(output, group.step), score=output["score"], extra=extra, components=parts)


def _trajectory(output: dict[str, Any], step: int) -> Trajectory:
    mask = output["response_mask"]
    return Trajectory(
        prompt_ids=output["prompt_ids"],
        response_ids=output["response_ids"],
        response_mask=mask,
        log_probs=output.get("log_probs") or [-1.0 * value for value in mask],
        versions=[step - 1 if value else -1 for value in mask],
    )


async def ask_engines(session: Session, name: str) -> list[dict[str, Any]]:
    """What every engine samples greedily for the probe, with its log-probs."""
    answers = []
    for engine in session.cluster.rollout.refs:
        request = GenerateRequest(
            request_id=name,
            uid=name,
            session="0",
            prompt_ids=PROBE,
            sampling=SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True),
        )
        async with contextlib.aclosing(engine.with_deadline(0.0).stream(RolloutWorker.answers, name)) as stream:
            await anext(stream)
            await engine.call(RolloutWorker.submit, name, [request])
            output = (await anext(stream)).outputs[0]
        answers.append({"token_ids": output.token_ids, "log_probs": output.log_probs, "versions": output.versions})
    return answers


@dataclasses.dataclass(slots=True)
class RecordingStages(Stages):
    """The stages as shipped; after each, what the queue holds, and around the sync what the engines answer."""

    session: Session
    record: dict[str, Any]

    @classmethod
    def over(cls, stages: Stages, session: Session, record: dict[str, Any]) -> "RecordingStages":
        shipped = {field.name: getattr(stages, field.name) for field in dataclasses.fields(stages)}
        return cls(**shipped, session=session, record=record)

    async def old_log_prob(self, shares: Sequence[BatchMeta]) -> Metrics:
        asked = ROLLOUT if self.algorithm.components else ROLLOUT.without("reward_components")
        await self._keep("rollout", shares, asked.writes)
        metrics = await Stages.old_log_prob(self, shares)
        await self._keep("old_log_prob", shares, self.estimation.old_log_prob_stage.writes)
        self.record["shares"] = [[[mini.keys, mini.padding] for mini in share.mini_batches] for share in shares]
        return metrics

    async def ref_log_prob(self, shares: Sequence[BatchMeta]) -> None:
        await Stages.ref_log_prob(self, shares)
        await self._keep("ref_log_prob", shares, REF_LOG_PROB.writes)

    async def values(self, shares: Sequence[BatchMeta]) -> None:
        await Stages.values(self, shares)
        await self._keep("values", shares, VALUES.writes)

    async def advantages(self, batch: KVBatchMeta, shares: Sequence[BatchMeta]) -> tuple[list[float], Metrics]:
        answer = await Stages.advantages(self, batch, shares)
        kl = KL_IN_REWARD.writes if self.algorithm.use_kl_in_reward else ()
        await self._keep("advantages", shares, (*kl, *ADVANTAGES.writes))
        self.record["tags"] = dict(zip(batch.keys, batch.tags, strict=True))
        self.record["baselines"] = dict(zip(batch.uids, batch.baselines, strict=True))
        return answer

    async def publish(self, version: int) -> str:
        if version:
            self.record["before_sync"] = await ask_engines(self.session, f"before{version}")
        digest = await Stages.publish(self, version)
        self.record["after_sync"] = await ask_engines(self.session, f"after{version}")
        return digest

    async def _keep(self, stage: str, shares: Sequence[BatchMeta], fields: Sequence[str]) -> None:
        keys = [key for share in shares for key in share.keys]
        columns = await self.session.cluster.queue.kv_batch_get(keys, shares[0].partition_id, fields)
        rows = zip(keys, *(columns[field].to_list() for field in fields), strict=True)
        self.record[stage] = {key: dict(zip(fields, values, strict=True)) for key, *values in rows}


async def run_scenario(spec: dict[str, Any], session: Session) -> None:
    """Run the steps of the spec; write ``step_K.json``, ``weights_K.safetensors`` and ``critic_K.safetensors`` for each."""
    folder = Path(spec["out"])
    record: dict[str, Any] = {}
    trainer = build_trainer(session, _Quiet(), print)
    shipped, agents = trainer.parts, trainer.parts.flow.feeder
    stages = RecordingStages.over(shipped.stages, session, record)
    async with running(shipped.replay.run):
        trainer.digest = await stages.publish(0)
        await export(session, folder, 0)
        for groups in spec["steps"]:
            feeder = agents if groups is None else ScriptedFeeder(session.cluster.queue, training_groups(session.loaded.config), groups)
            shipped.flow.feeder = feeder
            trainer.parts = dataclasses.replace(shipped, stages=stages)
            report = await trainer.train_step()
            left = await session.cluster.queue.stats()
            record |= {"numbers": report.numbers, "rows_left": [shard.partitions for shard in left]}
            (folder / f"step_{trainer.step}.json").write_text(json.dumps(record))
            await export(session, folder, trainer.step)


async def export(session: Session, folder: Path, step: int) -> None:
    """The whole weights after ``step``."""
    roles = {"weights": session.cluster.policy, "critic": session.cluster.critic}
    for name, group in roles.items():
        if group is not None:
            file = str(folder / f"{name}_{step}.safetensors")
            await group.call_each(TrainedWorker.export, [(file, rank == 0) for rank in range(len(group))])


class _Quiet:
    """Trackers that keep nothing: the scenario writes what it needs."""

    def log(self, step: int, numbers: dict[str, Number]) -> None:
        return None

    def generations(self, step: int, samples: Sequence[Sample]) -> None:
        return None

    def resume(self, step: int) -> None:
        return None
