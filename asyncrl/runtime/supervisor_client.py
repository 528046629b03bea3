"""The client's side of the supervisor process: start it, spawn through it, hear of deaths and restarts, stop it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Self, TypeVarTuple

from asyncrl.errors import ActorDied, WireError
from asyncrl.runtime.control_stream import ControlStream
from asyncrl.runtime.forks import beware_of_forks
from asyncrl.runtime.host import (
    ControlSocket,
    Host,
    Launched,
    RealHost,
    own_pid,
    remove_folder,
    signal_group,
    tail_of,
)
from asyncrl.runtime.messages import ActorAddress
from asyncrl.runtime.security import make_token
from asyncrl.runtime.stacks import ask_by_signal
from asyncrl.runtime.supervisor_launch import launch_supervisor
from asyncrl.runtime.supervisor_messages import (
    Died,
    Membership,
    NotReady,
    ProcessDeath,
    ProcessSpec,
    Ready,
    Replace,
    Restarted,
    Settings,
    Spawn,
    Started,
    Stop,
    StopChild,
    Stopped,
    ToClient,
    framed,
)
from asyncrl.runtime.watching import Watching
from asyncrl.runtime.whereabouts import KnownProcesses, State, Whereabouts, up

Ts = TypeVarTuple("Ts")
OnDeath = Callable[[ProcessDeath], None]
OnRestart = Callable[[Restarted], None]
Informed = Callable[[Whereabouts], None]


class SupervisorClient:
    """Owns one supervisor process. Its ``token`` is for systems that want to reach the children."""

    def __init__(
        self, process: Launched, control: ControlSocket, folder: str, log: str, attempt: str, token: bytes, name: str = "supervisor"
    ) -> None:
        self._process, self._control = process, ControlStream(control)
        self._folder, self._log = folder, log
        self.pid, self.name = process.pid, name
        self.token = token
        self._alone = Membership(attempt, token)
        self._reports: deque[ToClient] = deque()
        self._babbled = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_death: OnDeath | None = None
        self._on_restart: OnRestart | None = None
        self._adopted: list[tuple[Membership, Informed]] = []
        self._starting: dict[str, asyncio.Future[ActorAddress]] = {}
        self._ending: dict[str, asyncio.Future[str]] = {}
        self._children = KnownProcesses()
        self._restarts: dict[str, int] = {}
        self._pids: dict[str, int] = {}
        self._stopping = self._copied = False
        self._gone = asyncio.Event()
        beware_of_forks(self)

    def forked(self) -> None:
        """This process is a copy: it orders nothing, ends nothing, and does not hold the supervisor's lifeline."""
        self._copied = True
        self._control.close()

    @property
    def _member(self) -> Membership:
        """What children are born with: the system decides that attached last, of those that have not left."""
        return self._adopted[-1][0] if self._adopted else self._alone

    @property
    def attempt(self) -> str:
        """The attempt that children are born into."""
        return self._member.attempt

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
        ports: str = "",
        name: str = "supervisor",
        environment: Mapping[str, str] | None = None,
        watching: Watching | None = None,
        temporary_logs: bool = False,
    ) -> Self:
        """Starts the supervisor. Needs no event loop; call it before torch is imported.

        ``folder`` is private and holds the sockets; the supervisor removes it when it leaves. With an ``interface`` the
        children bind to a free tcp port of that address instead, of the range ``ports`` ("29600-29700") where one is given.
        ``name`` is also that of its log. With ``temporary_logs`` it removes ``log_folder`` too, should this process end before it.
        Of this process's environment only ``env_allow`` (and PATH, HOME, TMPDIR, LANG, LC_ALL) reaches the children, and
        what ``environment`` adds.
        """
        watching = watching or Watching(stacks=log_folder)
        settings = Settings(own_pid(), folder, log_folder, list(env_allow), interface, ports, watching, temporary_logs)
        process, control = launch_supervisor(settings, name, environment or {})
        return cls(process, control, folder, f"{log_folder}/{name}.log", attempt, token or make_token(host), name)

    def attach_loop(self, on_death: OnDeath, on_restart: OnRestart | None = None) -> None:
        """Starts to listen on the running loop.

        ``on_death`` hears of each child's end, also of one that is restarted, and of the supervisor's own; ``on_restart`` of
        each child that serves again.
        """
        self._on_death, self._on_restart = on_death, on_restart
        self._loop = asyncio.get_running_loop()
        self._control.listen(self._loop, self._hear)
        self._loop.add_reader(self._process.pidfd, self._supervisor_left)

    def adopt(self, member: Membership, informed: Informed) -> None:
        """A system attaches: children are born as ``member`` says, and it is told what becomes of each of them."""
        self.token = member.token
        self._adopted.append((member, informed))
        for known in self._children.all():
            informed(known)

    def forget(self, informed: Informed) -> None:
        """A system leaves."""
        self._adopted = [each for each in self._adopted if each[1] != informed]

    @property
    def gone(self) -> bool:
        """Whether the supervisor has left, or is not this process's."""
        return self._gone.is_set() or self._copied

    def watches(self, process: str) -> bool:
        """Whether the end of ``process`` will be reported here."""
        known = self._children.get(process)
        return known is not None and known.state != "dead" and not self.gone

    def stacks(self, process: str) -> str:
        """Where the threads of a child are, or of the supervisor: it is asked by signal and answers in its log, whatever it hangs in.

        "" for a name that is none. Blocks for up to two seconds. Any thread.
        """
        pid = self.pid if process == self.name else self._pids.get(process)
        if pid is None:
            return ""
        return ask_by_signal(RealHost(), pid, f"{self._log.rpartition('/')[0]}/{process}.log", f"asyncrl:{process}")

    def pid_of(self, process: str) -> int:
        """The pid of a child that runs, or is being started. Raises KeyError for one that is not known."""
        return self._pids[process]

    async def spawn(self, spec: ProcessSpec) -> ActorAddress:
        """Starts a child and waits until it is ready. Raises ActorDied with its last output lines when it does not get there.

        WireError for a specification of more than LONGEST_ORDER bytes, ValueError for the supervisor's own name.
        """
        if spec.name == self.name:
            raise ValueError(f"{spec.name} is the name of the supervisor, a child needs another")
        if self._loop is None:
            raise RuntimeError("attach_loop comes before spawn")
        if spec.name in self._ending:
            with contextlib.suppress(KeyError):
                await self.stop_child(spec.name)
        if self.gone or self._stopping:
            raise ActorDied(self.name, "it has left, no child can be started")
        if spec.name in self._starting:
            raise ActorDied(spec.name, "a process of this name is being started")
        if self.watches(spec.name):
            raise ActorDied(spec.name, "the name is taken")
        try:
            order = framed(Spawn(spec, self._member.of_role(spec.role)))
        except WireError as error:
            raise WireError(f"{spec.name[:64]}: {error}; pass large arguments in a call") from None
        ready: asyncio.Future[ActorAddress] = self._loop.create_future()
        self._starting[spec.name] = ready
        self._restarts[spec.name] = spec.restarts
        self._control.send(order)
        try:
            # The supervisor's own deadline comes first; this one is for a supervisor that hangs.
            async with asyncio.timeout(spec.ready_within + 10.0):
                return await ready
        except asyncio.CancelledError:
            if not self.gone:
                self._order_stop(spec.name, 0.0)
            raise
        except TimeoutError:
            raise ActorDied(spec.name, f"the supervisor did not answer within {spec.ready_within + 10.0:g} s") from None
        finally:
            self._starting.pop(spec.name, None)

    async def stop_child(self, name: str, grace: float = 3.0) -> str:
        """Ends one child for good: SIGTERM to its group, SIGKILL after ``grace`` seconds. Returns how it ended.

        No death is reported and no restart follows. Raises KeyError for a child that does not run, ActorDied when the
        supervisor has left.
        """
        if self._loop is None:
            raise RuntimeError("attach_loop comes before stop_child")
        if self.gone:
            raise ActorDied(self.name, "it has left, and its children with it")
        ending = self._order_stop(name, grace)
        try:
            async with asyncio.timeout(grace + 10.0):
                exit = await asyncio.shield(ending)
        except TimeoutError:
            raise ActorDied(self.name, f"it did not stop {name} within {grace + 10.0:g} s") from None
        if not exit:
            raise KeyError(name)
        return exit

    def _order_stop(self, name: str, grace: float) -> asyncio.Future[str]:
        """The end of a child, "" for one that does not run; ordered once."""
        ending = self._ending.get(name)
        if ending is None:
            ending = self._ending[name] = asyncio.get_running_loop().create_future()
            self._control.send(framed(StopChild(name, grace)))
        return ending

    def replaceable(self, process: str) -> bool:
        """Whether a life of this child may be followed by another."""
        return self._restarts.get(process, 0) > 0 and self.watches(process)

    def replace(self, process: str, generation: int, cause: str) -> None:
        """This life of a child does not answer: it is killed, and restarted if its budget allows. Harmless when it has ended."""
        if not self.gone:
            self._control.send(framed(Replace(process, generation, cause)))

    def _hear(self) -> bool:
        """Reads once; False when there is nothing, or nothing more to come. The supervisor's end is its pidfd's to report."""
        try:
            reports, more = self._control.read()
        except WireError as error:
            self._babbled, reports, more = f"it said what cannot be read ({error}): ", [], False
            self._process.signal_group(signal.SIGKILL)
        self._reports += reports
        self._act_on_reports()
        return more

    def _act_on_reports(self) -> None:
        """A callback that ends the program, as ``sys.exit`` does, leaves the other reports to those who wait for them while it ends."""
        try:
            while self._reports:
                self._act(self._reports.popleft())
        finally:
            if self._reports and self._loop is not None:
                self._loop.call_soon(self._act_on_reports)

    def _guarded(self, callback: Callable[[*Ts], None], *args: *Ts) -> None:
        """Calls what is not ours: its error goes to the loop's exception handler, and costs nobody else a report."""
        try:
            callback(*args)
        except (Exception, asyncio.CancelledError) as error:
            assert self._loop is not None
            self._loop.call_exception_handler({"message": f"a callback of {self.name} raised", "exception": error})

    def _act(self, message: ToClient) -> None:
        if isinstance(message, Ready):
            self._pids[message.name] = message.pid
            self._inform(up(message.address, self._restarts.get(message.name, 0) > 0))
            starting = self._starting.get(message.name)
            if starting is not None and not starting.done():
                starting.set_result(message.address)
        elif isinstance(message, Started):
            self._pids[message.name] = message.pid
        elif isinstance(message, NotReady):
            if message.pid and self._pids.get(message.name) == message.pid:
                del self._pids[message.name]
            tail = "\n".join(message.last_lines)
            self._fail_start(message.name, f"{message.cause}\n{tail}" if tail else message.cause)
        elif isinstance(message, Restarted):
            self._pids[message.name] = message.pid
            self._inform(up(message.address, True))
            if self._on_restart is not None:
                self._guarded(self._on_restart, message)
        elif isinstance(message, Died):
            self._died(message.death)
        else:
            self._stopped(message)

    def _fail_start(self, name: str, cause: str) -> None:
        starting = self._starting.get(name)
        if starting is not None and not starting.done():
            starting.set_exception(ActorDied(name, cause))

    def _died(self, death: ProcessDeath) -> None:
        self._pids.pop(death.name, None)
        state: State = "restarting" if death.restarting else "dead"
        self._inform(Whereabouts(death.name, death.generation, state, None, death.cause, death.restarting))
        self._tell(death)

    def _stopped(self, message: Stopped) -> None:
        self._pids.pop(message.name, None)
        if message.exit:
            self._inform(Whereabouts(message.name, message.generation, "dead", None, "it was stopped"))
        ending = self._ending.pop(message.name, None)
        if ending is not None and not ending.done():
            ending.set_result(message.exit)

    def _inform(self, news: Whereabouts) -> None:
        self._children.learn(news)
        for _, informed in list(self._adopted):
            self._guarded(informed, news)

    def _tell(self, death: ProcessDeath) -> None:
        if self._on_death is not None:
            self._guarded(self._on_death, death)

    def _supervisor_left(self) -> None:
        while self._hear():
            # Deaths that it reported before it ended.
            pass
        ending = self._over()
        if not self._stopping:
            remove_folder(self._folder)
            self._tell(ProcessDeath(self.name, self.pid, ending, tail_of(self._log)))

    def _over(self) -> str:
        """Takes leave of a supervisor that ends: how it did. Nobody goes on waiting for it, and nothing of its children is left."""
        if self._loop is not None:
            self._loop.remove_reader(self._process.pidfd)
        self._control.disconnect()
        ending = self._babbled + self._process.reap()
        self._gone.set()
        self._sweep()
        cause = f"its supervisor ended: {ending}"
        for name in list(self._starting):
            self._fail_start(name, cause)
        for name in list(self._ending):
            self._stopped(Stopped(name, -1, ending))
        for child in self._children.all():
            if child.state != "dead":
                self._inform(Whereabouts(child.process, child.generation, "dead", None, "it was stopped" if self._stopping else cause))
        return ending

    def _sweep(self) -> None:
        """Children die with their supervisor by their parent-death signal; what they started themselves does not, but is of their group."""
        for pid in self._pids.values():
            signal_group(pid, signal.SIGKILL)
        self._pids.clear()

    async def stop(self, grace: float = 3.0) -> None:
        """SIGTERM to all groups, SIGKILL after ``grace`` seconds; returns when the supervisor has left. Harmless twice, and in a fork."""
        if self.gone:
            return
        if self._loop is None:
            self.kill()
            return
        if not self._stopping:
            self._stopping = True
            self._control.send(framed(Stop(grace)))
        try:
            async with asyncio.timeout(grace + 5.0):
                await self._gone.wait()
        except TimeoutError:
            self.kill()
        remove_folder(self._folder)

    def kill(self) -> None:
        """Kills it at once, and its children with it. Harmless when it has left."""
        if self.gone:
            return
        self._stopping = True
        self._over()
        remove_folder(self._folder)
