"""Advantages token by token on the ranks: the same on one rank as on several, and what each estimator is given."""

import dataclasses
import threading

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms.advantages import ESTIMATORS, AdvantageOptions, TokenEstimator
from asyncrl.metrics import Metrics, merge, scalars
from asyncrl.tensors.batch import Batch
from asyncrl.tensors.jagged import Jagged
from asyncrl.workers.advantages import AdvantageSettings, RowFacts, estimate, spread

TOKEN = [name for name, estimator in ESTIMATORS.items() if isinstance(estimator, TokenEstimator)]
LENGTHS = (3, 0, 5, 1, 4, 2, 5)
GROUPS = (0, 0, 0, 1, 1, 2, 2)
BASELINES = (0.5, 0.5, 0.5, 1.0, 1.0, None, None)


def settings(name: str, kl: bool = False) -> AdvantageSettings:
    return AdvantageSettings(estimator=ESTIMATORS[name], options=AdvantageOptions(gamma=0.9, lam=0.8), kl_in_reward=kl)


def batch(name: str = "gae") -> Batch:
    draw = torch.Generator().manual_seed(4)

    def column(scale: float) -> Jagged:
        return Jagged.from_rows([scale * torch.rand(length, generator=draw) for length in LENGTHS])

    mask = Jagged.from_rows([(torch.rand(length, generator=draw) > 0.3).long() for length in LENGTHS])
    every = {
        "response_mask": mask,
        "rm_scores": column(1.0),
        "values": column(1.0),
        "old_log_probs": column(-2.0),
        "sum_pi_squared": column(0.5),
    }
    reads = settings(name).token_stage.reads
    return Batch(tuple(f"k{row}" for row in range(len(LENGTHS))), {field: every[field] for field in reads})


def facts(rows: list[int]) -> RowFacts:
    return RowFacts(
        groups=[GROUPS[row] for row in rows],
        group_count=3,
        votes=[row != 4 for row in rows],
        baselines=[BASELINES[row] for row in rows],
        width=max(LENGTHS),
    )


def whole(name: str) -> tuple[Batch, Metrics]:
    rows = list(range(len(LENGTHS)))
    return estimate(batch(name), facts(rows), settings(name), lambda values: values)


class Ranks:
    """An all-gather between threads."""

    def __init__(self, count: int) -> None:
        self._said: dict[int, Tensor] = {}
        self._all = threading.Barrier(count)

    def gather(self, rank: int, values: Tensor) -> Tensor:
        self._said[rank] = values
        self._all.wait(timeout=10)
        return torch.cat([self._said[each] for each in sorted(self._said)])


@pytest.mark.parametrize("name", TOKEN)
@pytest.mark.parametrize("shares", [[[0, 1, 2, 3], [4, 5, 6]], [[6, 0], [], [2, 4, 1, 5, 3]]])
def test_rows_over_several_ranks_get_what_they_get_on_one(name: str, shares: list[list[int]]) -> None:
    ranks, found = Ranks(len(shares)), dict[int, tuple[Batch, Metrics]]()

    def run(rank: int) -> None:
        rows = shares[rank]
        found[rank] = estimate(batch(name).take(rows), facts(rows), settings(name), lambda values: ranks.gather(rank, values))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(shares))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    expected, metrics = whole(name)
    for rank, rows in enumerate(shares):
        for field in ("advantages", "returns"):
            torch.testing.assert_close(found[rank][0].jagged(field).values, expected.jagged(field).take(rows).values, atol=1e-6, rtol=0)
    joined = scalars(merge(found[rank][1] for rank in range(len(shares))))
    assert joined == pytest.approx(scalars(metrics), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", TOKEN)
def test_an_estimator_reads_what_it_declares_and_the_rewards_that_train(name: str) -> None:
    needs = ESTIMATORS[name].needs
    for kl, rewards in ((False, "rm_scores"), (True, "token_level_rewards")):
        optional = ("values", "old_log_probs", "sum_pi_squared")
        declared = [field for field in optional if dataclasses.asdict(needs)[field]]
        assert sorted(settings(name, kl).token_stage.reads) == sorted(["response_mask", rewards, *declared])


def test_the_rows_of_a_prompt_without_a_greedy_score_get_nothing_and_keep_their_returns() -> None:
    result, _ = whole("remax")
    mask = batch("remax").jagged("response_mask")
    for row, baseline in enumerate(BASELINES):
        trained = mask.row(row) != 0
        advantages, returns = result.jagged("advantages").row(row), result.jagged("returns").row(row)
        expected = torch.zeros(int(trained.sum())) if baseline is None else returns[trained] - baseline
        torch.testing.assert_close(advantages[trained], expected)


def test_results_are_as_long_as_the_responses_and_0_under_the_mask() -> None:
    for name in TOKEN:
        result, _ = whole(name)
        mask = batch(name).jagged("response_mask")
        for field in ("advantages", "returns"):
            assert result.jagged(field).lengths.tolist() == list(LENGTHS)
        assert not result.jagged("advantages").values[mask.values == 0].any()


def test_an_outcome_is_spread_over_the_tokens_that_the_policy_sampled() -> None:
    mask = Jagged.from_rows([torch.tensor([1, 0, 1]), torch.tensor([0]), torch.empty(0, dtype=torch.int64)])
    result, metrics = spread(Batch(("a", "b", "c"), {"response_mask": mask}), [0.5, -1.0, 3.0])
    assert result.jagged("advantages").values.tolist() == result.jagged("returns").values.tolist() == [0.5, 0.0, 0.5, 0.0]
    assert scalars(metrics)["critic/advantages/max"] == scalars(metrics)["critic/returns/mean"] == 0.5
