"""The first phase of a policy loss that looks at the whole mini-batch: rejected tokens, importance weights, chosen tokens."""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from asyncrl.algorithms.losses import PolicyRows
from asyncrl.algorithms.objective import ObjectiveConfig
from asyncrl.algorithms.ranks import AllGather, row_seeds, token_draws
from asyncrl.metrics import Metrics
from asyncrl.tensors.batch import Batch
from asyncrl.tensors.jagged import Jagged

OPTIONAL = ("rollout_is_weights", "selected")
"""Columns that only some losses have."""


def policy_rows(log_probs: Tensor, fields: Mapping[str, Tensor]) -> PolicyRows:
    """Rows as a policy loss sees them, out of named columns [N, R]."""
    return PolicyRows(
        log_probs,
        fields["old_log_probs"],
        fields["advantages"],
        fields["response_mask"],
        fields.get("rollout_is_weights"),
        fields.get("selected"),
    )


def prepared(
    batch: Batch,
    evaluate: Callable[[Batch], Jagged],
    objective: ObjectiveConfig,
    place: Sequence[int],
    gather: AllGather,
) -> tuple[Batch, Metrics]:
    """The rows with what the loss must know of the whole mini-batch, as columns that are cut along with them. Collective.

    ``evaluate`` gives the log-probs under the weights of now; ``place`` is the seed of the run and where in it this mini-batch
    stands, which with a row's key alone makes what is drawn. The mask before rejection stays as ``loss_mask``.
    """
    prepare = objective.policy_loss.prepare
    assert prepare is not None
    mask = batch.jagged("response_mask")
    names = ("old_log_probs", "advantages", "response_mask", *(name for name in OPTIONAL if name in batch.fields))
    rows = policy_rows(evaluate(batch).padded(0.0), {name: batch.jagged(name).padded(0) for name in names})
    seed, *spot = place
    draws = token_draws(row_seeds(seed, spot, batch.keys), mask.longest)
    found = prepare(rows, objective.options, draws=draws, gather=gather)
    columns = {"response_mask": found.response_mask, "rollout_is_weights": found.rollout_is_weights, "selected": found.selected}
    fields = {name: Jagged.from_padded(column, mask.lengths) for name, column in columns.items() if column is not None}
    return batch.with_fields({"loss_mask": mask, **batch.fields, **fields}), found.metrics
