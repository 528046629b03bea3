"""Trace ids: made by the outermost call, and passed on to every call that is made while it is served."""

import itertools

from asyncrl.runtime.actor import CURRENT_CALL
from asyncrl.runtime.messages import LONGEST_NAME


class Traces:
    """Makes the ids of one life of a process: its name, its generation and a number ("rank0.0-17")."""

    def __init__(self, process: str, generation: int) -> None:
        # Room for the numbers: a trace id travels as a name.
        self._prefix = f"{process[: LONGEST_NAME - 48]}.{generation}-"
        self._numbers = itertools.count(1)

    def current(self) -> str:
        """The trace of the call that is being served, a new one outside of calls."""
        served = CURRENT_CALL.get()
        if served is not None and served.trace:
            return served.trace
        return f"{self._prefix}{next(self._numbers)}"
