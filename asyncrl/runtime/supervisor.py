"""The supervisor process: starts children, reports their ends, and never leaves one behind.

Run as ``python -m asyncrl.runtime.supervisor``. Single-threaded, a session of its own, no event loop, no torch. Its
control socket is also its lifeline: at end of file it kills every group and leaves.
"""

import logging
import os
import re
import selectors
import signal
import sys
from typing import BinaryIO

import msgspec

from asyncrl.errors import ConfigError, WireError
from asyncrl.runtime.host import (
    ControlSocket,
    Launched,
    RealHost,
    adopt_socket,
    die_with_parent,
    launch_child,
    python_module,
    read_sealed,
    remove_folder,
    sealed_bytes,
    tail_of,
)
from asyncrl.runtime.messages import ActorAddress
from asyncrl.runtime.security import process_endpoint
from asyncrl.runtime.supervisor_client import SupervisorClient
from asyncrl.runtime.supervisor_messages import (
    TO_SUPERVISOR,
    Birth,
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

__all__ = ["ProcessDeath", "ProcessSpec", "Supervisor", "SupervisorClient", "main"]

logger = logging.getLogger("asyncrl.supervisor")

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
DECODER: msgspec.msgpack.Decoder[Spawn | Stop] = msgspec.msgpack.Decoder(TO_SUPERVISOR)
ADDRESS: msgspec.msgpack.Decoder[ActorAddress] = msgspec.msgpack.Decoder(ActorAddress)


class Child(msgspec.Struct):
    """One child: its process, the pipe on which it says that it is ready, and the deadline for that."""

    spec: ProcessSpec
    process: Launched
    ready_pipe: int
    deadline: float
    ready: bool = False
    failed: str = ""
    words: FrameReader = msgspec.field(default_factory=FrameReader)


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
        """Serves until told to stop, until the client is gone, or until a signal arrives on ``wakeup``."""
        self._control.setblocking(False)
        self._selector.register(self._control, selectors.EVENT_READ, self._hear)
        self._selector.register(wakeup, selectors.EVENT_READ, self.kill_all)
        try:
            while not (self._stopping and not self._children):
                for key, _ in self._selector.select(self._time_left()):
                    key.data()
                self._check_deadlines()
        finally:
            self.kill_all()
            remove_folder(self._settings.folder)

    def _time_left(self) -> float | None:
        ends = [child.deadline for child in self._children.values() if not child.ready]
        if self._kill_at is not None:
            ends.append(self._kill_at)
        return max(0.0, min(ends) - self._host.clock()) if ends else None

    def _check_deadlines(self) -> None:
        now = self._host.clock()
        for child in self._children.values():
            if not child.ready and not child.failed and now >= child.deadline:
                child.failed = f"not ready within {child.spec.ready_within:g} s"
                child.deadline = now + 3600.0
                child.process.signal_group(signal.SIGKILL)
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
            message = DECODER.decode(frame)
            if isinstance(message, Spawn):
                self._spawn(message)
            else:
                self._stop(message.grace)

    def _spawn(self, order: Spawn) -> None:
        name = order.spec.name
        if self._stopping or name in self._children or not NAME.fullmatch(name):
            taken = "the name is taken" if name in self._children else "a process name has letters, digits, '.', '_', '-'"
            self._tell(NotReady(name, "the supervisor is stopping" if self._stopping else taken, []))
            return
        try:
            endpoint = process_endpoint(self._settings.folder, name, self._settings.interface)
            self._launch(order, endpoint)
        except (OSError, ConfigError) as error:
            self._tell(NotReady(name, f"cannot be started: {error}", []))

    def _launch(self, order: Spawn, endpoint: str) -> None:
        spec = order.spec
        generation = self._generations.get(spec.name, -1) + 1
        self._generations[spec.name] = generation
        birth = Birth(spec, endpoint, order.attempt, generation, order.token)
        papers = sealed_bytes(msgspec.msgpack.encode(birth))
        ready_pipe, ready_end = os.pipe()
        os.set_blocking(ready_pipe, False)
        allowed = {key: os.environ[key] for key in self._settings.env_allow if key in os.environ}
        argv = python_module("asyncrl.runtime.process", f"asyncrl:{spec.name}", str(papers), str(ready_end))
        try:
            with self._log(spec.name) as log:
                process = launch_child(argv, allowed | spec.environment, (papers, ready_end), log)
        except OSError:
            os.close(ready_pipe)
            raise
        finally:
            os.close(papers)
            os.close(ready_end)
        child = Child(spec, process, ready_pipe, self._host.clock() + spec.ready_within)
        self._children[spec.name] = child
        self._selector.register(ready_pipe, selectors.EVENT_READ, lambda: self._ready(child))
        self._selector.register(process.pidfd, selectors.EVENT_READ, lambda: self._ended(child))

    def _log(self, name: str) -> BinaryIO:
        return self._host.open_append(f"{self._settings.log_folder}/{name}.log")

    def _ready(self, child: Child) -> None:
        if child.ready_pipe < 0:
            return
        try:
            data = os.read(child.ready_pipe, 65536)
        except BlockingIOError:
            return
        if not data:
            # It closed the pipe without a word; its end, or its deadline, is reported elsewhere.
            self._close_pipe(child)
            return
        for said in child.words.feed(data):
            child.ready = True
            self._close_pipe(child)
            self._tell(Ready(child.spec.name, child.process.pid, ADDRESS.decode(said)))

    def _close_pipe(self, child: Child) -> None:
        if child.ready_pipe >= 0:
            self._selector.unregister(child.ready_pipe)
            os.close(child.ready_pipe)
            child.ready_pipe = -1

    def _ended(self, child: Child) -> None:
        name = child.spec.name
        if self._children.get(name) is not child:
            return
        # A child that said it is ready and ended at once has both events in one round.
        if child.ready_pipe >= 0 and not child.failed:
            self._ready(child)
        self._close_pipe(child)
        self._selector.unregister(child.process.pidfd)
        ending = child.process.reap()
        del self._children[name]
        lines = tail_of(f"{self._settings.log_folder}/{name}.log")
        logger.warning("%s (pid %d) ended: %s", name, child.process.pid, child.failed or ending)
        if not child.ready:
            self._tell(NotReady(name, child.failed or f"ended before it was ready: {ending}", lines))
        elif not self._stopping:
            self._tell(Died(ProcessDeath(name, child.process.pid, ending, lines)))

    def _stop(self, grace: float) -> None:
        self._stopping = True
        self._kill_at = self._host.clock() + grace
        self._signal_all(signal.SIGTERM)

    def _signal_all(self, number: int) -> None:
        for child in self._children.values():
            child.process.signal_group(number)

    def kill_all(self) -> None:
        """Kills every group and reaps; nothing is left afterwards."""
        self._stopping = True
        self._signal_all(signal.SIGKILL)
        for child in list(self._children.values()):
            self._ended(child)

    def _tell(self, message: msgspec.Struct) -> None:
        self._outbox += framed(message)
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
    # A dead client must not take this process with it before the groups are killed, hence SIGTERM and not SIGKILL.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    die_with_parent(signal.SIGTERM, int(sys.argv[4]))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    settings = msgspec.msgpack.decode(read_sealed(int(sys.argv[2])), type=Settings)
    try:
        Supervisor(settings, adopt_socket(int(sys.argv[3]))).run(read_end)
    except WireError:
        logger.exception("the control socket cannot be read")
        sys.exit(1)


if __name__ == "__main__":
    main()
