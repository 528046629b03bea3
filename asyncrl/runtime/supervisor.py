"""The supervisor process: starts children, reports their ends, and never leaves one behind.

Run as ``python -m asyncrl.runtime.supervisor``. Single-threaded, a session of its own, no event loop, no torch. Its
control socket is also its lifeline: at end of file it kills every group and leaves.
"""

import logging
import os
import re
import select
import selectors
import signal
import sys

import msgspec

from asyncrl.errors import WireError
from asyncrl.runtime.host import (
    ControlSocket,
    RealHost,
    adopt_socket,
    die_with_parent,
    read_sealed,
    remove_folder,
    show_name,
)
from asyncrl.runtime.restarts import Ending
from asyncrl.runtime.security import process_endpoint
from asyncrl.runtime.stacks import answer_signal
from asyncrl.runtime.supervisor_child import Child, Life
from asyncrl.runtime.supervisor_client import SupervisorClient
from asyncrl.runtime.supervisor_messages import (
    LONGEST_REPORT,
    Died,
    FrameReader,
    NotReady,
    ProcessDeath,
    ProcessSpec,
    Ready,
    Replace,
    Restarted,
    Settings,
    Spawn,
    Started,
    StopChild,
    Stopped,
    ToSupervisor,
    framed,
    order_in,
)

__all__ = ["ProcessDeath", "ProcessSpec", "Supervisor", "SupervisorClient", "main"]

logger = logging.getLogger("asyncrl.supervisor")

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
PARENT_SIGNAL = signal.SIGUSR2
"""Says that the client may be gone, also where a copy of it still holds the lifeline. Not SIGTERM: that is an order to leave."""


