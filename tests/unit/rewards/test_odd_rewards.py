"""Odd values and exceptions of a reward function, that no message carries or that look like somebody else's: one answer fails, alone."""

import asyncio
import enum
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from asyncrl.rewards.function import FunctionReward
from asyncrl.rewards.pool import InlinePool, WorkerPool
from asyncrl.rewards.reward import MOST_DEPTH, json_value, normalise, score_all
from asyncrl.trajectory import RewardItem, RewardResult


class Text(str):
    def __str__(self) -> str:
        return "another"


class Count(int):
    def __int__(self) -> int:
        return 99


class Level(enum.IntEnum):
    HIGH = 3


class Unreadable(ValueError):
    def __str__(self) -> str:
        raise KeyError("no text")


class NoNumber:
    def __float__(self) -> float:
        raise ZeroDivisionError


class Nameless:
    def __repr__(self) -> str:
        raise AttributeError("half made")


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def containing_itself() -> dict[str, Any]:
    value: dict[str, Any] = {"score": 1.0}
    value["whole"] = value
    return value


VALUES = [
    ({"score": 1.0, "pred": int("9" * 25)}, "an integer of 84 bits"),
    ({"score": 1.0, "pred": [{"deep": -(2**63) - 1}]}, "allowed: -9223372036854775808 to 18446744073709551615"),
    ({"score": 1.0, "pred": "\ud800"}, "a text that has no UTF-8 form: '\\ud800'"),
    ({"score": 1.0, "\udfff": 1}, "a text that has no UTF-8 form"),
    ({"score": 1.0, "pred": {"\udfff": 1}}, "a text that has no UTF-8 form"),
    ({"score": 1.0, "pred": np.array(["\ud800"])}, "a text that has no UTF-8 form"),
    ({"score": 1.0, "pred": np.longdouble(1)}, "a longdouble, which JSON cannot hold"),
    ({"score": 1.0, "pred": nested(MOST_DEPTH + 1)}, "nested more than 32 deep"),
    (containing_itself(), "one that contains itself"),
    ({"score": NoNumber()}, "expected a number"),
    (NoNumber(), "expected a number"),
    ({"score": 1.0, "why": Nameless()}, "AttributeError: half made"),
    (Nameless(), "AttributeError: half made"),
    ({"score": 1.0, Nameless(): 1}, "AttributeError: half made"),
]


@pytest.mark.parametrize(("returned", "said"), VALUES)
def test_a_value_that_no_message_carries_is_an_error_that_says_so(returned: Any, said: str) -> None:
    result = normalise(returned)
    assert result.score is None
    assert said in result.error
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(result), type=RewardResult) == result


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (-(2**63), -(2**63)),
        (2**64 - 1, 2**64 - 1),
        (Text("seen"), "seen"),
        (Count(4), 4),
        (Level.HIGH, 3),
        (np.str_("a"), "a"),
        (np.uint64(2**64 - 1), 2**64 - 1),
        ({Text("key"): nested(MOST_DEPTH - 2)}, {"another": nested(MOST_DEPTH - 2)}),
    ],
)
def test_what_can_travel_becomes_plain_and_travels(value: Any, plain: Any) -> None:
    made = json_value(value)
    assert made == plain
    assert type(made) is type(plain)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(made)) == plain


def odd(solution_str: str, **given: Any) -> Any:
    if solution_str.isdigit():
        return VALUES[int(solution_str)][0]
    raised = {
        "surrogate": ValueError("saw \ud800"),
        "unreadable": Unreadable(),
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt("mine"),
        "cancel": asyncio.CancelledError("mine"),
        "left": GeneratorExit(),
        "deep": RecursionError("too deep"),
    }
    if solution_str in raised:
        raise raised[solution_str]
    return 1.0


async def odd_async(**given: Any) -> Any:
    return odd(**given)


def item(text: str) -> RewardItem:
    return RewardItem(data_source="any", solution_str=text, ground_truth="", extra_info={})


@pytest.fixture
async def pool() -> AsyncIterator[WorkerPool]:
    pool = WorkerPool(workers=2, timeout=20.0)
    yield pool
    pool.close()


@pytest.mark.parametrize("function", [odd, odd_async])
async def test_one_odd_answer_fails_and_the_others_are_judged(pool: WorkerPool, function: Callable[..., Any]) -> None:
    texts = ["surrogate", "unreadable", "exit", "interrupt", "cancel", "left", "deep", *map(str, range(len(VALUES)))]
    results = await score_all(FunctionReward(function, pool), [item(text) for each in texts for text in (each, "good")])
    assert [result.score for result in results] == [None, 1.0] * len(texts)
    assert [result.error for result in results[0:14:2]] == [
        "ValueError: saw \\ud800",
        "Unreadable: its text cannot be had: KeyError",
        "SystemExit: 3",
        "KeyboardInterrupt: mine",
        "CancelledError: mine",
        "GeneratorExit: ",
        "RecursionError: too deep",
    ]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(results), type=list[RewardResult]) == results
    assert pool.abandoned == 0


async def test_an_async_reward_that_cancels_itself_or_what_it_waits_for_fails_alone(pool: WorkerPool) -> None:
    async def judge(solution_str: str, **given: Any) -> float:
        task = asyncio.current_task()
        assert task is not None
        if solution_str == "itself":
            task.cancel()
            await asyncio.Event().wait()
        if solution_str == "inner":
            inner = asyncio.get_running_loop().create_future()
            inner.cancel()
            await inner
        return 1.0

    results = await score_all(FunctionReward(judge, pool), [item(text) for text in ("itself", "good", "inner", "good")])
    assert [(result.score, result.error) for result in results] == [
        (None, "CancelledError: "),
        (1.0, ""),
        (None, "CancelledError: "),
        (1.0, ""),
    ]


async def test_a_cancel_from_outside_still_ends_the_judging_of_a_group() -> None:
    begun = asyncio.Event()

    async def judge(**given: Any) -> float:
        begun.set()
        await asyncio.Event().wait()
        return 1.0

    async with asyncio.TaskGroup() as tasks:
        judging = tasks.create_task(score_all(FunctionReward(judge, WorkerPool(1, 20.0)), [item("a"), item("b")]))
        await begun.wait()
        judging.cancel()
    assert judging.cancelled()


async def test_a_cancel_from_outside_passes_a_blocking_reward_too() -> None:
    begun, release = threading.Event(), threading.Event()

    def judge(**given: Any) -> float:
        begun.set()
        release.wait()
        return 1.0

    pool = WorkerPool(1, 20.0)
    async with asyncio.TaskGroup() as tasks:
        judging = tasks.create_task(score_all(FunctionReward(judge, pool), [item("a")]))
        await asyncio.to_thread(begun.wait)
        judging.cancel()
    assert judging.cancelled()
    release.set()
    pool.close()


def test_ctrl_c_in_an_inline_reward_is_for_the_whole_run() -> None:
    async def judge_one() -> RewardResult:
        return await FunctionReward(odd, InlinePool()).score(item("interrupt"))

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(judge_one())
