"""Advantages where the tokens lie: one number a row spread over its tokens, or an estimate token by token over all ranks."""

import msgspec
import torch
from torch import Tensor

from asyncrl.algorithms.advantages import AdvantageOptions, Estimator, TokenEstimator, TokenRows
from asyncrl.algorithms.ranks import AllGather
from asyncrl.algorithms.step_metrics import token_metrics, variance_proxies
from asyncrl.metrics import Metrics
from asyncrl.tensors.batch import Batch
from asyncrl.tensors.jagged import Jagged
from asyncrl.workers.fields import OLD_LOG_PROB, TOKEN_ADVANTAGES, Stage


class AdvantageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The estimator, what it may read of the configuration, and whether a KL penalty is in the rewards."""

    estimator: Estimator
    options: AdvantageOptions
    kl_in_reward: bool
    importance_weights: bool = False
    """Whether rows carry ``rollout_is_weights``, which the token baselines look at."""

    @property
    def old_log_prob_stage(self) -> Stage:
        """The pass for old log-probs, with the squares where the estimator needs them."""
        return OLD_LOG_PROB if self.estimator.needs.sum_pi_squared else OLD_LOG_PROB.without("sum_pi_squared")

    @property
    def token_stage(self) -> Stage:
        """The stage of an estimator of tokens, with the fields that it declares to need."""
        needs = self.estimator.needs
        asked = {
            "values": needs.values,
            "old_log_probs": needs.old_log_probs,
            "sum_pi_squared": needs.sum_pi_squared,
            "token_level_rewards": self.kl_in_reward,
            "rm_scores": not self.kl_in_reward,
            "rollout_is_weights": self.weighs,
        }
        return TOKEN_ADVANTAGES.without(*(name for name, needed in asked.items() if not needed))

    @property
    def weighs(self) -> bool:
        """Whether the estimator gets importance weights."""
        return self.importance_weights and self.estimator.needs.sum_pi_squared


class RowFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an estimator of tokens must know of this rank's rows and of the others, besides their fields."""

    groups: list[int]
    """The prompt group of each row, 0 .. ``group_count`` - 1 on all ranks."""
    group_count: int
    votes: list[bool]
    """Whether the row speaks for its session."""
    baselines: list[float | None]
    """The greedy score of each row's prompt, where the estimator needs one; None for a prompt whose greedy session failed."""
    width: int
    """The longest response of all ranks."""


def spread(batch: Batch, advantages: list[float]) -> tuple[Batch, Metrics]:
    """``advantages`` and ``returns``: the row's number at each of its policy tokens, 0 elsewhere."""
    mask = batch.jagged("response_mask")
    rows = torch.tensor(advantages, dtype=torch.float32)
    values = torch.repeat_interleave(rows, mask.lengths) * (mask.values != 0)
    return _result(batch, values, values)


def estimate(batch: Batch, facts: RowFacts, settings: AdvantageSettings, gather: AllGather) -> tuple[Batch, Metrics]:
    """The same from an estimator of tokens. Collective: it hears of the rows of all ranks through ``gather``.

    The rows of a prompt whose greedy session failed have nothing to be measured against; their advantage is 0. With squared
    probabilities the metrics hold what the variance of the gradient is computed from.
    """
    estimator, needs = settings.estimator, settings.estimator.needs
    assert isinstance(estimator, TokenEstimator)
    mask = _padded(batch, "response_mask", facts)
    rows = TokenRows(
        rewards=_padded(batch, "token_level_rewards" if settings.kl_in_reward else "rm_scores", facts),
        mask=mask,
        groups=torch.tensor(facts.groups, dtype=torch.int64),
        group_count=facts.group_count,
        votes=torch.tensor(facts.votes, dtype=torch.bool),
        values=_padded(batch, "values", facts) if needs.values else None,
        baselines=torch.tensor([score or 0.0 for score in facts.baselines]) if needs.greedy_baseline else None,
        old_log_probs=_padded(batch, "old_log_probs", facts) if needs.old_log_probs else None,
        sum_pi_squared=_padded(batch, "sum_pi_squared", facts) if needs.sum_pi_squared else None,
        rollout_is_weights=_padded(batch, "rollout_is_weights", facts) if settings.weighs else None,
    )
    found = estimator(rows, settings.options, gather)
    advantages = found.advantages
    if needs.greedy_baseline:
        compared = torch.tensor([score is not None for score in facts.baselines], dtype=torch.bool)
        advantages = torch.where(compared.unsqueeze(-1), advantages, 0.0)
    packed = batch.jagged("response_mask").mask(facts.width)
    result, metrics = _result(batch, advantages[packed], found.returns[packed])
    if rows.old_log_probs is not None and rows.sum_pi_squared is not None:
        metrics |= variance_proxies(advantages, rows.old_log_probs, rows.sum_pi_squared, mask, rows.rollout_is_weights)
    return result, metrics


def _padded(batch: Batch, name: str, facts: RowFacts) -> Tensor:
    return batch.jagged(name).padded(0, facts.width)


def _result(batch: Batch, advantages: Tensor, returns: Tensor) -> tuple[Batch, Metrics]:
    """Packed values [T] of both as fields, and their metrics."""
    mask = batch.jagged("response_mask")
    fields = {"advantages": Jagged(advantages, mask.offsets), "returns": Jagged(returns, mask.offsets)}
    metrics = token_metrics("critic/advantages", advantages, mask.values) | token_metrics("critic/returns", returns, mask.values)
    return Batch(batch.keys, {**fields}), metrics
