"""The schedule and the sampler of a configuration, and those of a user's file."""

import json
from pathlib import Path

import pytest

from asyncrl import cli
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
ahead = Schedule(lookahead=2.0, training_window="pause")
far = Schedule(lookahead=3.0, training_window="pause", whole_groups=True)
twice = Schedule(lookahead=0.25, updates=2, training_window="pause", whole_groups=True)
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
        ("custom_schedule", "ahead", "whole_groups=True with its lookahead of 2"),
        ("custom_schedule", "swapping", "exactly where trainer.v1.trainer_mode=separate_async"),
        ("sampler.custom_sampler", "Idle", "a method choose"),
        ("sampler.custom_sampler", "Picky", "cannot be made of them"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(file: str, section: str, name: str, said: str) -> None:
    config = load_config(options(f"trainer.v1.{section}.path={file}", f"trainer.v1.{section}.name={name}")).config
    with pytest.raises(ConfigError, match=said):
        preflight(config)


def colocated(file: str, name: str, *given: str) -> list[str]:
    mode = ["trainer.v1.trainer_mode=colocate_async", f"trainer.v1.custom_schedule.path={file}", f"trainer.v1.custom_schedule.name={name}"]
    return options(*mode, *given)


@pytest.mark.parametrize(("threshold", "fits"), [(3, False), (4, True)])
def test_wait_asks_of_a_schedule_of_the_user_what_it_asks_of_ours(file: str, threshold: int, fits: bool) -> None:
    wait = ("trainer.v1.sampler.max_off_policy_strategy=wait", f"trainer.v1.sampler.max_off_policy_threshold={threshold}")
    config = load_config(colocated(file, "far", *wait)).config
    if fits:
        assert open_schedule(config).lookahead == 3.0
    else:
        with pytest.raises(ConfigError, match=r"its lookahead is 3, allowed under .*=wait: at most max_off_policy_threshold - 1 = 2"):
            preflight(config)


def test_what_the_mode_would_look_ahead_counts_for_no_schedule_of_the_user(file: str) -> None:
    wait = ("trainer.v1.sampler.max_off_policy_strategy=wait", "trainer.v1.sampler.max_off_policy_threshold=2")
    given = colocated(file, "eager", *wait, "trainer.v1.colocate_async.num_warmup_batches=5")
    assert open_schedule(load_config(given).config).lookahead == 0.5


def test_wait_is_not_asked_where_the_sampler_is_the_users(file: str) -> None:
    wait = ("trainer.v1.sampler.max_off_policy_strategy=wait", "trainer.v1.sampler.max_off_policy_threshold=2")
    own = (f"trainer.v1.sampler.custom_sampler.path={file}", "trainer.v1.sampler.custom_sampler.name=Picky")
    assert open_schedule(load_config(colocated(file, "far", *wait, *own)).config).lookahead == 3.0


def test_the_plan_is_that_of_a_schedule_of_the_user(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", *colocated(file, "twice"), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    # 32 prompts a step, and a quarter of as many ahead.
    assert (plan["prompts_in_flight"], plan["local_updates"]) == (40, 2)


@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
def test_the_limit_of_prompts_for_a_step_is_that_of_a_filter_alone(mode: str) -> None:
    given = options(f"trainer.v1.trainer_mode={mode}", "algorithm.filter_groups.max_num_gen_batches=7")
    for more, limit in (([], 0), (["algorithm.filter_groups.enable=true"], 7)):
        config = load_config([*given, *more]).config
        sampler = open_sampler(config, open_schedule(config))
        if isinstance(sampler, AsyncSampler):
            assert sampler.max_batches == limit
        else:
            assert isinstance(sampler, SyncSampler)
            assert (0 if sampler.filter is None else sampler.filter.max_batches) == limit
        assert config.algorithm.filter_groups.gen_batches == limit
