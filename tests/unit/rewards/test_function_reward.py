"""Reward functions of every callable kind, their faults, and their deadlines."""

import asyncio
import bdb
import functools
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from asyncrl.errors import ConfigError, RewardError
from asyncrl.rewards.function import FunctionReward, function_name
from asyncrl.rewards.pool import InlinePool, WorkerPool
from asyncrl.rewards.reward import score_all
from asyncrl.trajectory import RewardItem, RewardResult


@pytest.fixture
async def pool() -> AsyncIterator[WorkerPool]:
    pool = WorkerPool(workers=4, timeout=20.0)
    yield pool
    pool.close()


def item(text: str = "7", truth: str = "7") -> RewardItem:
    return RewardItem(data_source="add1", solution_str=text, ground_truth=truth, extra_info={"index": 3})


def plain(data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any], bonus: float = 0.0) -> float:
    return (solution_str == ground_truth) + bonus


async def asynchronous(data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> float:
    await asyncio.sleep(0)
    return float(solution_str == ground_truth)


class Judge:
    def __call__(self, data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> float:
        return float(solution_str == ground_truth)

    def method(self, **given: Any) -> float:
        return float(given["solution_str"] == given["ground_truth"])


class AsyncJudge:
    async def __call__(self, **given: Any) -> float:
        return float(given["solution_str"] == given["ground_truth"])


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (plain, "plain"),
        (lambda data_source, solution_str, ground_truth, extra_info: solution_str == ground_truth, "<lambda>"),
        (functools.partial(plain, bonus=0.0), "plain"),
        (Judge(), "Judge"),
        (Judge().method, "method"),
        (asynchronous, "asynchronous"),
        (functools.partial(functools.partial(asynchronous)), "asynchronous"),
        (AsyncJudge(), "AsyncJudge"),
        (lambda **given: asynchronous(**given), "<lambda>"),
    ],
)
async def test_every_kind_of_callable_judges(pool: WorkerPool, function: Callable[..., Any], name: str) -> None:
    reward = FunctionReward(function, pool)
    assert reward.name == name
    results = await score_all(reward, [item("7"), item("8"), item("7")])
    assert [result.score for result in results] == [1.0, 0.0, 1.0]


def test_a_builtin_has_its_own_name() -> None:
    assert function_name(len) == "len"
    assert function_name(int) == "int"


async def test_further_arguments_reach_the_function_and_extra_info_too(pool: WorkerPool) -> None:
    def seen(data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any], **rest: Any) -> dict[str, Any]:
        return {"score": 1.0, "source": data_source, "index": extra_info["index"], "rest": rest}

    result = await FunctionReward(seen, pool, {"scale": 2}).score(item())
    assert result.extra == {"source": "add1", "index": 3, "rest": {"scale": 2}}


@pytest.mark.parametrize(
    ("function", "kwargs", "said"),
    [
        (lambda solution_str, ground_truth: 1.0, {}, "got an unexpected keyword argument 'data_source'"),
        (lambda data_source, solution_str, ground_truth, extra_info, model: 1.0, {}, "missing a required argument: 'model'"),
        (plain, {"bonsu": 1.0}, "got an unexpected keyword argument 'bonsu'"),
        (lambda a, b, c, d, /: 1.0, {}, "missing a required"),
        (plain, {"extra_info": {}}, "are given by asyncrl"),
    ],
)
def test_a_function_that_cannot_be_called_so_is_refused_at_the_start(
    function: Callable[..., Any], kwargs: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=r"reward\.custom_reward_function") as refused:
        FunctionReward(function, WorkerPool(1, 1.0), kwargs)
    assert said in str(refused.value)


