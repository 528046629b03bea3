"""``actor_rollout_ref.actor.optim.*``: the optimizer and its learning rate."""

from typing import Literal

from asyncrl.config.schema.section import Section, refuse
from asyncrl.config.schema.types import Fraction, MinusOneOrMore, NonNegative, Positive


class Optim(Section, frozen=True, kw_only=True):
    """One optimizer. The learning rate takes one step of its schedule per local update, not per mini-batch, as in verl."""

    optimizer: Literal["AdamW", "Adam", "SGD"] = "AdamW"
    """Class of ``torch.optim``."""
    optimizer_impl: Literal["torch.optim"] = "torch.optim"
    """Module the class is taken from."""
    lr: NonNegative = 1e-06
    """Peak learning rate; 0 trains nothing (a control)."""
    lr_warmup_steps_ratio: Fraction = 0.0
    """Warm-up as a share of all steps; used when ``lr_warmup_steps`` is not above 0."""
    total_training_steps: MinusOneOrMore = -1
    """Length of the schedule; -1 = the steps of the run."""
    weight_decay: NonNegative = 0.01
    """Decoupled weight decay for AdamW, L2 otherwise."""
    lr_warmup_steps: MinusOneOrMore = -1
    """Warm-up steps; not above 0 = by the ratio."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """Decay rates of Adam's two moments."""
    clip_grad: Positive = 1.0
    """Largest global gradient norm. A norm that is not finite skips the optimizer step."""
    min_lr_ratio: Fraction = 0.0
    """Floor of the cosine schedule, as a share of ``lr``."""
    num_cycles: Positive = 0.5
    """Cosine cycles over the run; 0.5 falls once."""
    lr_scheduler_type: Literal["constant", "cosine"] = "constant"
    """Schedule after the linear warm-up."""
    zero_indexed_step: bool = True
    """Count schedule steps from 0 (else from 1)."""

    def __post_init__(self) -> None:
        if max(self.betas) >= 1.0:
            raise refuse("betas", list(self.betas), "allowed: two numbers from 0 to below 1")
