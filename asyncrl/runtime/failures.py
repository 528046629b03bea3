"""Errors across the wire: an error of our own tree comes back as itself, any other as ``CallFailed``."""

import inspect
import traceback
import typing
from typing import Any

import msgspec

from asyncrl import errors
from asyncrl.errors import AsyncRLError, CallFailed
from asyncrl.runtime.codec import ENCODER
from asyncrl.runtime.messages import Failure


def _parameters(kind: type[AsyncRLError]) -> dict[str, Any]:
    """Types of the constructor's parameters by name; none for a class that takes a plain message."""
    if not any("__init__" in vars(base) for base in kind.__mro__ if issubclass(base, AsyncRLError)):
        return {}
    hints = typing.get_type_hints(kind.__init__)
    return {name: Any if hints[name] is object else hints[name] for name in inspect.signature(kind).parameters}


OWN: dict[str, type[AsyncRLError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, AsyncRLError)
}
PARAMETERS = {name: _parameters(kind) for name, kind in OWN.items()}

LONGEST_TEXT = 65536
LONGEST_TRACE = 20_000
LONGEST_LINE = 2000
"""Characters of one entry of a traceback: a text of a megabyte must not push out the frames."""
MOST_ATTRIBUTES = 1 << 20
"""Bytes of the attributes of one error; with more it arrives as ``CallFailed``."""


def describe(call: int, error: BaseException) -> Failure:
    """The message for an error that an endpoint raised. It can be sent whatever the error is like: the caller waits for it."""
    kind = type(error).__name__
    own = OWN.get(kind) is type(error)
    return Failure(call, _printable(kind)[:256], _text(error), _trace(error), _attributes(error) if own else None)


def _printable(text: str) -> str:
    """Text that has a UTF-8 form."""
    return text.encode(errors="backslashreplace").decode()


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as inner:
        text = f"a {type(error).__name__} whose text cannot be made ({type(inner).__name__})"
    return _printable(text[:LONGEST_TEXT])


def _trace(error: BaseException) -> str:
    entries = [entry[:LONGEST_LINE] for entry in traceback.TracebackException.from_exception(error).format()]
    return _printable("\n".join(entry.rstrip("\n") for entry in entries)[-LONGEST_TRACE:])


def _attributes(error: BaseException) -> dict[str, Any] | None:
    names = PARAMETERS[type(error).__name__]
    held = vars(error)
    if not all(name in held for name in names):
        return None
    try:
        attributes = {name: _plain(held[name]) for name in names}
        return attributes if len(ENCODER.encode(attributes)) <= MOST_ATTRIBUTES else None
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def _plain(value: Any) -> Any:
    try:
        return msgspec.to_builtins(value)
    except TypeError:
        return str(value)


def rebuild(failure: Failure, who: str, what: str) -> AsyncRLError:
    """The error to raise at the caller. What does not fit its class arrives as ``CallFailed``."""
    kind = OWN.get(failure.kind)
    if kind is not None and failure.attributes is not None:
        try:
            error = _construct(kind, failure.message, failure.attributes)
        except (TypeError, ValueError):
            return CallFailed(who, what, failure.kind, failure.message, failure.traceback)
        if failure.traceback:
            error.add_note(f"raised by {what} on {who}:\n{failure.traceback}")
        return error
    return CallFailed(who, what, failure.kind, failure.message, failure.traceback)


def _construct(kind: type[AsyncRLError], message: str, attributes: dict[str, Any]) -> AsyncRLError:
    """Raises TypeError or ValueError for attributes that do not fit the constructor."""
    types = PARAMETERS[kind.__name__]
    if attributes.keys() != types.keys():
        raise TypeError(f"{kind.__name__} has the attributes {', '.join(types)}, got {', '.join(attributes)}")
    return kind(**{name: msgspec.convert(attributes[name], types[name]) for name in types}) if types else kind(message)