def misbehave(data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> Any:
    if solution_str == "raise":
        raise ValueError("no answer found")
    if solution_str == "exit":
        sys.exit(3)
    if solution_str == "stop":
        raise StopIteration
    if solution_str == "late":
        raise TimeoutError("the judge's own")
    return {"none": None, "nan": float("nan")}.get(solution_str, 1.0)


async def misbehave_async(**given: Any) -> Any:
    return misbehave(**given)


@pytest.mark.parametrize("function", [misbehave, misbehave_async])
async def test_a_fault_is_an_error_of_its_own_answer_and_the_others_are_judged(pool: WorkerPool, function: Callable[..., Any]) -> None:
    texts = ["raise", "ok", "exit", "late", "none", "ok", "nan"]
    results = await score_all(FunctionReward(function, pool), [item(text) for text in texts])
    assert [result.score for result in results] == [None, 1.0, None, None, None, 1.0, None]
    assert results[0].error == "ValueError: no answer found"
    assert results[2].error == "SystemExit: 3"
    assert results[3].error == "TimeoutError: the judge's own"
    assert "returned None" in results[4].error
    assert "returned nan" in results[6].error
    assert pool.abandoned == 0


async def test_a_stop_iteration_of_a_blocking_function_is_an_error_too(pool: WorkerPool) -> None:
    assert "StopIteration" in (await FunctionReward(misbehave, pool).score(item("stop"))).error


async def test_one_that_never_ends_times_out_and_the_other_seven_are_right() -> None:
    for_ever = threading.Event()

    def judge(data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> float:
        if solution_str == "hang":
            for_ever.wait()
        return float(solution_str == ground_truth)

    pool = WorkerPool(workers=2, timeout=0.5)
    reward = FunctionReward(judge, pool)
    results = await score_all(reward, [item(text) for text in ("7", "8", "hang", "7", "7", "7", "8", "7")])
    assert results[2] == RewardResult(error="timeout after 0.5 s")
    assert [result.score for result in results] == [1.0, 0.0, None, 1.0, 1.0, 1.0, 0.0, 1.0]
    assert pool.abandoned == 1
    again = await score_all(reward, [item("hang"), item("hang"), item("7"), item("8")])
    assert [result.score for result in again] == [None, None, 1.0, 0.0]
    for_ever.set()
    pool.close()


async def test_an_async_one_that_never_ends_times_out() -> None:
    async def judge(**given: Any) -> float:
        if given["solution_str"] == "hang":
            await asyncio.Event().wait()
        return 1.0

    results = await score_all(FunctionReward(judge, WorkerPool(1, 0.2)), [item("hang"), item("7")])
    assert results == [RewardResult(error="timeout after 0.2 s"), RewardResult(score=1.0, extra={"acc": 1.0})]


async def test_as_many_calls_run_at_once_as_there_are_workers() -> None:
    running, most, gate, pair = 0, 0, threading.Lock(), threading.Barrier(2)

    def judge(**given: Any) -> float:
        nonlocal running, most
        with gate:
            running += 1
            most = max(most, running)
        pair.wait()
        with gate:
            running -= 1
        return 1.0

    pool = WorkerPool(workers=2, timeout=20.0)
    results = await score_all(FunctionReward(judge, pool), [item()] * 12)
    assert [result.score for result in results] == [1.0] * 12
    assert most == 2
    pool.close()


async def test_a_cancel_passes_and_its_thread_is_left_behind() -> None:
    started, release = threading.Event(), threading.Event()

    def call() -> int:
        started.set()
        release.wait()
        return 1

    pool = WorkerPool(workers=1, timeout=20.0)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(pool.run(call))
        await asyncio.to_thread(started.wait)
        waiting.cancel()
    assert waiting.cancelled()
    assert pool.abandoned == 1
    assert await pool.run(lambda: 2) == 2
    release.set()
    pool.close()


async def test_the_pool_raises_what_the_call_raises_and_its_own_error_when_it_overruns() -> None:
    release = threading.Event()
    pool = WorkerPool(workers=1, timeout=0.1)
    with pytest.raises(ZeroDivisionError):
        await pool.run(lambda: 1 // 0)
    with pytest.raises(RewardError, match=r"timeout after 0\.1 s"):
        await pool.run(release.wait)
    release.set()
    pool.close()


async def test_inline_rewards_run_in_the_thread_of_the_loop_and_a_fault_is_still_data() -> None:
    threads: list[threading.Thread] = []

    def judge(solution_str: str, **rest: object) -> float:
        threads.append(threading.current_thread())
        return float(solution_str)

    results = await score_all(FunctionReward(judge, InlinePool()), [item("7"), item("no number"), item("8")])
    assert [result.score for result in results] == [7.0, None, 8.0]
    assert results[1].error.startswith("ValueError")
    assert threads == [threading.current_thread()] * 3


async def test_leaving_the_debugger_in_a_reward_is_ctrl_c_once_and_no_further_answer_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    signals: list[int] = []
    calls: list[str] = []
    monkeypatch.setattr(signal, "raise_signal", signals.append)

    def judge(solution_str: str, **rest: object) -> float:
        calls.append(solution_str)
        raise bdb.BdbQuit

    results = await score_all(FunctionReward(judge, InlinePool()), [item("7"), item("8")])
    assert [result.error for result in results] == ["BdbQuit: ", "BdbQuit: "]
    assert calls == ["7"]
    assert signals == [signal.SIGINT]
