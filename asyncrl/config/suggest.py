"""What the user may have meant."""

import difflib
from collections.abc import Iterable

from asyncrl.config.names import options, sections


def did_you_mean(name: str, more: Iterable[str] = ()) -> str:
    """``did you mean A, B?`` for a name that no option has, or an empty text.

    A name that lacks its first sections (``rollout.n``) finds the option that ends with it. Then come the options that differ
    by a few letters, then sections, then the names in ``more``.
    """
    known = list(options())
    endings = [key for key in known if key.endswith(f".{name}")]
    close = endings or _close(name, known) or _close(name, sections()) or _close(name, more)
    return f"did you mean {', '.join(close[:3])}?" if close else ""


def _close(name: str, known: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(name, list(known), n=3, cutoff=0.8)


def did_you_mean_value(value: object, choices: Iterable[str]) -> str:
    """The same for one of several words."""
    close = difflib.get_close_matches(str(value), list(choices), n=1)
    return f"did you mean {close[0]}?" if close else ""
