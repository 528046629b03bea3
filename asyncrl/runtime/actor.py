"""Actors, their endpoints, and what an actor knows about where it runs."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, TypeVarTuple, overload

import msgspec

from asyncrl.runtime.tasks import Crew

if TYPE_CHECKING:
    from asyncrl.runtime.host import Host
    from asyncrl.runtime.system import ActorSystem

F = TypeVar("F", bound=Callable[..., Any])
Ts = TypeVarTuple("Ts")

MARK = "_asyncrl_endpoint"


class EndpointMark(msgspec.Struct, frozen=True):
    """What ``@endpoint`` was told."""

    idempotent: bool = False
    collective: bool = False
    roles: tuple[str, ...] = ()


@overload
def endpoint(function: F) -> F: ...
@overload
def endpoint(*, idempotent: bool = False, collective: bool = False, roles: Sequence[str] = ()) -> Callable[[F], F]: ...
def endpoint(
    function: F | None = None, *, idempotent: bool = False, collective: bool = False, roles: Sequence[str] = ()
) -> F | Callable[[F], F]:
    """Marks a method as callable from other actors and processes; returns it unchanged.

    ``async def`` runs on the event loop, an async generator is a stream, a plain ``def`` runs on a worker thread.
    ``idempotent``: a second run does no harm, so a call whose connection breaks is sent again. The actor answers it from its
    records; but an answer of more than 64 KiB, or one with buffers, is not kept, nor is any beyond the actor's process: then the
    method runs again. ``collective``: contains a collective, so it may only be called through an ``ActorGroup``. ``roles``: only
    processes of these roles may call it, others get PermissionDenied; () is everybody. All parameters and the result must be
    annotated with types that can travel. Raises ValueError for a method that is both idempotent and collective: one member that
    runs it again would be out of step with the others.
    """
    if idempotent and collective:
        raise ValueError("an endpoint is idempotent or collective: a member that runs it again would be out of step with its group")

    def mark(method: F) -> F:
        method.__dict__[MARK] = EndpointMark(idempotent, collective, tuple(roles))
        return method

    return mark if function is None else mark(function)


class CurrentCall(Protocol):
    """What is known about the call that is being served."""

    caller: str
    caller_role: str
    trace: str
    expires: float | None
    key: tuple[str, int, int] | None

    def progress(self) -> None: ...


CURRENT_CALL: contextvars.ContextVar[CurrentCall | None] = contextvars.ContextVar("asyncrl_current_call", default=None)


class ActorContext:
    """Where an actor runs, and which call it serves. Set before ``__init__`` runs."""

    def __init__(self, name: str, system: ActorSystem, host: Host) -> None:
        self.name, self.system, self.host = name, system, host
        self.crew = Crew(lambda task, error: system.actor_failed(name, task, error))

    def background(self, function: Callable[[*Ts], Coroutine[Any, Any, None]], *args: *Ts, name: str) -> None:
        """Runs ``function`` beside the calls until the actor stops. What it raises fails the actor, and with it its process."""
        self.crew.start(function, *args, name=name)

    def progress(self) -> None:
        """Marks that the current call got further; what a watched caller waits for. Safe on any thread; nothing outside a call."""
        current = CURRENT_CALL.get()
        if current is not None:
            current.progress()

    @property
    def caller(self) -> str:
        """Name of the process that made the current call, "" outside one."""
        current = CURRENT_CALL.get()
        return current.caller if current is not None else ""

    @property
    def caller_role(self) -> str:
        """Role of the process that made the current call, "" outside one. With keys it is proved, without them it is its own word."""
        current = CURRENT_CALL.get()
        return current.caller_role if current is not None else ""

    @property
    def trace(self) -> str:
        """The trace id of the current call, "" outside one. Calls that are made while it is served carry it on."""
        current = CURRENT_CALL.get()
        return current.trace if current is not None else ""

    @property
    def operation(self) -> tuple[str, int, int] | None:
        """The caller's process, its generation and its number for the current call, the same when it is repeated.

        None outside a call, and in one whose endpoint is not idempotent. What survives a restart can keep it beside the effect.
        """
        current = CURRENT_CALL.get()
        return current.key if current is not None else None

    @property
    def deadline(self) -> float | None:
        """When the current call's caller gives up, on ``host.clock()``; None when it does not."""
        current = CURRENT_CALL.get()
        return current.expires if current is not None else None


class Actor:
    """The unit of concurrency: state that only its own endpoints touch.

    Example::

        class Counter(Actor):
            def __init__(self, start: int = 0) -> None:
                self.total = start

            @endpoint
            async def add(self, n: int) -> int:
                self.total += n
                return self.total
    """

    concurrency: ClassVar[int] = 1
    """How many calls run at the same time; 0 is no bound."""

    process_role: ClassVar[str] = "worker"
    """The role of the process that an actor gets of its own. It decides which keys that process holds, and whom it may call."""

    ready_within: ClassVar[float] = 30.0
    """Seconds that a process of its own may take until ``on_start`` has returned."""

    own_thread: ClassVar[bool] = False
    """Whether plain functions run on one thread that is this actor's alone, in their order; else on the process's worker threads."""

    context: ActorContext

    async def on_start(self) -> None:
        """Runs before the first call."""

    async def on_stop(self) -> None:
        """Runs after the last call, with at most 5 s."""
