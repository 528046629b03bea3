"""A rank that runs one job after another: ``torchrun ... -m tests.processes.warm_rank SOCKET``.

Torch is imported once; each job is a launch as any other, with an attempt, a process group, children and a run folder of its own.
"""

import functools
import json
import os
import socket
import sys
from pathlib import Path

import msgspec

from asyncrl.launch import __main__ as launch
from asyncrl.launch.session import Controller
from tests.processes import mortal
from tests.processes.scenario import run_scenario


class Job(msgspec.Struct):
    """A run: the words of its command line, and who drives it in place of the shipped controller.

    ``spec`` is that of a scenario; ``recorded``: the controller of ``tests.processes.mortal``, which never dies here.
    """

    options: list[str]
    spec: str | None = None
    recorded: bool = False


def controller_of(job: Job) -> Controller | None:
    """Who drives it; None for the shipped one."""
    if job.recorded:
        return functools.partial(mortal.train, mortal.Fate("never", 0))
    return None if job.spec is None else functools.partial(run_scenario, json.loads(Path(job.spec).read_text()))


def run(job: Job, number: int) -> None:
    """Run a job to its end; one that fails ends this process. ``number`` makes it an attempt that no other job had."""
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number)
    if code := launch.main(job.options, controller_of(job)):
        sys.exit(code)


def main() -> None:
    """Entry of each rank: a line is a job, a line answers that it is done; the end of the lines ends this process."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(sys.argv[1])
        with connection.makefile("rwb") as lines:
            for number, line in enumerate(lines):
                run(msgspec.json.decode(line, type=Job), number)
                lines.write(b"done\n")
                lines.flush()


if __name__ == "__main__":
    main()
