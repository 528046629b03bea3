"""The simulation finds what is broken on purpose: each of these mistakes is caught by one of its seeds."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from asyncrl.errors import AsyncRLError
from asyncrl.runtime.connections import Connections
from asyncrl.runtime.effects import Effects, OperationKey
from asyncrl.runtime.incoming import Incoming
from asyncrl.runtime.mailbox import Mailbox
from asyncrl.runtime.messages import Message
from asyncrl.runtime.outgoing import Outgoing, Window
from asyncrl.runtime.pending import Pending
from asyncrl.runtime.security import Identity
from asyncrl.runtime.shapes import Buffer
from tests.simulation.scenario import Scenario
from tests.simulation.test_seeds import COUNT

Plant = Callable[[pytest.MonkeyPatch], None]


def a_credit_is_lost(patch: pytest.MonkeyPatch) -> None:
    """Each tenth credit does not come back."""
    release, count = Window.release, [0]

    def lose(window: Window) -> None:
        count[0] += 1
        if count[0] % 10:
            release(window)

    patch.setattr(Window, "release", lose)


def a_credit_is_lost_with_its_waiter(patch: pytest.MonkeyPatch) -> None:
    """A caller that is cancelled in the very turn in which it was given a credit keeps it."""

    async def acquire(window: Window, silence: float = 0.0) -> bool:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        window.waiters.append(waiter)
        if window.free:
            window.free -= 1
            loop.call_soon(window.release)
        try:
            return await waiter
        finally:
            window.waiters.remove(waiter)

    patch.setattr(Window, "acquire", acquire)


def a_callee_answers_twice(patch: pytest.MonkeyPatch) -> None:
    finished = Incoming.finished

    def twice(incoming: Incoming, call: int, message: Message, frames: Sequence[Buffer]) -> None:
        finished(incoming, call, message, frames)
        incoming.send(message, frames)

    patch.setattr(Incoming, "finished", twice)


def a_loss_is_not_told(patch: pytest.MonkeyPatch) -> None:
    """Calls go on although their connection is gone."""
    break_off = Outgoing.break_off

    def forget(outgoing: Outgoing, error: Callable[[], AsyncRLError], **kwargs: Any) -> None:
        outgoing._pending.clear()
        break_off(outgoing, error, **kwargs)

    patch.setattr(Outgoing, "break_off", forget)


def a_cancellation_is_not_passed_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Outgoing, "cancel", lambda outgoing, number: None)


def two_calls_run_at_a_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Mailbox, "submit", lambda mailbox, invocation: mailbox._start(invocation))


def an_idempotent_call_runs_again(patch: pytest.MonkeyPatch) -> None:
    def forget(effects: Effects, key: OperationKey) -> None:
        return None

    patch.setattr(Effects, "running", forget)
    patch.setattr(Effects, "answer", forget)


def a_deadline_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pending, "expire", lambda pending: None)


def a_stale_process_is_welcome(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Identity, "refusal_of", lambda *_: "")


def a_stale_connection_lives_on(patch: pytest.MonkeyPatch) -> None:
    """The connections of an older life go on beside those of the newer one."""
    patch.setattr(Connections, "_greeted", lambda connections, newcomer: None)


def a_caller_that_has_gone_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Incoming, "_feel", lambda incoming: None)


PLANTS = [
    a_credit_is_lost, a_credit_is_lost_with_its_waiter, a_callee_answers_twice, a_loss_is_not_told,
    a_cancellation_is_not_passed_on, two_calls_run_at_a_time, an_idempotent_call_runs_again,
    a_deadline_is_not_kept, a_stale_process_is_welcome, a_stale_connection_lives_on, a_caller_that_has_gone_is_not_noticed,
]  # fmt: skip


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(COUNT):
        problems = Scenario(seed).run()
        if problems:
            print(f"{plant.__name__} is found by seed {seed}: {problems[0]}")
            return
    pytest.fail(f"no seed of {COUNT} finds it")
