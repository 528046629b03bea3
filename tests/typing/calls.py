"""Calls as users write them, for type checkers alone; nothing here runs.

A comment "is TYPE" says what the checkers must show for the ``reveal_type`` of its line, a comment "wrong" marks a line
that they must refuse, and they may refuse no other.
"""

# ruff: noqa: F821, F841
# mypy: ignore-errors
# pyright: reportUnusedVariable=false

from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import msgspec

from asyncrl.runtime import Actor, ActorGroup, ActorRef, ActorSystem, endpoint


class Page(msgspec.Struct):
    """A message of the user's own."""

    text: str


class Worker(Actor):
    """One endpoint of each kind."""

    def __init__(self, name: str, *, size: int = 1) -> None:
        self.name, self.size = name, size

    @endpoint
    async def add(self, n: int) -> int:
        return n

    @endpoint(idempotent=True)
    def text(self, n: int) -> str:
        return str(n)

    @endpoint
    async def page(self, title: str, *, lines: int = 3, tags: Sequence[str] = ()) -> Page | None:
        return Page(title)

    @endpoint(collective=True)
    async def reduce(self, values: list[float]) -> dict[str, float]:
        return {"sum": sum(values)}

    @endpoint
    async def items(self, n: int) -> AsyncIterator[bytes]:
        yield b""

    @endpoint
    async def pages(self) -> AsyncGenerator[Page, None]:
        yield Page("")

    @endpoint
    async def nothing(self) -> None:
        return


class Other(Actor):
    """Somebody else."""

    @endpoint
    async def add(self, n: int) -> int:
        return n


async def results(ref: ActorRef[Worker], group: ActorGroup[Worker]) -> None:
    reveal_type(await ref.call(Worker.add, 2))  # is int
    reveal_type(await ref.call(Worker.add, n=2))  # is int
    reveal_type(await ref.call(Worker.text, 2))  # is str
    reveal_type(await ref.with_deadline(3).call(Worker.text, n=2))  # is str
    reveal_type(await ref.watched(3).call(Worker.page, "a", lines=2, tags=["b"]))  # is Page | None
    reveal_type(await ref.call(Worker.nothing))  # is None
    reveal_type(await group.call_all(Worker.add, 2))  # is list[int]
    reveal_type(await group.call_all(Worker.page, "a", lines=1))  # is list[Page | None]
    reveal_type(await group.with_deadline(9).call_all(Worker.reduce, values=[1.0]))  # is list[dict[str, float]]
    reveal_type(await group.call_all(Worker.text, n=2))  # is list[str]
    reveal_type(await group.call_each(Worker.add, [(1,), (2,)]))  # is list[int]
    reveal_type(await group.call_each(Worker.text, [(1,), (2,)]))  # is list[str]
    async for item in ref.stream(Worker.items, 3):
        reveal_type(item)  # is bytes
    async for page in ref.stream(Worker.pages):
        reveal_type(page.text)  # is str
    await ref.tell(Worker.add, 2)
    await ref.tell(Worker.text, n=2)


async def references(system: ActorSystem, ref: ActorRef[Worker]) -> None:
    reveal_type(await system.spawn(Worker, "a", name="w"))  # is ActorRef[Worker]
    reveal_type(system.ref(ref.address, Worker))  # is ActorRef[Worker]
    reveal_type(ActorGroup([ref, ref]))  # is ActorGroup[Worker]


async def arguments(ref: ActorRef[Worker], group: ActorGroup[Worker]) -> None:
    await ref.call(Worker.add, "two")  # wrong
    await ref.call(Worker.add)  # wrong
    await ref.call(Worker.add, 1, 2)  # wrong
    await ref.call(Worker.add, m=2)  # wrong
    await ref.call(Worker.text, None)  # wrong
    await ref.call(Worker.page, "a", 3)  # wrong
    await ref.call(Worker.page, "a", lines="3")  # wrong
    await ref.call(Worker.nothing, 1)  # wrong
    await ref.tell(Worker.add)  # wrong
    await ref.tell(Worker.add, "two")  # wrong
    ref.stream(Worker.items, "three")  # wrong
    ref.stream(Worker.items)  # wrong
    await group.call_all(Worker.add, "two")  # wrong
    await group.call_all(Worker.page, "a", size=1)  # wrong


async def kinds(ref: ActorRef[Worker], group: ActorGroup[Worker]) -> None:
    await ref.call(Other.add, 1)  # wrong
    await group.call_all(Other.add, 1)  # wrong
    ref.stream(Worker.add, 1)  # wrong
    text: str = await ref.call(Worker.add, 2)  # wrong
    number: int = await ref.call(Worker.text, 2)  # wrong
    numbers: list[str] = await group.call_all(Worker.add, 2)  # wrong
    other: ActorRef[Other] = ref  # wrong
