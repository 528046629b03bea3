"""Credit: its waiters get it in their order, and one that is cancelled gives it on."""

import asyncio

import pytest

from asyncrl.errors import ActorDied
from asyncrl.runtime.outgoing import Window


async def turn() -> None:
    """Lets everybody run who can."""
    for _ in range(3):
        await asyncio.sleep(0)


def waiting(window: Window, log: list[str], name: str) -> asyncio.Task[None]:
    """Somebody who notes when it got its credit."""

    async def take() -> None:
        await window.acquire()
        log.append(name)

    return asyncio.ensure_future(take())


async def test_credit_comes_in_the_order_of_its_waiters() -> None:
    window, log = Window(1), list[str]()
    for name in "abc":
        waiting(window, log, name)
    await turn()
    assert log == ["a"]
    window.release()
    window.release()
    await turn()
    assert log == ["a", "b", "c"]
    assert (window.free, len(window.waiters)) == (0, 0)
    window.release()
    assert window.free == 1


async def test_nobody_overtakes_a_waiter_that_has_its_credit_and_did_not_run_yet() -> None:
    window, log = Window(0), list[str]()
    waiting(window, log, "first")
    await turn()
    # The newcomer runs before the waiter does: it was ready before the credit came.
    waiting(window, log, "newcomer")
    window.release()
    window.release()
    await turn()
    assert log == ["first", "newcomer"]
    assert window.free == 0


@pytest.mark.parametrize("granted", [True, False])
async def test_a_cancelled_waiter_gives_its_credit_to_the_next(granted: bool) -> None:
    window, log = Window(0), list[str]()
    first, _ = waiting(window, log, "first"), waiting(window, log, "second")
    await turn()
    if granted:
        window.release()
    first.cancel()
    if not granted:
        window.release()
    await turn()
    assert log == ["second"]
    assert (window.free, len(window.waiters)) == (0, 0)


async def test_all_waiters_fail_together_and_none_is_kept() -> None:
    window, log = Window(0), list[str]()
    tasks = [waiting(window, log, name) for name in "ab"]
    await turn()
    window.fail(lambda: ActorDied("p", "gone"))
    for task in tasks:
        with pytest.raises(ActorDied, match="gone"):
            await task
    assert (log, len(window.waiters)) == ([], 0)
