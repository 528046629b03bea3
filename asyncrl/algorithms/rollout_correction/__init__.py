"""Rollout correction: the difference between the engine's log-probs and the trainer's, weighed, rejected and reported."""

from asyncrl.algorithms.rollout_correction.correction import Correction, denominator_mask, rollout_correction
from asyncrl.algorithms.rollout_correction.off_policy import effective_sample_size, off_policy_metrics
from asyncrl.algorithms.rollout_correction.options import RolloutCorrectionOptions

__all__ = [
    "Correction",
    "RolloutCorrectionOptions",
    "denominator_mask",
    "effective_sample_size",
    "off_policy_metrics",
    "rollout_correction",
]
