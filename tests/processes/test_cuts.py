"""Ranks and micro-batches are a matter of speed: every cut gives one loss, one gradient norm and, under SGD, one set of weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.processes.test_worked_example import INTERIOR_ZEROS, SMALL, TWO_OUTPUTS, check_step, model
from tests.processes.warm_ranks import run_scenario

ALL = 0
RATE = 0.01
"""Small enough that no token's KL reaches the bound of the reported value, which the dense reference does not have."""
SOON = [(1, ALL), (2, 1), (2, 3)]
"""The cuts of the suite; all of them run with ``make faults``."""
CUTS = [(ranks, rows) for ranks in (1, 2) for rows in (1, 3, ALL)]
"""Ranks, and rows of a micro-batch; ALL are all rows at once. Two outputs make seven rows, which two ranks fill up to eight."""

MEASURED = ("timing_", "perf/", "global_seqlen/", "training/weight_digest")
"""What is measured, not computed, or says how the rows were cut; the digest is one of float32 sums of another order."""

Cuts = dict[tuple[int, int], tuple[Path, list[dict[str, Any]]]]


def micro(rows: int) -> tuple[str, ...]:
    """Options for ``rows`` a micro-batch. ALL gives none: the default token budget holds every row of these tests."""
    if rows == ALL:
        return ()
    names = ("actor.ppo_micro_batch_size_per_gpu", "rollout.log_prob_micro_batch_size_per_gpu", "ref.log_prob_micro_batch_size_per_gpu")
    return tuple(f"actor_rollout_ref.{name}={rows}" for name in names)


def run_cut(folder: Path, ranks: int, rows: int) -> tuple[Path, list[dict[str, Any]]]:
    return folder, run_scenario(
        folder, ranks, [TWO_OUTPUTS, INTERIOR_ZEROS], *SMALL, f"actor_rollout_ref.actor.optim.lr={RATE}", *micro(rows)
    )


@pytest.fixture(scope="module")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> Cuts:
    return {cut: run_cut(tmp_path_factory.mktemp("cut"), *cut) for cut in SOON}


def check_equal(cuts: Cuts) -> None:
    base_folder, base = cuts[1, ALL]
    for cut, (folder, records) in cuts.items():
        for number, (record, wanted) in enumerate(zip(records, base, strict=True)):
            for name in ("loss", "pg_loss", "kl_loss", "entropy", "ppo_kl", "pg_clipfrac", "grad_norm"):
                key = f"actor/by_update/{name}"
                assert record["numbers"][key] == pytest.approx(wanted["numbers"][key], rel=1e-5, abs=1e-5), (cut, name)
            held, reference = (load_file(place / f"weights_{number + 1}.safetensors") for place in (folder, base_folder))
            for name, tensor in reference.items():
                torch.testing.assert_close(held[name], tensor, rtol=0, atol=1e-5, msg=f"{cut} {name}")


@pytest.mark.timeout(240)
def test_the_cuts_give_one_loss_one_gradient_norm_and_one_set_of_weights(cuts: Cuts) -> None:
    check_equal(cuts)


@pytest.mark.faults
@pytest.mark.timeout(400)
def test_every_cut_gives_one_loss_one_gradient_norm_and_one_set_of_weights(cuts: Cuts, tmp_path_factory: pytest.TempPathFactory) -> None:
    others = [cut for cut in CUTS if cut not in SOON]
    check_equal(cuts | {cut: run_cut(tmp_path_factory.mktemp("cut"), *cut) for cut in others})


def test_padding_fills_a_mini_batch_up_to_the_ranks_and_reaches_no_metric(
    cuts: Cuts,
) -> None:
    shares = cuts[2, 3][1][0]["shares"]
    assert sorted(len(keys) + padding for share in shares for keys, padding in share) == [4, 4]
    assert sum(padding for share in shares for _, padding in share) == 1
    assert cuts[2, 3][1][0]["numbers"]["training/rows_trained"] == 7
    same = ("response_length/mean", "critic/score/mean", "perf/total_num_tokens", "actor/entropy")
    for name in same:
        assert cuts[2, 3][1][0]["numbers"][name] == pytest.approx(cuts[1, ALL][1][0]["numbers"][name], rel=1e-6), name


def test_no_metric_depends_on_ranks_micro_batches_and_padding(cuts: Cuts) -> None:
    base = cuts[1, ALL][1]
    for cut, (_, records) in cuts.items():
        for record, wanted in zip(records, base, strict=True):
            found, expected = record["numbers"], wanted["numbers"]
            names = [name for name in expected if not name.startswith(MEASURED)]
            assert len(names) > 80
            assert found.keys() == expected.keys()
            for name in names:
                assert found[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-5, nan_ok=True), (cut, name)
            assert record["numbers"]["perf/total_num_tokens"] == wanted["numbers"]["perf/total_num_tokens"]


def test_one_rank_equals_the_dense_reference(cuts: Cuts) -> None:
    folder, records = cuts[1, ALL]
    trained, reference = model(), model()
    for number, record in enumerate(records):
        check_step(record, folder / f"weights_{number + 1}.safetensors", trained, reference, lr=RATE)
