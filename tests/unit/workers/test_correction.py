"""Rollout correction and first phases of losses on the ranks; the penalty for too long answers in the agent worker."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from asyncrl.agents.loop import SessionContext
from asyncrl.algorithms.losses import POLICY_LOSSES, loss_options
from asyncrl.algorithms.objective import ObjectiveConfig
from asyncrl.algorithms.rollout_correction import RolloutCorrectionOptions
from asyncrl.metrics import merge, scalars
from asyncrl.tensors.batch import Batch
from asyncrl.tensors.jagged import Jagged
from asyncrl.trajectory import RewardItem, RewardResult, Trajectory
from asyncrl.workers.correction import corrected, correction_stage
from asyncrl.workers.overlong import Overlong, OverlongSessions
from asyncrl.workers.preparation import prepared

LENGTHS = (3, 0, 5, 1, 4, 2)
BOTH = RolloutCorrectionOptions(
    rollout_is="token", rollout_is_threshold=1.5, rollout_is_batch_normalize=True, rollout_rs="token_k2", rollout_rs_threshold=0.2
)
SHARES = [[0, 1, 2], [3, 5, 4]]


def rows() -> Batch:
    draw = torch.Generator().manual_seed(5)

    def column(scale: float) -> Jagged:
        return Jagged.from_rows([scale * torch.rand(length, generator=draw) for length in LENGTHS])

    mask = Jagged.from_rows([(torch.rand(length, generator=draw) > 0.2).long() for length in LENGTHS])
    names = {"old_log_probs": -2.0, "rollout_log_probs": -2.0, "advantages": 1.0, "log_probs": -2.0}
    fields = {"response_mask": mask, **{name: column(scale) for name, scale in names.items()}}
    return Batch(tuple(f"k{row}" for row in range(len(LENGTHS))), {**fields})


def on_ranks(call: Callable[[Batch, Any], Any]) -> list[Any]:
    """What each rank gets from ``call`` with its rows and a gather over threads."""
    said: dict[int, Tensor] = {}
    barrier, found = threading.Barrier(len(SHARES)), dict[int, Any]()

    def run(rank: int) -> None:
        def gather(values: Tensor) -> Tensor:
            barrier.wait(timeout=10)
            said[rank] = values
            barrier.wait(timeout=10)
            return torch.cat([said[each] for each in sorted(said)])

        found[rank] = call(rows().take(SHARES[rank]), gather)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(SHARES))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    return [found[rank] for rank in range(len(SHARES))]


def test_a_correction_over_ranks_is_that_of_all_rows() -> None:
    expected, whole = corrected(rows(), BOTH, lambda values: values)
    parts = on_ranks(lambda batch, gather: corrected(batch, BOTH, gather))
    for share, (result, report) in zip(SHARES, parts, strict=True):
        assert report.trainable == [whole.trainable[row] for row in share]
        for name in correction_stage(BOTH).writes:
            torch.testing.assert_close(result.jagged(name).values, expected.jagged(name).take(share).values)
    joined = scalars(merge(report.metrics for _, report in parts))
    assert joined == pytest.approx(scalars(whole.metrics), rel=1e-6)
    assert 0 < joined["rollout_corr/rollout_rs_masked_fraction"] < 1


@pytest.mark.parametrize(
    ("options", "writes"),
    [
        (BOTH, {"rollout_is_weights", "response_mask", "loss_mask"}),
        (RolloutCorrectionOptions(rollout_is="sequence"), {"rollout_is_weights"}),
        (RolloutCorrectionOptions(rollout_rs="token_k2", rollout_rs_threshold=1.0), {"response_mask", "loss_mask"}),
    ],
)
def test_a_stage_declares_what_the_correction_writes(options: RolloutCorrectionOptions, writes: set[str]) -> None:
    result, _ = corrected(rows(), options, lambda values: values)
    assert set(correction_stage(options).writes) == set(result.fields) == writes
    if "loss_mask" in writes:
        assert torch.equal(result.jagged("loss_mask").values, rows().jagged("response_mask").values)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("clip_cov", {"clip_cov_ratio": 0.4, "clip_cov_lb": -9.0, "clip_cov_ub": 9.0}),
        ("kl_cov", {"kl_cov_ratio": 0.4}),
        ("bypass_mode", {"rollout_correction": BOTH}),
    ],
)
def test_what_a_loss_prepares_does_not_depend_on_the_ranks(name: str, options: dict[str, Any]) -> None:
    config = ObjectiveConfig(policy_loss=POLICY_LOSSES[name], options=loss_options(name, options))

    def prepare(batch: Batch, gather: Any) -> Batch:
        return prepared(batch, lambda given: given.jagged("log_probs"), config, (1, 4, 0), gather)[0]

    expected = prepare(rows(), lambda values: values)
    made = {"loss_mask", *({"rollout_is_weights"} if name == "bypass_mode" else {"selected"})}
    assert set(expected.fields) == set(rows().fields) | made
    for share, result in zip(SHARES, on_ranks(prepare), strict=True):
        for field in (*made, "response_mask"):
            torch.testing.assert_close(result.jagged(field).values, expected.jagged(field).take(share).values)


class Lengths:
    """A loop whose session ``k`` leaves two outputs, the last of 4 - k tokens."""

    async def run(self, session: SessionContext) -> list[Trajectory]:
        return [
            Trajectory(prompt_ids=[1], response_ids=[2] * n, response_mask=[1] * n, log_probs=[0.0] * n, versions=[0] * n)
            for n in (1, 4 - int(session.session))
        ]


async def test_a_reward_that_failed_stays_failed_and_the_penalty_goes_to_the_right_session() -> None:
    async def score(items: list[RewardItem]) -> list[RewardResult]:
        return [RewardResult(error="no"), RewardResult(score=1.0, extra={"acc": 1.0})]

    sessions = OverlongSessions(Overlong(limit=4, buffer=2, factor=1.0, log=False), Lengths(), score)
    contexts: list[Any] = [SimpleNamespace(session=session) for session in ("1", "0")]
    for context in contexts:
        await sessions.run(context)
    items = [RewardItem(data_source="x", solution_str="", extra_info={"trajectory_key": f"s1e0p0_{session}_1"}) for session in ("0", "1")]
    assert await sessions.score(items) == [RewardResult(error="no"), RewardResult(score=0.5, extra={"acc": 1.0})]
