"""The client's side of the supervisor process: start it, spawn through it, hear of deaths, stop it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from typing import Self

import msgspec

from asyncrl.errors import ActorDied
from asyncrl.runtime.host import (
    ControlSocket,
    Host,
    Launched,
    launch_session,
    own_pid,
    python_module,
    remove_folder,
    sealed_bytes,
    socket_pair,
    tail_of,
)
from asyncrl.runtime.messages import ActorAddress
from asyncrl.runtime.security import make_token
from asyncrl.runtime.supervisor_messages import (
    TO_CLIENT,
    Died,
    FrameReader,
    NotReady,
    ProcessDeath,
    ProcessSpec,
    Ready,
    Settings,
    Spawn,
    Stop,
    framed,
)

DECODER: msgspec.msgpack.Decoder[Ready | NotReady | Died] = msgspec.msgpack.Decoder(TO_CLIENT)

OnDeath = Callable[[ProcessDeath], None]
PeerDied = Callable[[str, str], None]

ALWAYS_ALLOWED = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL")


class SupervisorClient:
    """Owns one supervisor process. Its ``token`` is for systems that want to reach the children."""

    def __init__(
        self, process: Launched, control: ControlSocket, folder: str, log: str, attempt: str, token: bytes, name: str = "supervisor"
    ) -> None:
        self._process, self._control = process, control
        self._folder, self._log = folder, log
        self.pid, self.name = process.pid, name
        self.attempt, self.token = attempt, token
        self._reader = FrameReader()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_death: OnDeath | None = None
        self._peers: list[PeerDied] = []
        self._starting: dict[str, asyncio.Future[ActorAddress]] = {}
        self._pids: dict[str, int] = {}
        self._outbox = bytearray()
        self._stopping = False
        self._gone = asyncio.Event()

    @classmethod
    def start(
        cls,
        *,
        host: Host,
        folder: str,
        log_folder: str,
        attempt: str,
        env_allow: Sequence[str],
        token: bytes = b"",
        interface: str = "",
        name: str = "supervisor",
    ) -> Self:
        """Starts the supervisor. Needs no event loop; call it before torch is imported.

        ``folder`` is private and holds the sockets; the supervisor removes it when it leaves. With an ``interface`` the
        children bind to a free tcp port of that address instead. ``name`` is also that of its log.
        Of this process's environment only ``env_allow`` (and PATH, HOME, TMPDIR, LANG, LC_ALL) reaches the children.
        """
        near, far = socket_pair()
        allowed = [*ALWAYS_ALLOWED, *env_allow]
        papers = sealed_bytes(msgspec.msgpack.encode(Settings(own_pid(), folder, log_folder, allowed, interface)))
        environment = {key: os.environ[key] for key in allowed if key in os.environ}
        argv = python_module("asyncrl.runtime.supervisor", f"asyncrl:{name}", str(papers), str(far.fileno()), str(own_pid()))
        try:
            with host.open_append(f"{log_folder}/{name}.log") as log:
                process = launch_session(argv, environment, (papers, far.fileno()), log)
        except OSError:
            near.close()
            raise
        finally:
            os.close(papers)
            far.close()
        near.setblocking(False)
        return cls(process, near, folder, f"{log_folder}/{name}.log", attempt, token or make_token(host), name)

    def attach_loop(self, on_death: OnDeath) -> None:
        """Starts to listen on the running loop. ``on_death`` hears of each child's end, and of the supervisor's own."""
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._control.fileno(), self._hear)
        self._loop.add_reader(self._process.pidfd, self._supervisor_left)

    def adopt(self, attempt: str, token: bytes, peer_died: PeerDied) -> None:
        """A system attaches: children get its attempt and token, it hears of their deaths."""
        self.attempt, self.token = attempt, token
        self._peers.append(peer_died)

    def forget(self, peer_died: PeerDied) -> None:
        """A system leaves."""
        if peer_died in self._peers:
            self._peers.remove(peer_died)

    def watches(self, process: str) -> bool:
        """Whether the end of ``process`` will be reported here."""
        return process in self._pids and not self._gone.is_set()

    def pid_of(self, process: str) -> int:
        """The pid of a running child. Raises KeyError for one that is not known."""
        return self._pids[process]

    async def spawn(self, spec: ProcessSpec) -> ActorAddress:
        """Starts a child and waits until it is ready. Raises ActorDied with its last output lines when it does not get there."""
        if self._loop is None:
            raise RuntimeError("attach_loop comes before spawn")
        if self._gone.is_set() or self._stopping:
            raise ActorDied(self.name, "it has left, no child can be started")
        if spec.name in self._starting:
            raise ActorDied(spec.name, "a process of this name is being started")
        ready: asyncio.Future[ActorAddress] = self._loop.create_future()
        self._starting[spec.name] = ready
        self._send(Spawn(spec, self.attempt, self.token))
        try:
            # The supervisor's own deadline comes first; this one is for a supervisor that hangs.
            async with asyncio.timeout(spec.ready_within + 10.0):
                return await ready
        except TimeoutError:
            raise ActorDied(spec.name, f"the supervisor did not answer within {spec.ready_within + 10.0:g} s") from None
        finally:
            self._starting.pop(spec.name, None)

    def _send(self, message: msgspec.Struct) -> None:
        self._outbox += framed(message)
        self._flush()

    def _flush(self) -> None:
        assert self._loop is not None
        try:
            while self._outbox:
                del self._outbox[: self._control.send(self._outbox)]
        except BlockingIOError:
            self._loop.add_writer(self._control.fileno(), self._flush)
            return
        except OSError:
            self._outbox.clear()
        self._loop.remove_writer(self._control.fileno())

    def _hear(self) -> bool:
        """Reads once; False when there is nothing, or nothing more to come. The supervisor's end is its pidfd's to report."""
        try:
            data = self._control.recv(65536)
        except BlockingIOError:
            return False
        except ConnectionError:
            data = b""
        for frame in self._reader.feed(data):
            self._act(DECODER.decode(frame))
        if not data and self._loop is not None:
            self._loop.remove_reader(self._control.fileno())
        return bool(data)

    def _act(self, message: Ready | NotReady | Died) -> None:
        if isinstance(message, Died):
            death = message.death
            self._pids.pop(death.name, None)
            self._report(death)
            return
        starting = self._starting.get(message.name)
        if isinstance(message, Ready):
            self._pids[message.name] = message.pid
            if starting is not None and not starting.done():
                starting.set_result(message.address)
        elif starting is not None and not starting.done():
            tail = "\n".join(message.last_lines)
            starting.set_exception(ActorDied(message.name, f"{message.cause}\n{tail}" if tail else message.cause))

    def _report(self, death: ProcessDeath) -> None:
        for peer_died in list(self._peers):
            peer_died(death.name, death.exit)
        if self._on_death is not None:
            self._on_death(death)

    def _supervisor_left(self) -> None:
        while self._hear():
            # Deaths that it reported before it ended.
            pass
        self._disconnect()
        ending = self._process.reap()
        self._gone.set()
        for name, starting in self._starting.items():
            if not starting.done():
                starting.set_exception(ActorDied(name, f"the supervisor ended: {ending}"))
        children = list(self._pids)
        self._pids.clear()
        if self._stopping:
            return
        remove_folder(self._folder)
        for name in children:
            for peer_died in list(self._peers):
                peer_died(name, f"its supervisor ended: {ending}")
        self._report(ProcessDeath(self.name, self.pid, ending, tail_of(self._log)))

    def _disconnect(self) -> None:
        if self._loop is not None and self._control.fileno() >= 0:
            self._loop.remove_reader(self._control.fileno())
            self._loop.remove_writer(self._control.fileno())
            self._loop.remove_reader(self._process.pidfd)
        self._control.close()

    async def stop(self, grace: float = 3.0) -> None:
        """SIGTERM to all groups, SIGKILL after ``grace`` seconds; returns when the supervisor has left. Harmless twice."""
        if self._gone.is_set():
            return
        if self._loop is None:
            self._kill()
            return
        if not self._stopping:
            self._stopping = True
            self._send(Stop(grace))
        try:
            async with asyncio.timeout(grace + 5.0):
                await self._gone.wait()
        except TimeoutError:
            self._kill()
        remove_folder(self._folder)

    def _kill(self) -> None:
        """The children die with it by their parent-death signal."""
        self._disconnect()
        self._process.signal_group(signal.SIGKILL)
        self._process.reap()
        self._gone.set()
        remove_folder(self._folder)
