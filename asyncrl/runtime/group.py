"""Several actors that are called together."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from asyncrl.runtime.plan import plan_of
from asyncrl.runtime.ref import ActorRef
from asyncrl.runtime.tasks import all_of

A = TypeVar("A")
R = TypeVar("R")
P = ParamSpec("P")


class ActorGroup(Generic[A]):
    """References in member order. Collective endpoints get the group's next sequence number, the same for all members."""

    def __init__(self, refs: Sequence[ActorRef[A]]) -> None:
        if not refs:
            raise ValueError("a group needs at least one member")
        self.refs = list(refs)
        self._members = tuple(ref.address for ref in refs)

    def __len__(self) -> int:
        return len(self.refs)

    @overload
    async def call_all(self, method: Callable[Concatenate[A, P], Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> list[R]: ...
    @overload
    async def call_all(self, method: Callable[Concatenate[A, P], R], *args: P.args, **kwargs: P.kwargs) -> list[R]: ...
    async def call_all(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Every member with the same arguments; results in member order. The first failure cancels the rest."""
        return await self._call(method, [(args, kwargs)] * len(self.refs))

    @overload
    async def call_each(self, method: Callable[..., Awaitable[R]], per_member_args: Sequence[tuple[Any, ...]]) -> list[R]: ...
    @overload
    async def call_each(self, method: Callable[..., R], per_member_args: Sequence[tuple[Any, ...]]) -> list[R]: ...
    async def call_each(self, method: Callable[..., Any], per_member_args: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Member i with ``per_member_args[i]``; results in member order. The first failure cancels the rest."""
        if len(per_member_args) != len(self.refs):
            raise ValueError(f"{len(self.refs)} members, arguments for {len(per_member_args)}")
        return await self._call(method, [(args, {}) for args in per_member_args])

    async def _call(self, method: Callable[..., Any], arguments: Sequence[tuple[Any, dict[str, Any]]]) -> list[Any]:
        plan, number = plan_of(method), -1
        if plan.collective:
            for args, kwargs in arguments:
                # What cannot travel to one member must reach none, or it would be behind the others from then on.
                plan.arguments.encode(args, kwargs)
            number = self.refs[0].caller.collective_number(self._members)
        calls = [functools.partial(ref.numbered_call, number, method, *a, **k) for ref, (a, k) in zip(self.refs, arguments, strict=True)]
        return await all_of(calls)

    def with_deadline(self, seconds: float) -> ActorGroup[A]:
        """The same members with a deadline."""
        return ActorGroup([ref.with_deadline(seconds) for ref in self.refs])

    def watched(self, silence: float) -> ActorGroup[A]:
        """The same members, bounded by silence instead of the clock."""
        return ActorGroup([ref.watched(silence) for ref in self.refs])
