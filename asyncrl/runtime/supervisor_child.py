"""One child of a supervisor over all its lives, and the process that is its present one."""

import os
from collections.abc import Mapping

import msgspec

from asyncrl.errors import WireError
from asyncrl.runtime.host import Host, Launched, launch_child, open_log, python_module, sealed_bytes, tail_of
from asyncrl.runtime.messages import ActorAddress
from asyncrl.runtime.restarts import Ending, RestartBudget
from asyncrl.runtime.supervisor_messages import Birth, FrameReader, Membership, ProcessSpec, Settings, address_in

ADDRESS_BYTES = 1 << 16
"""Longest address that a child may say: a length beyond it is nonsense, and not waited for."""


class Life:
    """One process of a child: the pipe on which it says that it is ready, and the deadline after which it is killed.

    ``overdue`` is what its end is put down to when the deadline passes, "" for an end that was ordered.
    """

    def __init__(self, process: Launched, generation: int, pipe: int, deadline: float, overdue: str, log_start: int) -> None:
        self.process, self.generation, self.pipe = process, generation, pipe
        self.deadline: float | None = deadline
        self.overdue = overdue
        self.log_start = log_start
        self.ready = False
        self.failed = ""
        self._words = FrameReader(ADDRESS_BYTES)

    def hear(self, name: str) -> ActorAddress | None:
        """What it says on its pipe: where it serves, once it does; it is process ``name``.

        Raises EOFError when it has closed the pipe without a word, WireError for words that are no address of its own.
        """
        try:
            data = os.read(self.pipe, 65536)
        except BlockingIOError:
            return None
        if not data:
            raise EOFError
        for said in self._words.feed(data):
            address = address_in(said)
            if (address.process, address.generation) != (name, self.generation):
                raise WireError(f"an address of {address.process} (generation {address.generation})")
            self.ready, self.deadline = True, None
            return address
        return None

    def close_pipe(self) -> None:
        """It has nothing more to say."""
        os.close(self.pipe)
        self.pipe = -1

    def kill(self, number: int, cause: str = "") -> None:
        """Signals its group; ``cause`` is what the end is put down to."""
        self.failed = self.failed or cause
        self.process.signal_group(number)


class Child:
    """A child: what it was ordered to be, how often it may still be restarted, and its present life."""

    def __init__(self, spec: ProcessSpec, member: Membership, endpoint: str, log: str) -> None:
        self.spec, self.member, self.endpoint, self.log = spec, member, endpoint, log
        self.budget = RestartBudget(spec.restarts, spec.restart_window)
        self.announced = False
        """Whether it has been ready once; from then on its end is a death."""
        self.stopping = False
        """Whether its end is wanted."""
        self.life: Life | None = None

    def start(self, host: Host, settings: Settings, environment: Mapping[str, str], generation: int) -> Life:
        """Begins a life. Raises OSError when no process can be started."""
        birth = Birth(self.spec, self.endpoint, generation, self.member, settings.watching)
        papers = sealed_bytes(msgspec.msgpack.encode(birth))
        pipe, ready_end = os.pipe()
        os.set_blocking(pipe, False)
        allowed = {key: environment[key] for key in settings.env_allow if key in environment}
        argv = python_module("asyncrl.runtime.process", f"asyncrl:{self.spec.name}", str(papers), str(ready_end))
        try:
            with open_log(self.log) as log:
                log_start = log.tell()
                process = launch_child(argv, allowed | self.spec.environment, (papers, ready_end), log)
        except OSError:
            os.close(pipe)
            raise
        finally:
            os.close(papers)
            os.close(ready_end)
        within = self.spec.ready_within
        self.life = Life(process, generation, pipe, host.clock() + within, f"not ready within {within:g} s", log_start)
        return self.life

    def reap(self) -> tuple[str, Ending]:
        """Takes leave of the present life: how the process ended, and that as a death with its last lines."""
        assert self.life is not None
        life, self.life = self.life, None
        exit = life.process.reap()
        words = life.failed or (exit if life.ready else f"ended before it was ready: {exit}")
        return exit, Ending(words, tail_of(self.log, life.log_start))
