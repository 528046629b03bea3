"""What a step says of the prompts that were not trained, of waits and of issued answers, by hand."""

import pytest

from asyncrl.runtime import RealHost
from asyncrl.trainer.flow import FlowCounts
from asyncrl.trainer.report import StepReport
from asyncrl.trainer.sampler import FAILED, STALE
from asyncrl.trainer.stages import usage_of
from asyncrl.workers.usage import EngineUsage
from tests.unit.workers.engine_room import SpyEngine, engine_room


def test_issued_answers_are_those_trained_and_those_discarded() -> None:
    counts = FlowCounts(reissued=2, reissued_tokens=9, cut_answers=4, waited=1.5, stale=[3, 5])
    counts.dropped.update([STALE, STALE, FAILED])
    # A tool put 6 of the 10 tokens in.
    counts.discard([{"response_len": 10, "trainable_len": 4}, {"response_len": 2, "trainable_len": 2}])
    counts.discard([])
    numbers = counts.numbers([1, 3])
    assert numbers["training/issued_response_length/mean"] == (1 + 3 + 10 + 2) / 4
    assert numbers["training/issued_response_length/max"] == 10
    assert numbers["training/issued_response_length/min"] == 1
    expected = {
        "training/discarded_tokens": 6,
        "training/discarded_answers": 2,
        "training/cut_answers": 4,
        "training/prompts/reissued": 2,
        "training/reissued_tokens": 9,
        "perf/trainer_wait_s": 1.5,
        "training/off_policy/evicted_samples": 2,
        "training/rollout_failure/evicted_samples": 1,
        "training/filter_groups/evicted_samples": 0,
        "training/off_policy/evicted_samples_staleness/mean": 4.0,
    }
    assert {name: numbers[name] for name in expected} == expected


def test_a_step_that_trained_nothing_and_dropped_nothing_has_no_lengths() -> None:
    assert not [name for name in FlowCounts().numbers([]) if "length" in name or "staleness" in name]


def test_waits_of_engines_are_told_by_mean_and_by_extremes() -> None:
    report = StepReport(1, RealHost())
    report.add_usage([EngineUsage(generating=1.0, paused=0.5, idle=1.5, given_back=7), EngineUsage(generating=3.0, idle=1.0, given_back=5)])
    expected = {
        "perf/engine_wait_s/mean": 1.5,
        "perf/engine_wait_s/max": 2.0,
        "perf/engine_wait_s/min": 1.0,
        "perf/engine_paused_s/mean": 0.25,
        "perf/engine_paused_s/max": 0.5,
        "training/continued_tokens": 12,
    }
    assert {name: report.numbers[name] for name in expected} == pytest.approx(expected)


def test_engines_that_told_nothing_leave_the_numbers_out() -> None:
    report = StepReport(1, RealHost())
    report.add_usage([])
    assert [name for name in report.numbers if name.startswith("perf/")] == []


async def test_an_engine_that_is_gone_is_left_out_of_the_usage() -> None:
    async with engine_room(SpyEngine(), SpyEngine()) as room:
        assert len(await usage_of(room.workers)) == 2
        await room.system.stop("rollout-0", "killed")
        [left] = await usage_of(room.workers)
    assert left.generating == left.paused == 0 < left.idle
