"""The arithmetic of a step, by hand calculation, and the check against torchrun's world."""

import json

import msgspec
import pytest

from asyncrl import cli
from asyncrl.config.checks import check_world
from asyncrl.config.load import load_config
from asyncrl.config.plan import batch_arithmetic, most_in_flight, rows_per_micro_batch
from asyncrl.config.schema import Config
from asyncrl.errors import ConfigError
from asyncrl.trainer.schedule import Schedule

R = "actor_rollout_ref"


def quickstart(*arguments: str) -> Config:
    """The shipped first run with options."""
    return load_config(["config=quickstart", *arguments]).config


def test_the_quickstart_counts_as_by_hand() -> None:
    plan = batch_arithmetic(quickstart(), world_size=2, nodes=1)
    assert (plan.prompts, plan.sessions, plan.trajectories, plan.optimizer_steps) == (32, 16, 512, 2)
    assert (plan.mini_batch_prompts, plan.mini_batch_rows, plan.rows_per_rank) == (16, 256, 128)
    assert (plan.padding_rows, plan.padding_rows_worst, plan.micro_batch_rows, plan.micro_batches) == (0, 1, 128, 1)
    assert (plan.tokens_worst, plan.steps, plan.reference) == (512 * 12, 100, True)


def test_rows_that_do_not_divide_are_padded_and_cut() -> None:
    config = quickstart(f"{R}.actor.ppo_mini_batch_size=2", f"{R}.rollout.n=3", f"{R}.actor.ppo_micro_batch_size_per_gpu=1")
    plan = batch_arithmetic(config, world_size=4, nodes=1)
    assert (plan.mini_batch_rows, plan.rows_per_rank, plan.padding_rows, plan.micro_batches) == (6, 2, 2, 2)
    assert plan.optimizer_steps == 16


def test_epochs_need_the_size_of_the_data() -> None:
    config = quickstart("trainer.total_training_steps=null", "trainer.total_epochs=3", f"{R}.actor.ppo_epochs=2")
    assert batch_arithmetic(config, 2, 1).steps is None
    plan = batch_arithmetic(config, 2, 1, prompts_in_data=100)
    assert (plan.steps, plan.optimizer_steps) == (9, 4)


@pytest.mark.parametrize(
    ("rows", "dynamic", "budget", "tokens", "expected"),
    [(3, False, 100, 10, 3), (3, True, 100, 10, 10), (None, False, 100, 30, 3), (None, False, 5, 30, 1)],
)
def test_a_micro_batch_is_cut_by_rows_or_by_tokens(rows: int | None, dynamic: bool, budget: int, tokens: int, expected: int) -> None:
    assert rows_per_micro_batch(rows, dynamic, budget, tokens) == expected


def test_ranks_and_children_are_placed_on_nodes() -> None:
    processes = batch_arithmetic(quickstart(), world_size=4, nodes=2).processes
    places = {process.name: process.node for process in processes}
    assert [places[f"rank-{rank}"] for rank in range(4)] == [0, 0, 1, 1]
    assert (places["supervisor-0"], places["supervisor-1"], places["shard-0"], places["shard-1"]) == (0, 1, 0, 1)
    assert {process.name for process in processes if process.needs_torch} == {"rank-0", "rank-1", "rank-2", "rank-3"}


def test_a_plan_prints_and_encodes() -> None:
    plan = batch_arithmetic(quickstart(), world_size=2, nodes=1)
    text = plan.render()
    assert "trajectories per step" in text
    assert "512" in text
    assert "rank-0" in text
    assert json.loads(msgspec.json.encode(plan))["mini_batch_rows"] == 256


@pytest.mark.parametrize(("world", "nodes", "key"), [(4, 1, "trainer.n_gpus_per_node"), (4, 2, "trainer.nnodes")])
def test_another_world_than_configured_is_refused_with_both_numbers(world: int, nodes: int, key: str) -> None:
    with pytest.raises(ConfigError, match="torchrun started") as caught:
        check_world(quickstart(), world, nodes)
    assert caught.value.key == key


def test_the_configured_world_or_none_is_accepted() -> None:
    check_world(quickstart(), 2, 1)
    check_world(quickstart("trainer.nnodes=null", "trainer.n_gpus_per_node=null"), 6, 3)


def test_shard_groups_must_fill_the_world() -> None:
    with pytest.raises(ConfigError, match="fsdp_size"):
        check_world(quickstart("trainer.n_gpus_per_node=null", f"{R}.actor.fsdp_config.fsdp_size=2"), 3, 1)


@pytest.mark.parametrize(
    ("mode", "ranks", "ahead", "engine"),
    [
        ("sync", 2, "32, at most 32 in flight", "rank-1        policy, reference, rollout engine"),
        ("colocate_async", 2, "32, at most 64 in flight", "rank-1        policy, reference, rollout engine"),
        ("separate_async", 3, "32, at most 64 in flight", "engine-0      rollout engine, weights from rank-0"),
    ],
)
def test_the_command_shows_where_each_mode_puts_engines_and_how_far_it_runs_ahead(
    capsys: pytest.CaptureFixture[str], mode: str, ranks: int, ahead: str, engine: str
) -> None:
    assert cli.main(["plan", "config=quickstart", f"trainer.v1.trainer_mode={mode}"]) == 0
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    shown = {line[0]: " ".join(part for part in line[1:] if part).strip() for line in lines if len(line) > 1}
    assert shown["mode"] == mode
    assert shown["ranks"].startswith(f"{ranks} on 1 node(s)")
    assert shown["prompts per step"] == ahead
    name, role = engine.split(maxsplit=1)
    assert shown[name].startswith(role)
    # Where engines are processes of their own, ranks that train hold none, and one more lends its device.
    apart = mode == "separate_async"
    assert ("rollout engine" in shown["rank-0"]) != apart
    assert [key for key in shown if key.startswith("engine-")] == ["engine-0"] * apart
    assert shown.get("rank-2", "").startswith("lends its device to engine-0") == apart


def test_local_updates_of_a_step_are_planned() -> None:
    config = quickstart("trainer.v1.trainer_mode=separate_async", "trainer.v1.separate_async.parameter_sync_step=2")
    plan = batch_arithmetic(config, world_size=3, nodes=1)
    assert (plan.local_updates, plan.optimizer_steps, plan.prompts_in_flight) == (2, 2, 64)
    assert "32, at most 64 in flight, in 2 local updates" in plan.render()


def test_a_fractional_look_ahead_loses_no_prompt_to_rounding() -> None:
    # Hundredths of whole hundreds are whole numbers: 15 hundredths of 100 prompts are 15, of 200 are 30.
    assert (most_in_flight(100, 0.15), most_in_flight(200, 0.15)) == (115, 230)
    for hundredths in range(301):
        for hundreds in (1, 2, 7):
            assert most_in_flight(100 * hundreds, hundredths / 100) == 100 * hundreds + hundredths * hundreds
    # Parts of a prompt are left out.
    assert [most_in_flight(4, ahead) for ahead in (0.0, 0.24, 0.25, 0.999, 1.0)] == [4, 4, 5, 7, 8]


def test_the_plan_and_the_schedule_count_alike() -> None:
    config = quickstart(
        "trainer.v1.trainer_mode=colocate_async",
        "trainer.v1.colocate_async.num_warmup_batches=0.15",
        "data.train_batch_size=100",
        f"{R}.actor.ppo_mini_batch_size=50",
    )
    assert batch_arithmetic(config, 2, 1).prompts_in_flight == Schedule(lookahead=0.15).room(100, in_flight=0, remaining=1000) == 115
