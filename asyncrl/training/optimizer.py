"""The optimizer and its learning-rate schedule."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from asyncrl.errors import ConfigError

SCHEDULES = ("constant", "cosine", "wsd")


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """The names are those of verl's ``optim`` section. A *step* here is a local update, not an optimizer step."""

    lr: float = 1e-6
    optimizer: str = "AdamW"
    """A key of ``OPTIMIZERS``."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Of AdamW and Adam."""
    weight_decay: float = 0.01
    clip_grad: float | None = 1.0
    """Largest norm of the whole gradient; None does not clip."""
    lr_scheduler_type: str = "constant"
    """``constant``, ``cosine`` or ``wsd`` (warm-up, stable, decay), all after a linear warm-up."""
    lr_warmup_steps: int = -1
    """At most 0: ``lr_warmup_steps_ratio`` decides."""
    lr_warmup_steps_ratio: float = 0.0
    """Warm-up as a part of ``total_training_steps``."""
    total_training_steps: int = -1
    """Length of the schedule; needed by ``cosine``, ``wsd`` and by a ratio."""
    min_lr_ratio: float = 0.0
    """Where the cosine or the decay ends, as a part of ``lr``."""
    stable_ratio: float = 0.9
    """``wsd``: the part of the steps after the warm-up that keeps ``lr``; the rest decays along half a cosine."""
    num_cycles: float = 0.5
    """Waves of the cosine; 0.5 falls once."""
    zero_indexed_step: bool = True
    """Count the first step as 0, so that a warm-up starts at a learning rate of 0; else as 1."""

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise ConfigError("optim.optimizer", self.optimizer, f"must be one of {', '.join(OPTIMIZERS)}")
        if self.lr_scheduler_type not in SCHEDULES:
            raise ConfigError("optim.lr_scheduler_type", self.lr_scheduler_type, f"must be one of {', '.join(SCHEDULES)}")
        if self.clip_grad is not None and not self.clip_grad > 0:
            raise ConfigError("optim.clip_grad", self.clip_grad, "must be > 0, or null to leave the gradient as it is")
        needs_length = self.lr_scheduler_type != "constant" or (self.lr_warmup_steps <= 0 and self.lr_warmup_steps_ratio > 0)
        if needs_length and self.total_training_steps <= 0:
            raise ConfigError("optim.total_training_steps", self.total_training_steps, "must be > 0 for this schedule")

    @property
    def warmup(self) -> int:
        """Steps of the linear warm-up."""
        if self.lr_warmup_steps > 0:
            return self.lr_warmup_steps
        return int(self.lr_warmup_steps_ratio * max(self.total_training_steps, 0))


def _adamw(parameters: list[Tensor], config: OptimizerConfig) -> Optimizer:
    return torch.optim.AdamW(parameters, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, foreach=True)


def _adam(parameters: list[Tensor], config: OptimizerConfig) -> Optimizer:
    return torch.optim.Adam(parameters, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, foreach=True)


def _sgd(parameters: list[Tensor], config: OptimizerConfig) -> Optimizer:
    return torch.optim.SGD(parameters, lr=config.lr, weight_decay=config.weight_decay, foreach=True)


# foreach: over sharded parameters one operation a parameter costs ten times as much, 20 ms a step for 24 small ones.
OPTIMIZERS = {"AdamW": _adamw, "Adam": _adam, "SGD": _sgd}


def make_optimizer(parameters: Iterable[Tensor], config: OptimizerConfig) -> Optimizer:
    """The optimizer of ``config`` over ``parameters``."""
    return OPTIMIZERS[config.optimizer](list(parameters), config)


def lr_factor(step: int, config: OptimizerConfig) -> float:
    """What ``lr`` is multiplied by at ``step``, counted from 0.

    Formula: verl's schedules (``get_constant_schedule_with_warmup``, ``get_cosine_schedule_with_warmup``,
    ``get_wsd_schedule_with_warmup``).

    >>> [lr_factor(step, OptimizerConfig(lr_warmup_steps=4)) for step in range(6)]
    [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    """
    step += 0 if config.zero_indexed_step else 1
    if step < config.warmup:
        return step / config.warmup
    if config.lr_scheduler_type == "constant":
        return 1.0
    after = config.total_training_steps - config.warmup
    stable, cycles = (int(config.stable_ratio * after), 0.5) if config.lr_scheduler_type == "wsd" else (0, config.num_cycles)
    progress = max(0, step - config.warmup - stable) / max(1, after - stable)
    if config.lr_scheduler_type == "wsd":
        progress = min(progress, 1.0)
    wave = math.cos(2 * math.pi * cycles * progress)
    return max(0.0, (1 - config.min_lr_ratio) / 2 * wave + (1 + config.min_lr_ratio) / 2)


class Schedule:
    """Keeps the learning rate of an optimizer at its place in the schedule."""

    def __init__(self, optimizer: Optimizer, config: OptimizerConfig) -> None:
        self._optimizer, self._config = optimizer, config
        self.move(0)

    @property
    def lr(self) -> float:
        """The learning rate in force."""
        return self._config.lr * lr_factor(self.done, self._config)

    def move(self, done: int) -> None:
        """Go to the place after ``done`` steps."""
        self.done = done
        for group in self._optimizer.param_groups:
            group["lr"] = self.lr
