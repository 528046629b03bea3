"""What every advantage estimator takes, gives and asks for.

An **outcome** estimator sees one score a row and gives one number a row, which is spread over the row's trainable tokens
where these lie. A **token-level** estimator sees token rewards and runs in two phases, so that rows may lie on several
ranks: ``begin`` on each rank, ``merge`` of what the ranks say about their rows, ``finish`` on each rank. Calling an
estimator does both, with the other ranks where it is given a way to hear of them. Rows that fill up a batch are never passed.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from asyncrl.algorithms.masked import merged_moments, moments, whitened
from asyncrl.algorithms.ranks import AllGather, alone


@dataclass(frozen=True, slots=True)
class Needs:
    """What an estimator asks for beyond rewards and response masks."""

    tokens: bool = False
    """Rewards of tokens: it runs where the rows lie. Otherwise one score a row is enough."""
    groups: bool = False
    """The answers to one prompt are compared: a lone answer tells nothing, and one session per prompt is refused."""
    values: bool = False
    """A critic's value of each token."""
    greedy_baseline: bool = False
    """The score of one greedy answer per prompt, which is never trained and has no vote."""
    reward_components: bool = False
    """Named parts of the reward, where the options name some."""
    old_log_probs: bool = False
    """Log-probs of the sampled tokens under the weights with which the step began."""
    sum_pi_squared: bool = False
    """The sum of the squared probabilities of all tokens, at each token."""


@dataclass(frozen=True, slots=True)
class AdvantageOptions:
    """What the configuration may set; an estimator reads what concerns it."""

    gamma: float = 1.0
    """Discount per trainable token."""
    lam: float = 1.0
    """GAE: weight of the longer view."""
    normalise_by_std: bool = True
    """Group estimators with a deviation: divide by it."""
    epsilon: float = 1e-6
    """Added to that deviation."""
    handle_zero_tail: bool = True
    """Token baselines: no baseline where only the longest answer of a group is left."""
    components: tuple[tuple[str, float], ...] = ()
    """GDPO: names and weights of reward components."""


def _shapes_agree(**tensors: Tensor | None) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor is not None}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"these must have one shape: {shapes}")


def _finite(name: str, values: Tensor) -> None:
    if not bool(torch.isfinite(values).all()):
        bad = torch.nonzero(~torch.isfinite(values).flatten(1).all(-1) if values.dim() > 1 else ~torch.isfinite(values)).flatten()
        raise ValueError(f"{name} must be finite; rows {bad.tolist()[:10]} are not")


@dataclass(frozen=True, slots=True)
class OutcomeRows:
    """N rows with one score each. Raises ValueError for a score that is NaN or infinite: it would spoil its whole group."""

    scores: Tensor
    """[N] float: the sum of the row's token rewards."""
    groups: Tensor
    """[N] int64: the prompt of each row, any numbers."""
    lengths: Tensor
    """[N] int64: trainable tokens of each row."""
    sessions: Tensor | None = None
    """[N] int64: the session of each row within its group; needed where only last outputs vote."""
    indices: Tensor | None = None
    """[N] int64: the place of each row's output in its session."""
    components: Mapping[str, Tensor] = field(default_factory=dict)
    """[N] float by name: parts of the reward."""

    def __post_init__(self) -> None:
        _shapes_agree(
            scores=self.scores, groups=self.groups, lengths=self.lengths, sessions=self.sessions, indices=self.indices, **self.components
        )
        for name, values in (("scores", self.scores), *self.components.items()):
            _finite(name, values)

    def take(self, rows: Tensor) -> "OutcomeRows":
        """Some of the rows, by number or by a bool mask."""
        return OutcomeRows(
            self.scores[rows],
            self.groups[rows],
            self.lengths[rows],
            None if self.sessions is None else self.sessions[rows],
            None if self.indices is None else self.indices[rows],
            {name: values[rows] for name, values in self.components.items()},
        )


@dataclass(frozen=True, slots=True)
class OutcomeEstimator:
    """One number a row from one score a row."""

    compare: Callable[[OutcomeRows, AdvantageOptions], Tensor]
    """Rows that all vote -> [N]."""
    needs: Needs
    whiten: bool = False
    """Whether the numbers are then whitened over all trainable tokens of the batch."""

    def __call__(self, rows: OutcomeRows, options: AdvantageOptions) -> Tensor:
        """Advantages [N] in the dtype of the scores; every row votes."""
        return self.finish(self.compare(rows, options), rows.lengths).to(rows.scores.dtype)

    def finish(self, advantages: Tensor, lengths: Tensor) -> Tensor:
        """What happens after the comparison, over all rows: [N], [N] -> [N]."""
        if not self.whiten:
            return advantages
        ones = torch.ones_like(lengths)
        return whitened(advantages, ones, merged_moments(moments(advantages, lengths)[None]))


