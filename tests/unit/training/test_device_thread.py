"""One thread, jobs in order, and what becomes of their callers."""

import asyncio
import contextvars
import threading

import pytest

from asyncrl.errors import ActorDied
from asyncrl.training.device_thread import DeviceThread, InlineDevice


@pytest.fixture
def device() -> DeviceThread:
    return DeviceThread("test")


async def test_jobs_run_on_one_thread_in_the_order_given(device: DeviceThread) -> None:
    seen: list[int] = []

    def job(number: int, *, name: str) -> str:
        seen.append(number)
        return f"{name} on {threading.current_thread().name}"

    results = await asyncio.gather(*(device.run(job, number, name="job") for number in range(20)))
    assert seen == list(range(20))
    assert set(results) == {"job on test"}


async def test_an_error_reaches_its_caller_alone(device: DeviceThread) -> None:
    def fail() -> None:
        raise ArithmeticError("no")

    failed, good = await asyncio.gather(device.run(fail), device.run(sum, [1, 2]), return_exceptions=True)
    assert isinstance(failed, ArithmeticError)
    assert good == 3


async def test_a_started_job_runs_out_and_a_waiting_one_does_not_start(device: DeviceThread) -> None:
    started, release, ran = threading.Event(), threading.Event(), []

    def blocked() -> None:
        started.set()
        release.wait()
        ran.append("started")

    first = asyncio.create_task(device.run(blocked))
    second = asyncio.create_task(device.run(ran.append, "waiting"))
    await asyncio.to_thread(started.wait)
    assert "blocked" in device.current
    for task in (first, second):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    release.set()
    await device.run(ran.append, "next")
    assert ran == ["started", "next"]


async def test_a_job_sees_its_callers_context(device: DeviceThread) -> None:
    mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark")
    mark.set("caller")
    assert await device.run(mark.get) == "caller"


async def test_close_answers_what_has_not_started(device: DeviceThread) -> None:
    started, release = threading.Event(), threading.Event()

    def blocked() -> str:
        started.set()
        release.wait()
        return "done"

    running = asyncio.create_task(device.run(blocked))
    waiting = asyncio.create_task(device.run(len, ""))
    await asyncio.to_thread(started.wait)
    device.close()
    device.close()
    with pytest.raises(ActorDied, match="test thread"):
        await waiting
    with pytest.raises(ActorDied):
        await device.run(len, "")
    release.set()
    assert await running == "done"


async def test_inline_jobs_run_in_the_callers_thread_in_the_order_given_and_the_loop_turns_between_them() -> None:
    seen: list[object] = []

    def job(number: int, *, name: str) -> str:
        seen.append(number)
        asyncio.get_running_loop().call_soon(seen.append, f"turn after {number}")
        return f"{name} on {threading.current_thread().name}"

    async def two() -> None:
        device = InlineDevice()
        assert await device.run(job, 0, name="job") == f"job on {threading.current_thread().name}"
        await device.run(job, 1, name="job")

    await two()
    assert seen == [0, "turn after 0", 1]


async def test_an_inline_error_is_raised_at_its_caller() -> None:
    def broken() -> None:
        raise ZeroDivisionError("here")

    with pytest.raises(ZeroDivisionError, match="here"):
        await InlineDevice().run(broken)
