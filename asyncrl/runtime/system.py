"""The actors of one process, and its connections to all others."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from asyncrl.errors import ActorDied
from asyncrl.runtime.actor import Actor, ActorContext
from asyncrl.runtime.children import Children, child_spec
from asyncrl.runtime.connections import Connections
from asyncrl.runtime.curve import CONTROLLER, Keyring
from asyncrl.runtime.deadlines import Deadlines
from asyncrl.runtime.directory import DIRECTORY, Directory
from asyncrl.runtime.events import EventWriter
from asyncrl.runtime.host import Host, RealHost
from asyncrl.runtime.inspector import INSPECTOR, Inspector
from asyncrl.runtime.liveness import Liveness
from asyncrl.runtime.mailbox import Mailbox, started
from asyncrl.runtime.memory import MemoryNetwork, MemoryTransport
from asyncrl.runtime.messages import ActorAddress, check_name
from asyncrl.runtime.neighbours import Neighbours
from asyncrl.runtime.observation import Observation
from asyncrl.runtime.outgoing import Outgoing
from asyncrl.runtime.own_supervisor import OwnSupervisor
from asyncrl.runtime.records import Stats
from asyncrl.runtime.ref import ActorRef
from asyncrl.runtime.security import TOKEN_BYTES, Identity, ipc_endpoint
from asyncrl.runtime.shared_memory import BUDGET, SharedMemory
from asyncrl.runtime.sharing_transport import sharing
from asyncrl.runtime.site import CREDIT, Site
from asyncrl.runtime.sockets import HANDSHAKE_SECONDS
from asyncrl.runtime.supervisor_messages import Membership
from asyncrl.runtime.tasks import to_its_end
from asyncrl.runtime.trace import Traces
from asyncrl.runtime.transport import Transport
from asyncrl.runtime.waits import WaitRegistry
from asyncrl.runtime.watching import REPORTING, Watching
from asyncrl.runtime.zeromq import ZeroMQTransport

if TYPE_CHECKING:
    from asyncrl.runtime.supervisor_client import SupervisorClient

A = TypeVar("A", bound=Actor)

logger = logging.getLogger(__name__)

NEW = "new"
"""As ``process``: a fresh one, named after the actor."""


class ActorSystem:
    """Hosts actors and hands out references. Built on a running loop by ``local``, ``start`` or ``bind``; an async context manager.

    Attributes: ``process`` (its name), ``endpoint`` (as bound), ``waits`` (every wait in progress), ``host``, ``liveness``,
    ``children`` (which tells of their deaths and restarts), ``shared_memory`` (in which large buffers travel on this host),
    ``events`` (its event file, or None), ``observation``, and ``on_actor_failure``, which is told when a background function raises.
    """

    def __init__(
        self,
        identity: Identity,
        host: Host,
        transport: Transport,
        liveness: Liveness | None = None,
        credit: int = CREDIT,
        events: EventWriter | None = None,
        shared_memory: int = BUDGET,
    ) -> None:
        self.shared_memory = SharedMemory(host, shared_memory)
        transport = sharing(transport, self.shared_memory)
        self.process, self.host, self.endpoint = identity.process, host, transport.endpoint
        self.liveness = liveness or Liveness()
        self.waits = WaitRegistry(host)
        self.deadlines = Deadlines(asyncio.get_running_loop())
        self.on_actor_failure: Callable[[str, BaseException], None] | None = None
        self._site = Site(identity, host, self.waits, credit=credit, events=events)
        self.meters, self.events = self._site.meters, events
        self.trace = Traces(identity.process, identity.generation).current
        self._connections = Connections(self._site, self.liveness, self._way)
        self._neighbours = Neighbours(self._connections)
        self.children = Children(identity.process, self._connections, self.waits)
        self._connections.informed = lambda: self.children.supervised or self._neighbours.informed
        self._transport = transport
        # A system that was made without sockets gets them with its first child.
        self._wire: Transport | None = None
        # Calls to this process itself take the same path as all others, without a socket.
        self._inside = transport if isinstance(transport, MemoryTransport) else MemoryTransport(transport.endpoint)
        # Another system may have had this name and generation: its numbers are remembered elsewhere with their answers.
        self._operations = itertools.count(1 + int.from_bytes(host.entropy(6), "big"))
        self._collectives: dict[tuple[tuple[str, str], ...], int] = {}
        self._starting: dict[str, None] = {}
        self._closing = False
        self.observation = Observation(self._site, self._connections, lambda address: self.ref(address, Inspector))
        self.observation.by_signal = self.children.stacks
        self._add(INSPECTOR, Inspector(self.observation.stacks, self.stats))
        transport.listen(self._connections.accept)
        if self._inside is not transport:
            self._inside.listen(self._connections.accept)

    @classmethod
    def local(cls, host: Host | None = None, process: str = "main", network: MemoryNetwork | None = None, role: str = CONTROLLER) -> Self:
        """A system without sockets; it reaches itself and the systems that share its ``network``.

        With its first actor in a process of its own it gets a supervisor and a socket, as one that was made by ``start``.
        """
        host = host or RealHost()
        token = b"" if network is not None else host.entropy(TOKEN_BYTES)
        return cls(Identity(process, token=token, role=role), host, MemoryTransport(f"memory://{process}", network))

    @classmethod
    def start(
        cls,
        process: str = "main",
        *,
        host: Host | None = None,
        log_folder: str = "",
        env_allow: Sequence[str] = (),
        liveness: Liveness | None = None,
    ) -> Self:
        """A system with a supervisor of its own, on a socket in a private folder; ``close`` ends all of it.

        The output of each child goes to a file in ``log_folder``, by default one that does not outlive the system. Of this
        process's environment the children see its import path, a few names such as PATH and HOME, and ``env_allow``.
        """
        host = host or RealHost()
        own = OwnSupervisor(host, log_folder, env_allow)
        try:
            endpoint, token = ipc_endpoint(own.folder, process), own.client.token
            system = cls.bind(process, endpoint, host=host, attempt=host.entropy(8).hex(), token=token, liveness=liveness)
        except BaseException:
            own.abandon()
            raise
        system.attach(system.children.own(own))
        return system

    @classmethod
    def bind(
        cls,
        process: str,
        endpoint: str,
        *,
        host: Host | None = None,
        attempt: str = "",
        generation: int = 0,
        token: bytes = b"",
        role: str = "",
        keys: Keyring | None = None,
        handshake_seconds: float = HANDSHAKE_SECONDS,
        liveness: Liveness | None = None,
        events: EventWriter | None = None,
        watching: Watching | None = REPORTING,
        shared_memory: int = BUDGET,
    ) -> Self:
        """A system that listens at "ipc:///path.sock", "tcp://127.0.0.1:*" or, in a range, "tcp://127.0.0.1:29600-29700".

        With ``keys`` its tcp connections are encrypted, and ``token`` and ``role`` are theirs; without them it listens on ipc and
        on the loopback alone, and ``role`` ("controller" unless given) is what it says of itself. A connection that has not
        finished its handshake after ``handshake_seconds`` is dropped, one that is silent when ``liveness`` says so.

        What happens in it goes into ``events``, which is closed with it. A thread watches its event loop as ``watching`` says,
        None for no such thread. Large buffers travel on this host in up to ``shared_memory`` bytes of recycled memory, 0 for none.

        Raises ConfigError for an endpoint that is not allowed and for a range without a free port, WireError for a name that is
        too long, zmq.ZMQError when it cannot bind.
        """
        role, token = (keys.role, token or keys.token) if keys is not None else (role or CONTROLLER, token)
        identity = Identity(process, attempt, generation, token, role, keys)
        transport = ZeroMQTransport(endpoint, keys, liveness, handshake_seconds)
        system = cls(identity, host or RealHost(), transport, liveness, events=events, shared_memory=shared_memory)
        if watching is not None:
            system.observation.watch(watching, system.liveness.stalled_after)
        transport.on_refusal = lambda reason: system._site.note_refusal("", reason)
        return system

    @property
    def refusals(self) -> int:
        """How often a caller was not let in: a wrong key or token, another version, an earlier life, garbage."""
        return self._site.refusals

    def stats(self) -> Stats:
        """Counters and latencies of each endpoint since the start, queues at this moment. Any thread."""
        return self.observation.stats()

    async def stacks_of(self, process: str) -> str:
        """Where the threads and tasks of a process are: this one, one that it talks to, or a child of its supervisor, also one
        that hangs. Raises ActorError for any other that does not answer."""
        return await self.observation.stacks_of(process)

    def _way(self, address: ActorAddress) -> tuple[Transport, ActorAddress]:
        if address.process == self.process and address.endpoint == self.endpoint:
            return self._inside, msgspec.structs.replace(address, endpoint=self._inside.endpoint)
        if self._wire is not None and not address.endpoint.startswith("memory://"):
            return self._wire, address
        return self._transport, address

    async def spawn(self, cls: type[A], *args: Any, name: str, process: str | None = None, restarts: int = 0, **kwargs: Any) -> ActorRef[A]:
        """Starts an actor: in this process with the very objects given, or in a child process of the name ``process``.

        "new" is a process named after the actor. One that ends unasked is started again, with the same arguments, at most
        ``restarts`` times within 60 s; references stay valid, calls in flight fail with ActorDied, later ones wait.

        Raises ValueError for a name that is taken, WireError for one that is too long and for arguments that cannot travel to
        a child, ActorDied for a child that did not become ready (with its last output lines), and whatever the constructor or
        ``on_start`` of a local actor raises.
        """
        check_name("the name of an actor", name)
        if process is not None:
            spec = child_spec(cls, args, kwargs, name, name if process == NEW else process, restarts)
            if not self.children.possible:
                self._supervise()
            return self.ref(await self.children.spawn(spec), cls)
        if restarts:
            raise ValueError(f"{name!r} is to be restarted, which takes a process of its own")
        if name in self._site.mailboxes or name in self._starting:
            raise ValueError(f"{self.process} already has an actor {name!r}")
        self._starting[name] = None
        try:
            mailbox = await started(cls, ActorContext(name, self, self.host), args, kwargs)
            if self._site.closed:
                await self._stop(mailbox, "the system is closed")
                raise ActorDied(self.process, "the system is closed")
            self._site.mailboxes[name] = mailbox
        finally:
            del self._starting[name]
        return self.ref(self.address(name), cls)

    def _supervise(self) -> None:
        """Gives a system without sockets a supervisor of its own. Raises ValueError for one whose supervisor would be somebody's."""
        if self._inside is not self._transport:
            raise ValueError(f"no supervisor is attached to {self.process}, it cannot start a process")
        own = OwnSupervisor(self.host)
        try:
            wire = ZeroMQTransport(ipc_endpoint(own.folder, self.process), liveness=self.liveness)
        except BaseException:
            own.abandon()
            raise
        wire.on_refusal = lambda reason: self._site.note_refusal("", reason)
        self._wire, self.endpoint = sharing(wire, self.shared_memory), wire.endpoint
        self._wire.listen(self._connections.accept)
        self.attach(self.children.own(own))

    async def stop_process(self, name: str, grace: float = 3.0) -> None:
        """Ends a child for good: SIGTERM, SIGKILL after ``grace`` seconds, no restart. Raises KeyError for one that does not run."""
        await self.children.stop(name, grace)

    def actor_failed(self, name: str, task: str, error: BaseException) -> None:
        """A background function of an actor raised. Logged, and told to ``on_actor_failure``, which ends the process."""
        logger.error("%s of actor %s failed", task, name, exc_info=error)
        if self.on_actor_failure is not None:
            self.on_actor_failure(f"{task} of actor {name} failed: {type(error).__name__}: {error}", error)

    @property
    def identity(self) -> Identity:
        """Who this process is: name, attempt, generation, role."""
        return self._site.identity

    def address(self, name: str) -> ActorAddress:
        """The address of an actor of this process."""
        identity = self._site.identity
        return ActorAddress(self.process, self.endpoint, name, identity.attempt, identity.generation, identity.role)

    def ref(self, address: ActorAddress, cls: type[A]) -> ActorRef[A]:
        """A reference to the actor at ``address``, typed as ``cls``."""
        return ActorRef(self, address)

    async def lookup(self, name: str, cls: type[A], process: str = "") -> ActorRef[A]:
        """The actor of this name, here or in a process that this one's supervisor or directory knows; ``process`` says in which.

        Raises Undeliverable when there is none, or more than one.
        """
        if name in self._site.mailboxes and process in ("", self.process):
            return self.ref(self.address(name), cls)
        return self.ref(await self._neighbours.the_one(name, process), cls)

    def attach(self, supervisor: SupervisorClient) -> None:
        """Children are spawned by this supervisor with the system's token and attempt, and what becomes of them is heard of.

        From now on this process has a directory, which tells the same to its children, and to whoever joins it. With keys
        each child gets those of its role (``Actor.process_role``) alone.
        """
        if DIRECTORY not in self._site.mailboxes:
            mailboxes, known = self._site.mailboxes, self._connections.known
            self._add(DIRECTORY, Directory(known, lambda actor: [self.address(actor)] if actor in mailboxes else []))
        who, budget = self._site.identity, self.shared_memory.budget
        member = Membership(who.attempt, who.token, self.address(DIRECTORY), self.liveness, who.keys, budget)
        self.children.attach(supervisor, member)

    def _add(self, name: str, actor: Actor) -> None:
        """Hosts one of the runtime's own actors."""
        actor.context = ActorContext(name, self, self.host)
        self._site.mailboxes[name] = Mailbox(name, actor)

    @property
    def directory(self) -> ActorAddress | None:
        """Where others may ask about the children of this process; None where no supervisor is attached."""
        return self.address(DIRECTORY) if DIRECTORY in self._site.mailboxes else None

    async def join(self, directory: ActorAddress) -> None:
        """From now on this process hears from a directory which life of a process is the present one.

        Returns when it has told what it knows, or after 1 s: what it tells later is heard all the same.
        """
        self._site.identity.followed = True
        await self._neighbours.join(self.ref(directory, Directory))

    def peer_died(self, process: str, cause: str) -> None:
        """A process is known to be gone: its calls here stop, pending and later calls to it raise ActorDied."""
        self._connections.peer_died(process, cause)

    def outgoing(self, address: ActorAddress) -> Outgoing | None:
        """The connection to the process of an address; None while it is restarted. Raises ActorDied when it is known to be gone."""
        return self._connections.outgoing(address)

    async def reach(self, address: ActorAddress) -> Outgoing:
        """The connection to the process of an address, once that is there. The caller bounds it."""
        return await self._connections.reach(address)

    def operation(self) -> int:
        """A number that no other idempotent call has that was made under this process's name."""
        return next(self._operations)

    def collective_number(self, members: tuple[ActorAddress, ...]) -> int:
        """The next sequence number of these members."""
        names = tuple((member.process, member.actor) for member in members)
        number = self._collectives.get(names, 0)
        self._collectives[names] = number + 1
        return number

    def farewell(self, cause: str) -> None:
        """Ends every call here with the cause for which this process is about to exit; no actor is stopped.

        The words leave on the transport's thread: give it a moment before the exit.
        """
        self._connections.farewell(cause)

    async def close(self, cause: str = "closed") -> None:
        """Stops the children of its own supervisor, then the actors in reverse order of their start; answers every waiter
        here and elsewhere, frees all sockets. While it closes, a second call, perhaps of an ``on_stop``, returns at once."""
        if self._closing or self._site.copied:
            return
        self._closing = True
        # A caller that is cancelled must not leave half a system.
        await to_its_end(lambda: self._close(cause))

    async def _close(self, cause: str) -> None:
        try:
            await self.children.close()
            self._site.closed = True
            for mailbox in reversed(list(self._site.mailboxes.values())):
                await self._stop(mailbox, cause)
        finally:
            self._site.closed = True
            self._connections.close(cause)
            await self._neighbours.close()
            self.waits.close()
            self.deadlines.close()
            for transport in dict.fromkeys([self._inside, self._wire or self._transport, self._transport]):
                await transport.close()
            await self.shared_memory.close()
            self.observation.close()

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
