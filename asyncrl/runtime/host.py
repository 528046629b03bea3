"""The only door to clock, entropy, threads, processes, sockets and files.

Everything else in the runtime receives a ``Host``, so that the same code can run under a virtual clock and a simulated
network. ``RealHost`` is the shipped one; Linux only.
"""

import asyncio
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, NamedTuple, NoReturn, Protocol, TypeVar, TypeVarTuple

from asyncrl.runtime.files import DiskFolder, StorageFolder
from asyncrl.runtime.own_thread import OwnThread, WorkerThread

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15

STACKS_SIGNAL = signal.SIGUSR1
"""Asks a process of ours for its stacks, in its log."""

ControlSocket = socket.socket


class Host(Protocol):
    """What an actor system needs from the machine."""

    def clock(self) -> float:
        """Monotonic seconds."""
        ...

    def wall_time(self) -> float:
        """Unix seconds, for records only; no decision depends on it."""
        ...

    def entropy(self, size: int) -> bytes:
        """``size`` unpredictable bytes."""
        ...

    async def run_blocking(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Runs ``function`` on a worker thread. A started function cannot be cancelled."""
        ...

    def own_thread(self, name: str) -> WorkerThread:
        """A thread for functions that must all run on one, in their order."""
        ...

    def open_append(self, path: str) -> BinaryIO:
        """A file for appending, made with its folder where absent."""
        ...

    def storage(self, path: str) -> StorageFolder:
        """A folder of files that must survive a kill, made where absent."""
        ...


class Flag(Protocol):
    """What one thread sets and another waits for."""

    def set(self) -> None:
        """Wakes who waits."""
        ...

    def clear(self) -> None:
        """The next wait waits again."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Returns whether it is set, after at most ``timeout`` seconds."""
        ...


class Thread(Protocol):
    """A thread that was started here."""

    def join(self, timeout: float | None = None) -> None:
        """Waits for its end, at most ``timeout`` seconds."""
        ...

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        ...


class ThreadFrame(NamedTuple):
    """Where one thread is at this moment."""

    name: str
    number: int
    frame: FrameType


class ThreadedHost(Host, Protocol):
    """A host with real threads: what watchers and writers need that must go on while the event loop stands still."""

    def start_thread(self, function: Callable[[], None], name: str) -> Thread:
        """Runs ``function`` on a thread of its own, which does not keep the process alive."""
        ...

    def this_thread(self) -> int:
        """The number of the calling thread."""
        ...

    def flag(self) -> Flag:
        """A new flag, not set."""
        ...

    def thread_frames(self) -> list[ThreadFrame]:
        """Where every thread that runs Python is, the oldest first."""
        ...

    def end_process(self, code: int) -> NoReturn:
        """Ends the process at once; nothing is flushed, nobody is asked."""
        ...


class Launched:
    """A process that was started here: its pid, and a file descriptor that turns readable when it ends."""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        self._popen = popen
        self.pid = popen.pid
        self.pidfd = os.pidfd_open(popen.pid)
        self._ending = ""

    def signal_group(self, number: int) -> None:
        """Signals every process of the group that this one leads; silent when none is left, and after ``reap``."""
        if not self._ending:
            signal_group(self.pid, number)

    def reap(self) -> str:
        """Kills what is left of the group, waits for the end and says how it came: "exit code 1" or "signal 9 (SIGKILL)".

        Asked again it says the same, and touches neither number: process and descriptor may be somebody else's by then.
        """
        if not self._ending:
            # The group is swept before the leader is reaped: afterwards its number may belong to somebody else.
            self.signal_group(signal.SIGKILL)
            self._ending = describe_exit(self._popen.wait())
            os.close(self.pidfd)
        return self._ending


def signal_group(leader: int, number: int) -> None:
    """Signals every process of a group; silent when none is left."""
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return


def describe_exit(code: int) -> str:
    """Words for a return code of ``subprocess``: negative numbers are signals."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


class RealHost:
    """The machine as it is."""

    def clock(self) -> float:
        return time.monotonic()

    def wall_time(self) -> float:
        return time.time()

    def entropy(self, size: int) -> bytes:
        return os.urandom(size)

    async def run_blocking(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        return await asyncio.to_thread(function, *args)

    def own_thread(self, name: str) -> WorkerThread:
        return OwnThread(name)

    def storage(self, path: str) -> StorageFolder:
        return DiskFolder(path)

    def open_append(self, path: str) -> BinaryIO:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return open(path, "ab")

    def start_thread(self, function: Callable[[], None], name: str) -> Thread:
        thread = threading.Thread(target=function, name=name, daemon=True)
        thread.start()
        return thread

    def this_thread(self) -> int:
        return threading.get_ident()

    def flag(self) -> Flag:
        return threading.Event()

    def thread_frames(self) -> list[ThreadFrame]:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        # The newest thread comes first there.
        frames = reversed(sys._current_frames().items())
        return [ThreadFrame(names.get(number, f"thread {number}"), number, frame) for number, frame in frames]

    def end_process(self, code: int) -> NoReturn:
        os._exit(code)


def make_private_folder(prefix: str) -> str:
    """A new 0700 folder under the system's temporary folder."""
    return tempfile.mkdtemp(prefix=prefix)


def open_log(path: str) -> BinaryIO:
    """A file for the output of a process, for appending, made with its folder where absent. A new one is readable by its owner alone."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600))


def remove_folder(path: str) -> None:
    """Removes a folder and what is in it; silent when it is gone."""
    shutil.rmtree(path, ignore_errors=True)


def tail_of(path: str, start: int = 0, lines: int = 60, size: int = 16384) -> list[str]:
    """The last ``lines`` lines of a text file behind byte ``start``, without reading more than its last ``size`` bytes."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(start, file.tell() - size))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    return text.splitlines()[-lines:]


def socket_pair() -> tuple[ControlSocket, ControlSocket]:
    """Two connected stream sockets; neither is inherited unless passed on."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def adopt_socket(descriptor: int) -> ControlSocket:
    """Takes over an inherited socket."""
    return socket.socket(fileno=descriptor)


def sealed_bytes(payload: bytes) -> int:
    """A file descriptor of an unnamed memory file that holds ``payload``: how secrets reach a child."""
    descriptor = os.memfd_create("asyncrl")
    view = memoryview(payload)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def read_sealed(descriptor: int) -> bytes:
    """Reads and closes what ``sealed_bytes`` made."""
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def handle_of(process: int, descriptor: int) -> int:
    """A handle on what a descriptor of another process refers to. Nothing is opened by it: whatever that is does not notice.

    Raises FileNotFoundError, ProcessLookupError or PermissionError.
    """
    return os.open(f"/proc/{process}/fd/{descriptor}", os.O_PATH | os.O_CLOEXEC)


def reopened(handle: int) -> int:
    """Opens, for reading and writing, what a handle or descriptor refers to. Raises OSError."""
    return os.open(f"/proc/self/fd/{handle}", os.O_RDWR | os.O_CLOEXEC)


def die_with_parent(number: int, parent: int) -> None:
    """Asks the kernel for signal ``number`` when the parent ends; leaves at once if it has already ended.

    Raises OSError when the kernel refuses.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


def show_name(name: str) -> None:
    """Gives this process the short name that ``ps`` and ``top`` show; the kernel keeps 15 bytes of it."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def launch_child(argv: Sequence[str], environment: Mapping[str, str], inherit: Sequence[int], log: BinaryIO) -> Launched:
    """Starts a child that leads its own process group and dies with this process.

    Only a single-threaded process may call this: the child runs Python between fork and exec.
    """
    parent = os.getpid()
    popen = subprocess.Popen(
        list(argv),
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        pass_fds=tuple(inherit),
        process_group=0,
        preexec_fn=lambda: begin_child(parent),
    )
    return Launched(popen)


def begin_child(parent: int) -> None:
    """A child's first acts: it dies with its parent, and a request for its stacks does not kill it before it can answer."""
    die_with_parent(signal.SIGKILL, parent)
    signal.signal(STACKS_SIGNAL, signal.SIG_IGN)


def launch_session(argv: Sequence[str], environment: Mapping[str, str], inherit: Sequence[int], log: BinaryIO) -> Launched:
    """Starts a process in a session of its own; safe in a threaded process. It must call ``die_with_parent`` itself."""
    popen = subprocess.Popen(
        list(argv),
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        pass_fds=tuple(inherit),
        start_new_session=True,
    )
    return Launched(popen)


def signal_process(pid: int, number: int, name: str) -> bool:
    """Signals the process ``pid`` if ``name`` is a word of its command line; False when it is not, or is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
        if name.encode() not in words:
            return False
        os.kill(pid, number)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return True


def size_of(path: str) -> int:
    """Bytes of a file, 0 for one that is not there."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def move_file(path: str, to: str) -> None:
    """Renames a file; one that has the name already is replaced."""
    os.replace(path, to)


def own_pid() -> int:
    """This process's number."""
    return os.getpid()


def python_module(module: str, *args: str) -> list[str]:
    """The command line that runs ``module`` under this interpreter, unbuffered: its last words must reach the log."""
    return [sys.executable, "-u", "-m", module, *args]


def import_path() -> str:
    """Where this process finds modules, in the form of PYTHONPATH."""
    return os.pathsep.join(dict.fromkeys(os.path.abspath(each) for each in sys.path))


def run_main(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs ``main`` on uvloop where it is importable, else on the stock loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
