"""Off-policy diagnostics: how far the policy that sampled is from the one that trains, by the names of ``rollout_corr/*``."""

import torch
from torch import Tensor

from asyncrl.algorithms.masked import masked, masked_mean, masked_sum
from asyncrl.algorithms.readings import Reading, effective_size, largest, mean, read, smallest
from asyncrl.algorithms.rollout_correction.weights import LOG_BOUND
from asyncrl.metrics import Metrics

PREFIX = "rollout_corr"
EFFECTIVE = "training/off_policy/eff_sample_size"


@torch.no_grad()
def off_policy_metrics(old_log_probs: Tensor, rollout_log_probs: Tensor | None, mask: Tensor, *, count_empty_rows: bool = False) -> Metrics:
    """KL, chi-squared and perplexities of the sampled tokens; all tensors [N, R].

    With ``d = log p_rollout - log p_train``: ``kl`` the mean of d (may be negative), ``k3_kl`` of exp(-d) - 1 + d (not bounded: one
    broken token shows), ``chi2_token`` and ``chi2_seq`` of the squared weight of a token and of a row, minus 1 (log weights
    bounded to +-20), ``*_ppl`` and ``*_log_ppl`` of a row's mean negative log-prob, ``log_ppl_*`` and ``ppl_ratio`` of the
    difference training - rollout of a row. Only the training perplexities without ``rollout_log_probs``. Nothing for an empty
    mask. ``count_empty_rows``, verl's reading: a row without a trainable token counts among the rows, with perplexity 1.
    """
    if not bool(mask.any()):
        return {}
    rows = torch.ones_like(mask[:, 0], dtype=torch.bool) if count_empty_rows else mask.bool().any(-1)
    training = -masked_mean(masked(old_log_probs, mask).double(), mask, -1)
    readings = {"training_ppl": mean(torch.exp(training), rows), "training_log_ppl": mean(training, rows)}
    if rollout_log_probs is not None:
        log_ratio = masked(old_log_probs - rollout_log_probs, mask).double()
        rollout = -masked_mean(masked(rollout_log_probs, mask).double(), mask, -1)
        readings |= _token_readings(log_ratio, mask, rows) | _row_readings(training, rollout, rows)
    return {f"{PREFIX}/{name}": metric for name, metric in read(readings).items()}


@torch.no_grad()
def effective_sample_size(old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor) -> Metrics:
    """Kish's effective size of the sampled tokens, as a part of their number, if each had its importance weight p_train / p_rollout.

    1 on policy. Tensors [N, R]; log weights bounded to +-20; nothing for an empty mask.
    """
    if not bool(mask.any()):
        return {}
    log_ratio = masked(old_log_probs - rollout_log_probs, mask).double().clamp(-LOG_BOUND, LOG_BOUND)
    return read({EFFECTIVE: effective_size(torch.exp(log_ratio), mask)})


def _token_readings(log_ratio: Tensor, mask: Tensor, rows: Tensor) -> dict[str, Reading]:
    row_ratio = masked_sum(log_ratio, mask, -1)
    return {
        "kl": mean(-log_ratio, mask),
        "k3_kl": mean(torch.expm1(log_ratio) - log_ratio, mask),
        "chi2_token": mean(torch.expm1(2 * log_ratio.clamp(-LOG_BOUND, LOG_BOUND)), mask),
        "chi2_seq": mean(torch.expm1(2 * row_ratio.clamp(-LOG_BOUND, LOG_BOUND)), rows),
    }


def _row_readings(training: Tensor, rollout: Tensor, rows: Tensor) -> dict[str, Reading]:
    apart = training - rollout
    return {
        "rollout_ppl": mean(torch.exp(rollout), rows),
        "rollout_log_ppl": mean(rollout, rows),
        "log_ppl_diff": mean(apart, rows),
        "log_ppl_abs_diff": mean(apart.abs(), rows),
        "log_ppl_diff_max": largest(apart, rows),
        "log_ppl_diff_min": smallest(apart, rows),
        "ppl_ratio": mean(torch.exp(apart), rows),
    }
