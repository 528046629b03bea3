"""The port between workers and whatever trains.

``N`` rows of this rank, ``R`` the longest response among them, ``V`` the vocabulary. Every method is blocking and runs on
the device thread; those marked collective must be called on every rank of the data-parallel group, in the same order.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from asyncrl.algorithms.aggregation import Denominators
from asyncrl.algorithms.ranks import AllGather
from asyncrl.metrics import Metrics
from asyncrl.tensors.batch import Batch
from asyncrl.tensors.jagged import Jagged
from asyncrl.training.microbatch import MicroBatching

Progress = Callable[[], None]
"""Called after each micro-batch, so that a watched call can show that it lives."""


class Objective(Protocol):
    """The loss of one micro-batch."""

    def __call__(
        self, log_probs: Tensor, entropy: Tensor | None, fields: Mapping[str, Tensor], denominators: Denominators
    ) -> tuple[Tensor, Metrics]:
        """Return the loss, a scalar, and its metrics.

        log_probs: [N, R] log-probabilities of the response tokens, with gradient, 0 beyond a row's response.
        entropy: [N, R] likewise, or None when it was not asked for.
        fields: the named columns and ``response_mask``, each padded with 0 to [N, R].
        denominators: counts over the whole mini-batch and all ranks; the loss is a sum over the micro-batch divided by
        them, so that micro-batches and ranks add up.
        """
        ...


class ValueObjective(Protocol):
    """The loss of one micro-batch of a critic."""

    def __call__(self, values: Tensor, fields: Mapping[str, Tensor], denominators: Denominators) -> tuple[Tensor, Metrics]:
        """As ``Objective``; ``values`` [N, R] of the states before the response tokens, with gradient."""
        ...


class TrainedModel(Protocol):
    """A model that is sharded over the data-parallel group and learns."""

    @property
    def lr(self) -> float:
        """The learning rate of the next optimizer step."""
        ...

    @property
    def gather(self) -> AllGather:
        """Joins the numbers of all ranks of the group. Each call of it is collective."""
        ...

    def scheduler_step(self) -> None:
        """Move the learning-rate schedule on by one: once per local update."""
        ...

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """The parameters this rank holds, sharded, each once, in the order of the model."""
        ...

    def state(self) -> dict[str, Any]:
        """Weights, optimizer and schedule as a nested dict for a distributed checkpoint. Collective."""
        ...

    def load_state(self, state: dict[str, Any]) -> None:
        """Take a dict of the form of ``state()`` over. Collective."""
        ...


class TrainEngine(TrainedModel, Protocol):
    """A causal language model that is evaluated and trained on rows."""

    def evaluate(
        self,
        rows: Batch,
        *,
        temperature: float,
        micro: MicroBatching,
        entropy: bool = False,
        sum_pi_squared: bool = False,
        progress: Progress | None = None,
    ) -> dict[str, Jagged]:
        """Log-probabilities of the response tokens, without gradient. Collective.

        rows: needs ``prompts`` and ``responses``. Returns ``log_probs``, and ``entropy`` and ``sum_pi_squared`` (over the
        vocabulary) when asked for: float32, row by row as long as the response, in the order of ``rows``.
        """
        ...

    def train_mini_batch(
        self,
        rows: Batch,
        objective: Objective,
        *,
        temperature: float,
        micro: MicroBatching,
        columns: Sequence[str],
        scale: float,
        denominator: str = "response_mask",
        entropy: bool = False,
        progress: Progress | None = None,
    ) -> Metrics:
        """One optimizer step over the rows of all ranks; returns this rank's share of the metrics. Collective.

        rows: needs ``prompts``, ``responses``, ``response_mask`` and every name in ``columns``.
        denominator: the mask whose ones and rows go into the denominators, where it is not that of what is trained.
        scale: the ``loss_scale_factor`` that goes into the denominators.
        The step is left out, and counted, when no token of the mini-batch is trainable or the gradient is not finite.
        """
        ...


class ValueEngine(TrainedModel, Protocol):
    """A critic that is evaluated and trained on rows. It knows no temperature: a value is no probability."""

    def evaluate(self, rows: Batch, *, micro: MicroBatching, progress: Progress | None = None) -> Jagged:
        """The value of the state before each response token, without gradient: float32, row by row. Collective.

        rows: needs ``prompts`` and ``responses``.
        """
        ...

    def train_mini_batch(
        self,
        rows: Batch,
        objective: ValueObjective,
        *,
        micro: MicroBatching,
        columns: Sequence[str],
        scale: float,
        denominator: str = "response_mask",
        progress: Progress | None = None,
    ) -> Metrics:
        """One optimizer step, as that of ``TrainEngine``. Collective."""
        ...
