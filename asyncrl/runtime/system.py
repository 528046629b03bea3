"""The actors of one process, and its connections to all others."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from asyncrl.errors import ActorDied, WireError
from asyncrl.runtime.actor import Actor, ActorContext
from asyncrl.runtime.deadlines import Deadlines
from asyncrl.runtime.host import Host, RealHost
from asyncrl.runtime.incoming import Incoming
from asyncrl.runtime.mailbox import Mailbox
from asyncrl.runtime.memory import MemoryNetwork, MemoryTransport
from asyncrl.runtime.messages import ActorAddress
from asyncrl.runtime.outgoing import Outgoing
from asyncrl.runtime.plan import constructor_of
from asyncrl.runtime.ref import ActorRef
from asyncrl.runtime.security import Identity
from asyncrl.runtime.site import Site
from asyncrl.runtime.supervisor_messages import ProcessSpec
from asyncrl.runtime.transport import Link, Receiver, Transport
from asyncrl.runtime.waits import WaitRegistry
from asyncrl.runtime.zeromq import ZeroMQTransport

if TYPE_CHECKING:
    from asyncrl.runtime.supervisor_client import SupervisorClient

A = TypeVar("A", bound=Actor)

logger = logging.getLogger(__name__)

NOTICE_SECONDS = 1.0
"""How long a broken connection waits for the supervisor's word on why the process ended."""


