"""Structured tasks: every way out leaves none."""

import asyncio

import pytest

from asyncrl.runtime import all_of, running, shielded
from asyncrl.runtime.tasks import Crew, EndedEarly, to_its_end


async def forever() -> None:
    await asyncio.Event().wait()


async def fails() -> None:
    raise KeyError("background")


async def returns() -> None:
    return


async def test_background_functions_end_with_their_block() -> None:
    ended = asyncio.Event()

    async def background() -> None:
        try:
            await forever()
        finally:
            ended.set()

    async with running(background, forever):
        await asyncio.sleep(0)
    assert ended.is_set()


async def test_a_failing_background_function_fails_the_block_with_its_own_error() -> None:
    with pytest.raises(KeyError, match="background"):
        async with running(forever, fails):
            await forever()


async def test_a_background_function_that_returns_early_fails_the_block() -> None:
    with pytest.raises(EndedEarly, match="returns"):
        async with running(returns):
            await forever()


async def test_an_error_of_the_body_is_raised_bare() -> None:
    with pytest.raises(ValueError, match="body"):  # noqa: PT012
        async with running(forever):
            await asyncio.sleep(0)
            raise ValueError("body")


async def test_cancelling_the_block_cancels_its_background() -> None:
    async def block() -> None:
        async with running(forever):
            await forever()

    task = asyncio.ensure_future(block())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_all_of_keeps_order_and_cancels_the_rest_on_the_first_failure() -> None:
    cancelled: list[bool] = []

    async def slow() -> int:
        try:
            await forever()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return 0

    async def quick(value: int) -> int:
        return value

    assert await all_of([lambda: quick(1), lambda: quick(2)]) == [1, 2]
    with pytest.raises(KeyError):
        await all_of([slow, fails])
    assert cancelled == [True]


async def test_shielded_cleanup_runs_to_its_end_and_then_lets_the_cancellation_pass() -> None:
    inside, go, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def cleanup() -> None:
        inside.set()
        await go.wait()
        done.set()

    async def work() -> None:
        async with shielded(10) as shield:
            assert await shield.run(cleanup)

    task = asyncio.ensure_future(work())
    await inside.wait()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.is_set()


async def test_shielded_cleanup_is_bounded() -> None:
    async with shielded(0.02) as shield:
        assert not await shield.run(forever)


async def test_what_must_run_to_its_end_delays_the_cancellation() -> None:
    go, done = asyncio.Event(), asyncio.Event()

    async def work() -> int:
        await go.wait()
        done.set()
        return 3

    task = asyncio.ensure_future(to_its_end(work))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.is_set()
    assert await to_its_end(work) == 3


async def test_an_error_in_a_crew_reaches_the_loops_handler() -> None:
    seen: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: seen.append(context))
    crew = Crew()
    crew.start(fails, name="unlucky")
    crew.start(forever, name="patient")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(crew) == 1
    assert await crew.close(1) == []
    assert len(crew) == 0
    assert [context["message"] for context in seen] == ["task unlucky failed"]
