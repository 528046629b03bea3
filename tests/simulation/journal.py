"""What clients asked for and what actors did: the history that the invariants are checked against."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec


class Operation(msgspec.Struct, eq=False):
    """One request of a client. ``outcome`` is "result", "error" or "cancelled", "" while it lasts.

    ``epoch`` counts the connections to the target's process that the caller's had lost when it was made.
    """

    number: int
    kind: str
    caller: str
    target: str
    actor: str
    start: float
    limit: float
    epoch: int
    end: float = 0.0
    outcome: str = ""
    result: Any = None
    error: BaseException | None = None


class Effect(msgspec.Struct, eq=False):
    """An operation took effect in an actor of ``node``, which answers it with ``value``."""

    operation: int
    node: str
    actor: str
    value: int


class Journal:
    """Shared by all processes of a run; no crash loses it."""

    def __init__(self) -> None:
        self.operations: dict[int, Operation] = {}
        self.effects: dict[int, list[Effect]] = {}
        self.entered: dict[tuple[str, str], list[int]] = {}
        self.running: dict[tuple[int, str], str] = {}
        self.collectives: dict[str, list[int]] = {}
        self.problems: list[str] = []
        self.refusals: list[str] = []
        self.fenced: list[tuple[int, str]] = []
        self.lost: dict[tuple[str, str], list[float]] = {}
        self.gate = asyncio.Event()

    def begin(self, kind: str, caller: str, target: str, actor: str, limit: float) -> Operation:
        """A client asks for something."""
        number = len(self.operations) + 1
        # A reference follows its process, so the connections to all its lives count.
        epoch = sum(len(times) for (lost, by), times in self.lost.items() if by == caller and lost.split("#")[0] == target.split("#")[0])
        made = Operation(number, kind, caller, target, actor, asyncio.get_running_loop().time(), limit, epoch)
        self.operations[number] = made
        return made

    @contextlib.contextmanager
    def serving(self, node: str, actor: str, operation: int, alone: bool) -> Iterator[None]:
        """An endpoint runs; ``alone`` if the actor runs one call at a time."""
        self.entered.setdefault((node, actor), []).append(operation)
        others = [number for number, place in self.running.items() if place == f"{actor}@{node}"]
        if alone and others:
            self.problems.append(f"{actor}@{node} runs operation {operation} beside {others}")
        self.running[operation, node] = f"{actor}@{node}"
        try:
            yield
        finally:
            self.running.pop((operation, node), None)

    def apply(self, operation: int, node: str, actor: str, value: int) -> int:
        """The operation takes effect."""
        self.effects.setdefault(operation, []).append(Effect(operation, node, actor, value))
        return value