class ActorSystem:
    """Hosts actors and hands out references. Built on a running loop by ``local`` or ``bind``; an async context manager.

    Attributes: ``process`` (its name), ``endpoint`` (as bound), ``waits`` (every wait in progress), ``host``, and
    ``on_actor_failure``, which is told when a background function of an actor raises.
    """

    def __init__(self, identity: Identity, host: Host, transport: Transport) -> None:
        self.process, self.host, self.endpoint = identity.process, host, transport.endpoint
        self.waits = WaitRegistry(host)
        self.deadlines = Deadlines(asyncio.get_running_loop())
        self.on_actor_failure: Callable[[str, BaseException], None] | None = None
        self._site = Site(identity, host, self.waits)
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        # Calls to this process itself take the same path as all others, without a socket.
        self._inside = transport if isinstance(transport, MemoryTransport) else MemoryTransport(transport.endpoint)
        self._outgoing: dict[str, Outgoing] = {}
        self._incoming: dict[Incoming, None] = {}
        self._dead: dict[str, str] = {}
        self._operations = itertools.count(1)
        self._collectives: dict[tuple[ActorAddress, ...], int] = {}
        self._supervisor: SupervisorClient | None = None
        self._starting: dict[str, None] = {}
        transport.listen(self._accept)
        if self._inside is not transport:
            self._inside.listen(self._accept)

    @classmethod
    def local(cls, host: Host | None = None, process: str = "main", network: MemoryNetwork | None = None) -> Self:
        """A system without sockets; it reaches itself and the systems that share its ``network``."""
        return cls(Identity(process), host or RealHost(), MemoryTransport(f"memory://{process}", network))

    @classmethod
    def bind(cls, process: str, endpoint: str, *, host: Host, attempt: str = "", generation: int = 0, token: bytes = b"") -> Self:
        """A system that listens at "ipc:///path.sock" or "tcp://127.0.0.1:*". Raises zmq.ZMQError when it cannot bind."""
        return cls(Identity(process, attempt, generation, token), host, ZeroMQTransport(endpoint))

    def _accept(self, link: Link) -> Receiver:
        incoming = Incoming(self._site, link, self._left)
        self._incoming[incoming] = None
        return incoming

    def _left(self, incoming: Incoming) -> None:
        self._incoming.pop(incoming, None)

    async def spawn(self, cls: type[A], *args: Any, name: str, process: str | None = None, **kwargs: Any) -> ActorRef[A]:
        """Starts an actor: in this process with the very objects given, or in a new child of the attached supervisor.

        Raises ValueError for a name that is taken, WireError for arguments that cannot travel to a child, ActorDied for a
        child that did not become ready (with its last output lines), and whatever the constructor or ``on_start`` of a
        local actor raises.
        """
        if process is not None:
            return await self._spawn_child(cls, args, kwargs, name, process)
        if name in self._site.mailboxes or name in self._starting:
            raise ValueError(f"{self.process} already has an actor {name!r}")
        self._starting[name] = None
        try:
            instance = cls.__new__(cls)
            instance.context = ActorContext(name, self, self.host)
            type(instance).__init__(instance, *args, **kwargs)
            mailbox = Mailbox(name, instance)
            await instance.on_start()
            self._site.mailboxes[name] = mailbox
        finally:
            del self._starting[name]
        return self.ref(self.address(name), cls)

    async def _spawn_child(self, cls: type[A], args: tuple[Any, ...], kwargs: dict[str, Any], name: str, process: str) -> ActorRef[A]:
        if self._supervisor is None:
            raise ValueError(f"no supervisor is attached to {self.process}; {name!r} cannot get a process of its own")
        spec = child_spec(cls, args, kwargs, name, process)
        with self.waits.waiting(process, f"start of {cls.__qualname__}"):
            address = await self._supervisor.spawn(spec)
        self._dead.pop(process, None)
        return self.ref(address, cls)

    def actor_failed(self, name: str, task: str, error: BaseException) -> None:
        """A background function of an actor raised. Logged, and told to ``on_actor_failure``, which ends the process."""
        logger.error("%s of actor %s failed", task, name, exc_info=error)
        if self.on_actor_failure is not None:
            self.on_actor_failure(f"{task} of actor {name} failed: {type(error).__name__}: {error}", error)

    def address(self, name: str) -> ActorAddress:
        """The address of an actor of this process."""
        identity = self._site.identity
        return ActorAddress(self.process, self.endpoint, name, identity.attempt, identity.generation)

    def ref(self, address: ActorAddress, cls: type[A]) -> ActorRef[A]:
        """A reference to the actor at ``address``, typed as ``cls``."""
        return ActorRef(self, address)

    def attach(self, supervisor: SupervisorClient) -> None:
        """Children are spawned by this supervisor with the system's token and attempt, and their deaths are heard of."""
        self._supervisor = supervisor
        supervisor.adopt(self._site.identity.attempt, self._site.identity.token, self.peer_died)

    def peer_died(self, process: str, cause: str) -> None:
        """A process is known to be gone: its calls here stop, pending and later calls to it raise ActorDied."""
        self._dead[process] = cause
        for outgoing in [each for each in self._outgoing.values() if each.process == process]:
            self._break(outgoing, cause)
        for incoming in [each for each in self._incoming if each.process == process]:
            incoming.lost(cause)

    def outgoing(self, address: ActorAddress) -> Outgoing:
        """The connection to the process of an address, made on first use. Raises ActorDied when it is known to be gone."""
        found = self._outgoing.get(address.endpoint)
        if found is not None and not found.closed and found.process == address.process:
            return found
        if self._site.closed:
            raise ActorDied(self.process, "the system is closed")
        if address.process in self._dead:
            raise ActorDied(address.process, self._dead[address.process])
        inside = address.endpoint == self.endpoint and address.process == self.process
        made = Outgoing(self._site, address, self._inside if inside else self._transport, self._lost)
        self._outgoing[address.endpoint] = made
        return made

    def _lost(self, outgoing: Outgoing, cause: str) -> None:
        if self._supervisor is not None and self._supervisor.watches(outgoing.process):
            self._loop.call_later(NOTICE_SECONDS, self._break, outgoing, cause)
        else:
            self._break(outgoing, cause)

    def _break(self, outgoing: Outgoing, cause: str) -> None:
        process = outgoing.process
        outgoing.break_off(lambda: ActorDied(process, cause), lost=True)

    def operation(self) -> int:
        """A number that no other idempotent call of this process has."""
        return next(self._operations)

    def collective_number(self, members: tuple[ActorAddress, ...]) -> int:
        """The next sequence number of these members."""
        number = self._collectives.get(members, 0)
        self._collectives[members] = number + 1
        return number

    def farewell(self, cause: str) -> None:
        """Ends every call here with the cause for which this process is about to exit; no actor is stopped.

        The words leave on the transport's thread: give it a moment before the exit.
        """
        for incoming in list(self._incoming):
            incoming.close(cause)

    async def close(self, cause: str = "closed") -> None:
        """Stops the actors in reverse order of their start, answers every waiter here and elsewhere, frees all sockets."""
        if self._site.closed:
            return
        self._site.closed = True
        try:
            for mailbox in reversed(list(self._site.mailboxes.values())):
                await self._stop(mailbox, cause)
        finally:
            for incoming in list(self._incoming):
                incoming.close(cause)
            for outgoing in list(self._outgoing.values()):
                outgoing.leave(cause, lambda: ActorDied(self.process, cause))
            self.waits.close()
            self.deadlines.close()
            if self._inside is not self._transport:
                await self._inside.close()
            await self._transport.close()
            if self._supervisor is not None:
                self._supervisor.forget(self.peer_died)

    async def _stop(self, mailbox: Mailbox, cause: str) -> None:
        try:
            await mailbox.close(cause)
        except Exception:
            # One actor's on_stop must not keep the others from stopping.
            logger.exception("on_stop of %s failed", mailbox.name)

    def instance(self, name: str, cls: type[A]) -> A:
        """The actor object of this process, for whoever hosts it: a debugger, a notebook, a test.

        Raises KeyError for a name that is not here, TypeError when it is no ``cls``.
        """
        found = self._site.mailboxes[name].instance
        if not isinstance(found, cls):
            raise TypeError(f"{name} is a {type(found).__name__}, no {cls.__name__}")
        return found

    async def stop(self, name: str, cause: str = "stopped") -> None:
        """Stops one actor of this process; its callers get ActorDied. Raises KeyError for a name that is not here."""
        mailbox = self._site.mailboxes[name]
        try:
            await mailbox.close(cause)
        finally:
            self._site.mailboxes.pop(name, None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


def child_spec(cls: type[Actor], args: tuple[Any, ...], kwargs: dict[str, Any], name: str, process: str) -> ProcessSpec:
    """What a supervisor needs to start ``cls`` as actor ``name`` of a child. Raises WireError for what cannot travel to it."""
    if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
        raise WireError(f"{cls.__qualname__} of {cls.__module__} cannot be imported by a child; move it to a module")
    data, frames = constructor_of(cls).encode(args, kwargs)
    if frames:
        raise WireError(f"{cls.__qualname__}: buffers cannot be constructor arguments of a child; pass them in a call")
    return ProcessSpec(process, f"{cls.__module__}:{cls.__qualname__}", data, {}, actor_name=name)
