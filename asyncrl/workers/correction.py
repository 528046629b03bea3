"""Rollout correction where the tokens lie: importance weights and rejection as fields of the rows."""

import msgspec

from asyncrl.algorithms.ranks import AllGather
from asyncrl.algorithms.rollout_correction import RolloutCorrectionOptions, rollout_correction
from asyncrl.metrics import Metrics
from asyncrl.tensors.batch import Batch, Field
from asyncrl.tensors.jagged import Jagged
from asyncrl.workers.fields import CORRECTION, Stage


class CorrectionReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a correction left of this rank's rows: the trainable tokens of each, and metrics."""

    trainable: list[int]
    metrics: Metrics


def correction_stage(options: RolloutCorrectionOptions) -> Stage:
    """The stage as far as the options ask for it."""
    unwritten = () if options.rollout_is is not None else ("rollout_is_weights",)
    if options.criteria:
        return CORRECTION.without(*unwritten)
    stage = CORRECTION.without(*unwritten, "loss_mask")
    return Stage(stage.name, stage.role, stage.reads, ("rollout_is_weights",))


def corrected(batch: Batch, options: RolloutCorrectionOptions, gather: AllGather) -> tuple[Batch, CorrectionReport]:
    """``rollout_is_weights``, ``response_mask`` after rejection and ``loss_mask`` before it, as far as there are any.

    Collective: weights may be divided by their mean over the rows of all ranks.
    """
    mask = batch.jagged("response_mask")
    found = rollout_correction(
        batch.jagged("old_log_probs").padded(0.0), batch.jagged("rollout_log_probs").padded(0.0), mask.padded(0), options, gather=gather
    )
    fields: dict[str, Field] = {}
    if found.rollout_is_weights is not None:
        fields["rollout_is_weights"] = Jagged.from_padded(found.rollout_is_weights, mask.lengths)
    if options.criteria:
        fields |= {"response_mask": Jagged.from_padded(found.response_mask, mask.lengths), "loss_mask": mask}
    trainable: list[int] = found.response_mask.bool().sum(-1).tolist()
    return Batch(batch.keys, fields), CorrectionReport(trainable, found.metrics)
