"""The schedule and the sampler of a configuration, and those of a user's file."""

from pathlib import Path

import pytest

from asyncrl.config.load import load_config
from asyncrl.errors import ConfigError
from asyncrl.launch.preflight import preflight
from asyncrl.launch.schedule import open_sampler, open_schedule
from asyncrl.trainer.sampler import AsyncSampler, SyncSampler
from asyncrl.trainer.schedule import Schedule

FILE = """
from asyncrl.trainer.sampler import AsyncSampler
from asyncrl.trainer.schedule import Schedule

eager = Schedule(lookahead=0.5, training_window="pause", whole_groups=True)
uneven = Schedule(updates=3)
swapping = Schedule(training_window="swap")
number = 3

class Picky(AsyncSampler):
    def __init__(self, most):
        super().__init__(threshold=most)

class Idle:
    pass
"""


def options(*given: str) -> list[str]:
    return ["config=quickstart", *given]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "modes.py"
    path.write_text(FILE)
    return str(path)


@pytest.mark.parametrize(
    ("given", "schedule"),
    [
        ([], Schedule()),
        (["trainer.v1.trainer_mode=colocate_async"], Schedule(lookahead=1.0, training_window="pause", whole_groups=True)),
        (
            [
                "trainer.v1.trainer_mode=separate_async",
                "trainer.v1.separate_async.num_warmup_batches=0.5",
                "trainer.v1.separate_async.parameter_sync_step=2",
            ],
            Schedule(lookahead=0.5, updates=2, training_window="swap", whole_groups=True),
        ),
    ],
)
def test_each_mode_is_a_value(given: list[str], schedule: Schedule) -> None:
    config = load_config(options(*given)).config
    assert open_schedule(config) == schedule
    assert isinstance(open_sampler(config, schedule), AsyncSampler if schedule.whole_groups else SyncSampler)


def test_the_sampler_has_the_options(file: str) -> None:
    given = options("trainer.v1.trainer_mode=colocate_async", "trainer.v1.sampler.max_off_policy_threshold=3")
    config = load_config([*given, "trainer.v1.sampler.max_off_policy_strategy=wait", "algorithm.filter_groups.enable=true"]).config
    sampler = open_sampler(config, open_schedule(config))
    assert isinstance(sampler, AsyncSampler)
    assert (sampler.threshold, sampler.strategy, sampler.filter) == (3, "wait", True)


def test_a_schedule_and_a_sampler_of_the_user(file: str) -> None:
    mode = ["trainer.v1.trainer_mode=colocate_async", f"trainer.v1.custom_schedule.path={file}", "trainer.v1.custom_schedule.name=eager"]
    own = [f"trainer.v1.sampler.custom_sampler.path={file}", "trainer.v1.sampler.custom_sampler.name=Picky"]
    config = load_config(options(*mode, *own, "trainer.v1.sampler.sampler_kwargs.most=5")).config
    preflight(config)
    schedule = open_schedule(config)
    assert schedule == Schedule(lookahead=0.5, training_window="pause", whole_groups=True)
    sampler = open_sampler(config, schedule)
    assert isinstance(sampler, AsyncSampler)
    assert sampler.threshold == 5


@pytest.mark.parametrize(
    ("section", "name", "said"),
    [
        ("custom_schedule", "missing", "defines no such name"),
        ("custom_schedule", "number", "expected an asyncrl Schedule"),
        ("custom_schedule", "uneven", "each of its 3 updates"),
        ("custom_schedule", "swapping", "exactly where trainer.v1.trainer_mode=separate_async"),
        ("sampler.custom_sampler", "Idle", "a method choose"),
        ("sampler.custom_sampler", "Picky", "cannot be made of them"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(file: str, section: str, name: str, said: str) -> None:
    config = load_config(options(f"trainer.v1.{section}.path={file}", f"trainer.v1.{section}.name={name}")).config
    with pytest.raises(ConfigError, match=said):
        preflight(config)
