"""Which ranks train and which lend their device to an engine, by hand, and what does not add up."""

import pytest

from asyncrl.config.checks import check_world
from asyncrl.config.load import load_config
from asyncrl.config.placement import Placement, torchrun_shape
from asyncrl.config.plan import batch_arithmetic
from asyncrl.config.schema import Config
from asyncrl.errors import ConfigError

R = "actor_rollout_ref.rollout"


def separate(*, nodes: int | None = 1, ranks: int | None = 2, engine_nodes: int = 1, engines: int | None = 1, more: str = "") -> Config:
    """The first run with engines of their own; ``nodes`` and ``ranks`` are the trainer's."""

    def text(value: int | None) -> str:
        return "null" if value is None else str(value)

    options = [
        "trainer.v1.trainer_mode=separate_async",
        "trainer.v1.separate_async.parameter_sync_step=1",
        f"trainer.nnodes={text(nodes)}",
        f"trainer.n_gpus_per_node={text(ranks)}",
        f"{R}.nnodes={engine_nodes}",
        f"{R}.n_gpus_per_node={text(engines)}",
    ]
    return load_config(["config=quickstart", *options, *more.split()]).config


def placed(config: Config, world: int, nodes: int) -> tuple[list[int], list[int], list[int]]:
    """Trainers, rollout ranks, and the trainer that sends to each engine."""
    placement = Placement.of(config, world, nodes)
    return list(placement.trainers), list(placement.engines), [placement.owner(k) for k in range(len(placement.engines))]


@pytest.mark.parametrize(
    ("config", "world", "nodes", "expected"),
    [
        (separate(), 3, 1, ([0, 1], [2], [0])),
        (separate(engines=2), 4, 1, ([0, 1], [2, 3], [0, 1])),
        (separate(ranks=1, engines=3), 4, 1, ([0], [1, 2, 3], [0, 0, 0])),
        (separate(ranks=2, engines=None), 4, 1, ([0, 1], [2, 3], [0, 1])),
        (separate(ranks=None, nodes=None, engines=1), 5, 1, ([0, 1, 2, 3], [4], [0])),
        # Two nodes that do both: the last rank of each; its weights come from a trainer beside it.
        (separate(nodes=2, engine_nodes=2), 6, 2, ([0, 1, 3, 4], [2, 5], [0, 4])),
        # The last node of three rolls out.
        (separate(nodes=2, engines=2), 6, 3, ([0, 1, 2, 3], [4, 5], [0, 1])),
        (separate(nodes=None, ranks=None, engine_nodes=2, engines=None), 6, 3, ([0, 1], [2, 3, 4, 5], [0, 1, 0, 1])),
        (load_config(["config=quickstart"]).config, 2, 1, ([0, 1], [], [])),
    ],
)
def test_ranks_are_placed_as_by_hand(config: Config, world: int, nodes: int, expected: tuple[list[int], list[int], list[int]]) -> None:
    check_world(config, world, nodes)
    assert placed(config, world, nodes) == expected


