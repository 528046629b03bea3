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
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

PR_SET_PDEATHSIG = 1

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

    def open_append(self, path: str) -> BinaryIO:
        """A file for appending, made with its folder where absent."""
        ...


class Launched:
    """A process that was started here: its pid, and a file descriptor that turns readable when it ends."""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        self._popen = popen
        self.pid = popen.pid
        self.pidfd = os.pidfd_open(popen.pid)

    def signal_group(self, number: int) -> None:
        """Signals every process of the group that this one leads; silent when none is left."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return

    def reap(self) -> str:
        """Waits for the end and says how it came: "exit code 1" or "signal 9 (SIGKILL)"."""
        # The group is swept before the leader is reaped: afterwards its number may belong to somebody else.
        self.signal_group(signal.SIGKILL)
        code = self._popen.wait()
        os.close(self.pidfd)
        return describe_exit(code)


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

    def open_append(self, path: str) -> BinaryIO:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return open(path, "ab")


def make_private_folder(prefix: str) -> str:
    """A new 0700 folder under the system's temporary folder."""
    return tempfile.mkdtemp(prefix=prefix)


def remove_folder(path: str) -> None:
    """Removes a folder and what is in it; silent when it is gone."""
    shutil.rmtree(path, ignore_errors=True)


def tail_of(path: str, lines: int = 60, size: int = 16384) -> list[str]:
    """The last ``lines`` lines of a text file, without reading more than its last ``size`` bytes."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - size))
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


def die_with_parent(number: int, parent: int) -> None:
    """Asks the kernel for signal ``number`` when the parent ends; leaves at once if it has already ended.

    Raises OSError when the kernel refuses.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


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
        preexec_fn=lambda: die_with_parent(signal.SIGKILL, parent),
    )
    return Launched(popen)


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


def own_pid() -> int:
    """This process's number."""
    return os.getpid()


def python_module(module: str, *args: str) -> list[str]:
    """The command line that runs ``module`` under this interpreter, unbuffered: its last words must reach the log."""
    return [sys.executable, "-u", "-m", module, *args]


def run_main(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs ``main`` on uvloop where it is importable, else on the stock loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