class Supervisor:
    """State of the supervisor process. ``run`` returns when it has nothing left to look after."""

    def __init__(self, settings: Settings, control: ControlSocket) -> None:
        self._settings, self._control = settings, control
        self._host = RealHost()
        self._reader = FrameReader()
        self._children: dict[str, Child] = {}
        self._generations: dict[str, int] = {}
        self._selector = selectors.DefaultSelector()
        self._kill_at: float | None = None
        self._stopping = False
        self._outbox = bytearray()

    def run(self, wakeup: int) -> None:
        """Serves until told to stop, until the client is gone, or until a signal to leave arrives on ``wakeup``."""
        self._control.setblocking(False)
        self._selector.register(self._control, selectors.EVENT_READ, self._hear)
        self._selector.register(wakeup, selectors.EVENT_READ, lambda: self._signalled(os.read(wakeup, 64)))
        try:
            while not (self._stopping and not self._children):
                for key, _ in self._selector.select(self._time_left()):
                    key.data()
                self._check_deadlines()
        finally:
            self.kill_all()
            remove_folder(self._settings.folder)
            # A client that lives reads this process's last words first, and removes them itself.
            if self._settings.temporary_logs and self._client_left():
                remove_folder(self._settings.log_folder)

    def _client_left(self) -> bool:
        """Whether nobody holds the other end of the lifeline, also while words of it are unread, or only a copy of the client does."""
        poll = select.poll()
        poll.register(self._control, select.POLLRDHUP)
        return os.getppid() != self._settings.parent or bool(poll.poll(0))

    def _lives(self) -> list[Life]:
        return [child.life for child in self._children.values() if child.life is not None]

    def _time_left(self) -> float | None:
        ends = [life.deadline for life in self._lives() if life.deadline is not None]
        if self._kill_at is not None:
            ends.append(self._kill_at)
        return max(0.0, min(ends) - self._host.clock()) if ends else None

    def _check_deadlines(self) -> None:
        now = self._host.clock()
        for life in self._lives():
            if life.deadline is not None and now >= life.deadline:
                life.deadline = None
                life.kill(signal.SIGKILL, life.overdue)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._signal_all(signal.SIGKILL)

    def _hear(self) -> None:
        if self._outbox:
            self._flush()
        try:
            data = self._control.recv(65536)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            logger.warning("the client is gone")
            self.kill_all()
            return
        for frame in self._reader.feed(data):
            self._obey(order_in(frame))

    def _signalled(self, numbers: bytes) -> None:
        # The kernel sends the parent's signal for each end of a thread that had started this process, too.
        if signal.SIGTERM in numbers or os.getppid() != self._settings.parent:
            self.kill_all()

    def _obey(self, order: ToSupervisor) -> None:
        if isinstance(order, Spawn):
            self._spawn(order)
        elif isinstance(order, StopChild):
            self._stop_child(order)
        elif isinstance(order, Replace):
            self._replace(order)
        else:
            self._stop(order.grace)

    def _spawn(self, order: Spawn) -> None:
        name = order.spec.name
        if self._stopping or name in self._children or not NAME.fullmatch(name):
            taken = "the name is taken" if name in self._children else "a process name has letters, digits, '.', '_', '-'"
            self._tell(NotReady(name, "the supervisor is stopping" if self._stopping else taken, []))
            return
        try:
            endpoint = process_endpoint(self._settings.folder, name, self._settings.interface, self._settings.ports)
            child = Child(order.spec, order.member, endpoint, f"{self._settings.log_folder}/{name}.log")
            self._launch(child)
        except (OSError, ValueError) as error:
            self._tell(NotReady(name, f"cannot be started: {error}", []))
            return
        self._children[name] = child

    def _launch(self, child: Child) -> None:
        """Begins the next life of a child. Raises OSError when no process can be started."""
        generation = self._generations.get(child.spec.name, -1) + 1
        self._generations[child.spec.name] = generation
        life = child.start(self._host, self._settings, os.environ, generation)
        self._tell(Started(child.spec.name, life.process.pid))
        self._selector.register(life.pipe, selectors.EVENT_READ, lambda: self._ready(child, life))
        self._selector.register(life.process.pidfd, selectors.EVENT_READ, lambda: self._ended(child, life))

    def _ready(self, child: Child, life: Life) -> None:
        if life.pipe < 0:
            return
        try:
            address = life.hear(child.spec.name)
        except EOFError:
            # Its end, or its deadline, is reported elsewhere.
            self._close_pipe(life)
            return
        except WireError as error:
            self._close_pipe(life)
            life.kill(signal.SIGKILL, f"what it said when it was ready cannot be believed: {error}")
            return
        if address is None:
            return
        self._close_pipe(life)
        kind = Restarted if child.announced else Ready
        child.announced = True
        self._tell(kind(child.spec.name, life.process.pid, address))

    def _close_pipe(self, life: Life) -> None:
        if life.pipe >= 0:
            self._selector.unregister(life.pipe)
            life.close_pipe()

    def _ended(self, child: Child, life: Life) -> None:
        if child.life is not life:
            return
        # A child that said it is ready and ended at once has both events in one round.
        if not life.failed and not child.stopping:
            self._ready(child, life)
        self._close_pipe(life)
        self._selector.unregister(life.process.pidfd)
        exit, ending = child.reap()
        name, pid = child.spec.name, life.process.pid
        logger.warning("%s (pid %d) ended: %s", name, pid, ending.exit)
        if child.stopping:
            self._forget(child)
            self._tell(Stopped(name, life.generation, exit))
        elif not child.announced:
            self._forget(child)
            self._tell(NotReady(name, ending.exit, ending.last_lines, pid))
        elif self._stopping:
            self._forget(child)
        else:
            self._died(child, pid, life.generation, ending)

    def _forget(self, child: Child) -> None:
        del self._children[child.spec.name]

    def _died(self, child: Child, pid: int, generation: int, ending: Ending) -> None:
        """Reports a death, and begins the next life where the budget allows one."""
        verdict = child.budget.ended(self._host.clock(), ending)
        first = verdict.first if verdict.restarts and not verdict.restarting else None
        name = child.spec.name
        death = ProcessDeath(name, pid, ending.exit, ending.last_lines, generation, verdict.restarting, verdict.restarts, first)
        self._tell(Died(death))
        if not verdict.restarting:
            self._forget(child)
            return
        try:
            self._launch(child)
        except OSError as error:
            self._died(child, 0, self._generations[name], Ending(f"cannot be started: {error}", []))

    def _stop_child(self, order: StopChild) -> None:
        child = self._children.get(order.name)
        if child is None or child.life is None:
            self._tell(Stopped(order.name, -1, ""))
            return
        if not child.stopping and not child.announced:
            self._tell(NotReady(order.name, "stopped before it was ready", []))
        child.stopping = True
        child.life.deadline, child.life.overdue = self._host.clock() + order.grace, ""
        child.life.kill(signal.SIGTERM)

    def _replace(self, order: Replace) -> None:
        child = self._children.get(order.name)
        if child is None or child.life is None or child.life.generation != order.generation or child.stopping or not child.spec.restarts:
            return
        child.life.kill(signal.SIGKILL, order.cause)

    def _stop(self, grace: float) -> None:
        self._stopping = True
        self._kill_at = self._host.clock() + grace
        self._signal_all(signal.SIGTERM)

    def _signal_all(self, number: int) -> None:
        for life in self._lives():
            life.process.signal_group(number)

    def kill_all(self) -> None:
        """Kills every group and reaps; nothing is left afterwards."""
        self._stopping = True
        self._signal_all(signal.SIGKILL)
        for child in list(self._children.values()):
            if child.life is not None:
                self._ended(child, child.life)

    def _tell(self, message: msgspec.Struct) -> None:
        self._outbox += framed(message, LONGEST_REPORT)
        self._flush()

    def _flush(self) -> None:
        try:
            while self._outbox:
                del self._outbox[: self._control.send(self._outbox)]
        except BlockingIOError:
            self._selector.modify(self._control, selectors.EVENT_READ | selectors.EVENT_WRITE, self._hear)
        except OSError:
            self._outbox.clear()
        else:
            if self._control.fileno() in self._selector.get_map():
                self._selector.modify(self._control, selectors.EVENT_READ, self._hear)


def main() -> None:
    """Entry of the supervisor process: ``asyncrl:supervisor SETTINGS_FD CONTROL_FD PARENT``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(0o077)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    for number in (signal.SIGTERM, PARENT_SIGNAL):
        signal.signal(number, lambda number, frame: None)
    answer_signal(sys.stderr)
    die_with_parent(PARENT_SIGNAL, int(sys.argv[4]))
    show_name(sys.argv[1].removeprefix("asyncrl:"))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    settings = msgspec.msgpack.decode(read_sealed(int(sys.argv[2])), type=Settings)
    try:
        Supervisor(settings, adopt_socket(int(sys.argv[3]))).run(read_end)
    except WireError:
        logger.exception("the control socket cannot be read")
        sys.exit(1)


if __name__ == "__main__":
    main()
