"""How a wrong configuration is said: one line each, nothing started."""

import sys

from asyncrl.errors import ConfigError, DataError
from asyncrl.launch.guard import EXIT_CONFIG


def refusal(error: ConfigError | DataError) -> list[str]:
    """The lines: the error first, then what else is wrong (its notes)."""
    said = [str(error), *vars(error).get("__notes__", [])]
    return [f"asyncrl: {' '.join(text.split())}" for text in said]


def refuse(error: ConfigError | DataError) -> int:
    """Print the lines on standard error; return the exit code."""
    print(*refusal(error), sep="\n", file=sys.stderr, flush=True)
    return EXIT_CONFIG
