"""The learning-rate schedule by hand, and what is refused."""

from typing import Any

import pytest
import torch

from asyncrl.errors import ConfigError
from asyncrl.training.optimizer import OPTIMIZERS, OptimizerConfig, Schedule, lr_factor, make_optimizer


def factors(steps: int, **config: Any) -> list[float]:
    return [round(lr_factor(step, OptimizerConfig(**config)), 6) for step in range(steps)]


def test_constant_is_constant_from_the_first_step() -> None:
    assert factors(3) == [1, 1, 1]


def test_warm_up_is_linear_from_zero_or_from_the_first_part() -> None:
    assert factors(4, lr_warmup_steps=2) == [0, 0.5, 1, 1]
    assert factors(4, lr_warmup_steps=2, zero_indexed_step=False) == [0.5, 1, 1, 1]


def test_the_ratio_counts_only_without_a_number_of_steps() -> None:
    assert factors(3, lr_warmup_steps_ratio=0.2, total_training_steps=10) == [0, 0.5, 1]
    assert factors(3, lr_warmup_steps=1, lr_warmup_steps_ratio=0.2, total_training_steps=10) == [0, 1, 1]


def test_cosine_falls_to_its_floor() -> None:
    assert factors(5, lr_scheduler_type="cosine", total_training_steps=4) == [1, 0.853553, 0.5, 0.146447, 0]
    assert factors(5, lr_scheduler_type="cosine", total_training_steps=4, min_lr_ratio=0.2)[-1] == 0.2
    assert factors(5, lr_scheduler_type="cosine", total_training_steps=4, num_cycles=1.0) == [1, 0.5, 0, 0.5, 1]
    assert factors(5, lr_scheduler_type="cosine", total_training_steps=4, lr_warmup_steps=2) == [0, 0.5, 1, 0.5, 0]


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"optimizer": "Adamw"}, "optim.optimizer"),
        ({"lr_scheduler_type": "linear"}, "optim.lr_scheduler_type"),
        ({"lr_scheduler_type": "cosine"}, "optim.total_training_steps"),
        ({"lr_warmup_steps_ratio": 0.1}, "optim.total_training_steps"),
        ({"clip_grad": 0.0}, "optim.clip_grad"),
    ],
)
def test_what_cannot_work_is_refused_by_key(wrong: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        OptimizerConfig(**wrong)
    assert refused.value.key == key


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_steps_with_the_schedules_rate(name: str) -> None:
    weight = torch.ones(3, requires_grad=True)
    config = OptimizerConfig(optimizer=name, lr=0.1, weight_decay=0.0, lr_warmup_steps=2)
    optimizer = make_optimizer([weight], config)
    schedule = Schedule(optimizer, config)
    weight.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(weight, torch.ones(3))
    schedule.move(2)
    optimizer.step()
    torch.testing.assert_close(weight, torch.full((3,), 0.9))


def test_warm_up_stable_and_decay() -> None:
    config = OptimizerConfig(lr_scheduler_type="wsd", lr_warmup_steps=2, total_training_steps=12, stable_ratio=0.6, min_lr_ratio=0.2)
    found = [lr_factor(step, config) for step in (0, 1, 2, 8, 10, 12, 20)]
    assert found == pytest.approx([0.0, 0.5, 1.0, 1.0, 0.6, 0.2, 0.2])