@dataclass(frozen=True, slots=True)
class TokenRows:
    """N rows of up to R response columns, on one rank. What lies under the mask may be anything.

    Raises ValueError for a trainable token whose reward is NaN or infinite.
    """

    rewards: Tensor
    """[N, R] float; a reward under the mask is lost."""
    mask: Tensor
    """[N, R]: the response mask."""
    groups: Tensor | None = None
    """[N] int64: the prompt of each row, 0 .. G - 1, numbered alike on all ranks."""
    group_count: int | None = None
    """G; None takes the largest number here."""
    votes: Tensor | None = None
    """[N] bool: rows that a group's baseline is made of; None for all."""
    values: Tensor | None = None
    """[N, R] float."""
    baselines: Tensor | None = None
    """[N] float: the greedy score of each row's prompt."""
    old_log_probs: Tensor | None = None
    """[N, R] float."""
    sum_pi_squared: Tensor | None = None
    """[N, R] float."""
    rollout_is_weights: Tensor | None = None
    """[N, R] float: importance weights, where there are any."""

    def __post_init__(self) -> None:
        _shapes_agree(
            rewards=self.rewards,
            mask=self.mask,
            values=self.values,
            old_log_probs=self.old_log_probs,
            sum_pi_squared=self.sum_pi_squared,
            rollout_is_weights=self.rollout_is_weights,
        )
        _finite("rewards", torch.where(self.mask.bool(), self.rewards, 0.0))


@dataclass(frozen=True, slots=True)
class Partial:
    """What one rank knows before it has heard of the rows of the others."""

    advantages: Tensor
    """[N, R], not yet measured against what is merged."""
    returns: Tensor
    """[N, R]."""
    summary: Tensor
    """float64, of one shape on all ranks: what is merged."""


@dataclass(frozen=True, slots=True)
class TokenAdvantages:
    """The result of a token-level estimator."""

    advantages: Tensor
    """[N, R], 0 under the mask."""
    returns: Tensor
    """[N, R]: what the advantages are measured from."""


@dataclass(frozen=True, slots=True)
class TokenEstimator:
    """Numbers for each token, in two phases."""

    begin: Callable[[TokenRows, AdvantageOptions], Partial]
    merge: Callable[[Tensor], Tensor]
    """The summaries of P ranks, stacked in any order: [P, ...] -> [...]."""
    finish: Callable[[TokenRows, Partial, Tensor, AdvantageOptions], Tensor]
    """With the merged summary: advantages [N, R], 0 under the mask."""
    needs: Needs

    def __call__(self, rows: TokenRows, options: AdvantageOptions, gather: AllGather = alone) -> TokenAdvantages:
        """Both phases. ``gather`` is called once, by every rank, with a summary of one size; by default there is one rank."""
        partial = self.begin(rows, options)
        summaries = gather(partial.summary.reshape(1, -1))
        merged = self.merge(summaries.view(len(summaries), *partial.summary.shape))
        return TokenAdvantages(self.finish(rows, partial, merged, options), partial.returns)


Estimator = OutcomeEstimator | TokenEstimator


def whiten_tokens(rows: TokenRows, partial: Partial, over: Tensor, options: AdvantageOptions) -> Tensor:
    """The second phase of an estimator whose summary is the moments of its advantages."""
    return whitened(partial.advantages, rows.mask, over)


def given(name: str, tensor: Tensor | None) -> Tensor:
    """A tensor that the estimator declared to need. Raises ValueError when it was not supplied."""
    if tensor is None:
        raise ValueError(f"this advantage estimator needs {name}, which was not supplied")
    return tensor


def as_estimator(candidate: object) -> Estimator:
    """A user's estimator: one of the two classes above, or a function ``(OutcomeRows, AdvantageOptions) -> [N]``.

    A function is taken to compare prompt groups. Raises TypeError for anything else, also for a function that cannot be
    called with two arguments by place.
    """
    if isinstance(candidate, OutcomeEstimator | TokenEstimator):
        return candidate
    if not callable(candidate):
        raise TypeError(f"an advantage estimator is a function or an OutcomeEstimator or TokenEstimator, not {candidate!r}")
    try:
        inspect.signature(candidate).bind(object(), object())
    except (TypeError, ValueError) as error:
        raise TypeError(f"{candidate!r} cannot be called as (rows, options): {error}") from None
    return OutcomeEstimator(candidate, Needs(groups=True))