@pytest.mark.parametrize(
    ("config", "world", "nodes", "key", "words"),
    [
        (separate(), 2, 1, f"{R}.n_gpus_per_node", "trainer.n_gpus_per_node=2 that makes 3 ranks on each node, torchrun started 2"),
        (separate(), 4, 1, f"{R}.n_gpus_per_node", "torchrun started 4"),
        (separate(ranks=3, engines=None), 3, 1, f"{R}.n_gpus_per_node", "makes 6"),
        (separate(ranks=None, engines=None), 3, 1, f"{R}.n_gpus_per_node", "1 to 2"),
        (separate(ranks=None, engines=3), 3, 1, f"{R}.n_gpus_per_node", "at least one of each"),
        (separate(engine_nodes=2), 3, 1, f"{R}.nnodes", "torchrun started 1 node"),
        (
            separate(nodes=2),
            4,
            2,
            "trainer.nnodes",
            "torchrun started 2 nodes, actor_rollout_ref.rollout.nnodes takes 1; allowed: null, or 1",
        ),
        (separate(), 4, 2, f"{R}.n_gpus_per_node", "torchrun started 2 on each node"),
        (separate(ranks=3, engines=2), 4, 2, "trainer.n_gpus_per_node", "torchrun started 2 on each node"),
        (
            separate(ranks=3, more="actor_rollout_ref.actor.fsdp_config.fsdp_size=2"),
            4,
            1,
            "actor_rollout_ref.actor.fsdp_config.fsdp_size",
            "3",
        ),
    ],
)
def test_counts_that_do_not_add_up_are_refused_with_both(config: Config, world: int, nodes: int, key: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_world(config, world, nodes)
    assert caught.value.key == key
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "key", "words"),
    [
        ([f"{R}.nnodes=0"], f"{R}.nnodes", "at least 1"),
        ([f"{R}.nnodes=1", f"{R}.checkpoint_engine.backend=naive"], f"{R}.checkpoint_engine.backend", "nccl"),
        ([f"{R}.nnodes=1", "debug=inline"], "debug", "null"),
        (["trainer.v1.trainer_mode=sync", f"{R}.checkpoint_engine.backend=nccl"], f"{R}.checkpoint_engine.backend", "naive"),
        (["trainer.v1.trainer_mode=colocate_async", f"{R}.checkpoint_engine.backend=nccl"], f"{R}.checkpoint_engine.backend", "naive"),
        ([f"{R}.checkpoint_engine.update_weights_bucket_megabytes=0"], f"{R}.checkpoint_engine.update_weights_bucket_megabytes", ">= 1"),
    ],
)
def test_what_a_mode_needs_is_refused_at_load(options: list[str], key: str, words: str) -> None:
    mode = ["trainer.v1.trainer_mode=separate_async", "trainer.v1.separate_async.parameter_sync_step=1"]
    with pytest.raises(ConfigError) as caught:
        load_config(["config=quickstart", *mode, *options])
    assert caught.value.key == key
    assert words in str(caught.value)


def test_one_line_says_how_weights_travel() -> None:
    arguments = ["config=quickstart", "trainer.v1.trainer_mode=separate_async", "trainer.v1.separate_async.parameter_sync_step=1"]
    for backend in ("nccl", "null"):
        loaded = load_config([*arguments, f"{R}.nnodes=1", f"{R}.checkpoint_engine.backend={backend}"])
        assert len([notice for notice in loaded.notices if "gloo between CPUs" in notice]) == 1
    assert not [notice for notice in load_config(["config=quickstart"]).notices if "gloo" in notice]


@pytest.mark.parametrize(
    ("config", "given", "devices", "expected"),
    [
        (separate(), None, 8, (1, 3)),
        (separate(engines=None), None, 8, (1, 4)),
        (separate(ranks=None, engines=2), None, 8, (1, 3)),
        (separate(ranks=None, engines=None), None, 8, (1, 8)),
        (separate(), 5, 8, (1, 5)),
        (separate(nodes=3, engines=2), None, 8, (4, 2)),
        (separate(nodes=2, engine_nodes=2, engines=1), None, 8, (2, 3)),
        (separate(nodes=2, engine_nodes=2, engines=2), 2, 8, (4, 2)),
        (load_config(["config=quickstart"]).config, None, 8, (1, 2)),
        (load_config(["config=quickstart", "trainer.n_gpus_per_node=null"]).config, None, 8, (1, 8)),
    ],
)
def test_the_ranks_to_start_are_counted_for_both(config: Config, given: int | None, devices: int, expected: tuple[int, int]) -> None:
    assert torchrun_shape(config, given, devices) == expected


def test_the_plan_shows_engines_apart_and_counts_rows_for_the_ranks_that_train() -> None:
    plan = batch_arithmetic(separate(engines=2), world_size=4, nodes=1)
    assert (plan.trainer_ranks, plan.engines, plan.rows_per_rank) == (2, 2, 128)
    roles = {process.name: process.role for process in plan.processes}
    assert roles["rank-0"] == "controller, policy, reference"
    assert roles["rank-3"] == "lends its device to engine-1"
    assert roles["engine-1"] == "rollout engine, weights from rank-1"
    text = plan.render()
    assert "4 on 1 node(s): 2 train, 2 lend their device to an engine" in text
    together = batch_arithmetic(load_config(["config=quickstart"]).config, world_size=2, nodes=1)
    assert (together.trainer_ranks, together.engines, together.mode) == (2, 2, "sync")
    assert not [process for process in together.processes if process.name.startswith("engine-")]
