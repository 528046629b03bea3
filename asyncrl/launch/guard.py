"""Ends the attempt when something it cannot do without is gone, and says what was first."""

import asyncio
import os
import sys
from collections.abc import Mapping

from asyncrl.launch.run_folder import RunFolder

EXIT_FAILED = 1
EXIT_CONFIG = 2


class Guard:
    """Watches processes by pidfd from the event loop, so that a collective that blocks the device thread cannot hide a death.

    A death claims the first cause in the run folder and ends this process at once. Its children need no call: the
    supervisor sees the lifeline close and kills them.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._watched: dict[int, str] = {}

    def watch(self, processes: Mapping[str, int]) -> None:
        """End the attempt when one of these processes (name -> pid, on this host) ends."""
        loop = asyncio.get_running_loop()
        for name, pid in processes.items():
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                self.end(f"{name} (pid {pid}) died")
            self._watched[descriptor] = name
            loop.add_reader(descriptor, self.end, f"{name} (pid {pid}) died")

    def release(self) -> None:
        """Stop watching: the run is over and the others may leave."""
        loop = asyncio.get_running_loop()
        for descriptor in self._watched:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        self._watched.clear()

    def end(self, cause: str, code: int = EXIT_FAILED) -> None:
        """Claim the first cause, say it, and leave without waiting for any thread."""
        if self._folder.claim_cause(cause):
            print(f"asyncrl: {cause}\nasyncrl: the run folder is {self._folder.path}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(code)
