"""Errors across the wire: an error of our own tree comes back as itself, any other as ``CallFailed``."""

import inspect
import traceback
from typing import Any

import msgspec

from asyncrl import errors
from asyncrl.errors import AsyncRLError, CallFailed
from asyncrl.runtime.messages import Failure

OWN: dict[str, type[AsyncRLError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, AsyncRLError)
}


def describe(call: int, error: BaseException) -> Failure:
    """The message for an error that an endpoint raised."""
    kind = type(error).__name__
    trace = "".join(traceback.format_exception(error))[-20000:]
    own = OWN.get(kind) is type(error)
    return Failure(call, kind[:256], str(error)[:65536], trace, _attributes(error) if own else None)


def _attributes(error: BaseException) -> dict[str, Any] | None:
    names = _parameters(type(error))
    if names is None:
        return {}
    held = vars(error)
    if not all(name in held for name in names):
        return None
    try:
        return {name: msgspec.to_builtins(held[name]) for name in names}
    except TypeError:
        return {name: str(held[name]) for name in names}


def _parameters(kind: type[BaseException]) -> list[str] | None:
    """Names of the constructor's parameters; None for a class that takes a plain message."""
    if "__init__" not in vars(kind) and not any("__init__" in vars(base) for base in kind.__mro__ if issubclass(base, AsyncRLError)):
        return None
    return list(inspect.signature(kind).parameters)


def rebuild(failure: Failure, who: str, what: str) -> AsyncRLError:
    """The error to raise at the caller."""
    kind = OWN.get(failure.kind)
    if kind is not None and failure.attributes is not None:
        try:
            error = _construct(kind, failure)
        except TypeError:
            return CallFailed(who, what, failure.kind, failure.message, failure.traceback)
        if failure.traceback:
            error.add_note(f"raised by {what} on {who}:\n{failure.traceback}")
        return error
    return CallFailed(who, what, failure.kind, failure.message, failure.traceback)


def _construct(kind: type[AsyncRLError], failure: Failure) -> AsyncRLError:
    if _parameters(kind) is None:
        return kind(failure.message)
    attributes = failure.attributes or {}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in attributes.items()})
