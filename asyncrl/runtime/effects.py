"""Answers of idempotent calls, kept for when the same call comes again because its connection broke."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from asyncrl.runtime.messages import Message, Reply
from asyncrl.runtime.shapes import Buffer

if TYPE_CHECKING:
    from asyncrl.runtime.invocation import Invocation

OperationKey: TypeAlias = tuple[str, int, int]
"""Caller's role and process, its generation, and its number for the operation."""

MOST = 4096
MOST_BYTES = 1 << 20
LARGE = 65536
"""An answer of more bytes, or one with buffers, is what a reader asked for: it is not kept."""


class Answer(msgspec.Struct, frozen=True):
    """The last message of a call, and its bytes."""

    message: Message
    size: int


class Effects:
    """What became of the latest idempotent calls of one actor: bounded in number and bytes, the oldest go first.

    A large answer, or one with buffers, is not kept: the call runs again, which its endpoint has declared harmless. A call that is
    not answered yet is known as long as its caller may come again.
    """

    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._running: dict[OperationKey, Invocation] = {}
        self._answers: OrderedDict[OperationKey, Answer] = OrderedDict()
        self._bytes = 0

    def running(self, key: OperationKey) -> Invocation | None:
        """The call with this key, while it waits or runs."""
        return self._running.get(key)

    def answer(self, key: OperationKey) -> Answer | None:
        """What the call with this key was answered."""
        return self._answers.get(key)

    def fence(self, process: str, oldest: int, role: str | None = None) -> None:
        """Stops the calls of the lives of a process before ``oldest``, in whatever role unless one is given: nobody will ask for them."""
        for (_, generation, _), call in list(self._running.items()):
            if call.caller == process and generation < oldest and role in (None, call.caller_role):
                call.cancel()

    def began(self, key: OperationKey, invocation: Invocation) -> None:
        """A call was accepted."""
        self._running[key] = invocation

    def ended(self, key: OperationKey, message: Message | None, frames: Sequence[Buffer]) -> None:
        """It was answered with ``message``; None for one that was cancelled, whose repetition runs."""
        self._running.pop(key, None)
        if message is None:
            return
        size = 256 + _inner(message)
        if frames or size > LARGE:
            return
        self._answers[key] = Answer(message, size)
        self._bytes += size
        while len(self._answers) > self._most or self._bytes > self._most_bytes:
            _, oldest = self._answers.popitem(last=False)
            self._bytes -= oldest.size


def _inner(message: Message) -> int:
    """Bytes of what a message carries, roughly."""
    if isinstance(message, Reply):
        return len(message.result)
    return sum(len(value) for value in msgspec.structs.astuple(message) if isinstance(value, bytes | str | msgspec.Raw))
