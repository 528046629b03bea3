"""Errors across the wire."""

import msgspec
import pytest

from asyncrl import errors
from asyncrl.errors import ActorDied, AsyncRLError, CallFailed, CallTimedOut, DataError, MissingField, RunFailed
from asyncrl.runtime.failures import describe, rebuild
from asyncrl.runtime.messages import Failure


def sent(error: BaseException) -> AsyncRLError:
    data = msgspec.msgpack.encode(describe(1, error))
    return rebuild(msgspec.msgpack.decode(data, type=Failure), "who", "What.method")


@pytest.mark.parametrize(
    "error",
    [
        errors.UnknownRow("k", "train", 2),
        MissingField("k", "f", 1, ("a", "b")),
        errors.FieldExists("k", "f", 1),
        errors.FieldMismatch("f", 1, "int64", "int32"),
        errors.Fenced("k", "1", "2"),
        errors.ShardLost(1, "a1.0"),
        errors.EngineUnavailable("asleep"),
        DataError("line 3"),
        RunFailed("cause"),
        ActorDied("a", "b"),
        CallTimedOut("who", "what", 1.5),
        errors.Undeliverable("who", "reason"),
        errors.ConfigError("a.b", 3, "a string"),
    ],
)
def test_errors_of_our_own_tree_keep_class_text_and_attributes(error: AsyncRLError) -> None:
    back = sent(error)
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert {k: v for k, v in vars(back).items() if k != "__notes__"} == vars(error)
    assert "What.method on who" in back.__notes__[0]


def test_foreign_errors_and_lookalikes_become_call_failed() -> None:
    class Fenced(Exception):
        """Not ours."""

    for error in (KeyError("k"), Fenced("x")):
        back = sent(error)
        assert isinstance(back, CallFailed)
        assert (back.kind, back.message, back.who, back.what) == (type(error).__name__, str(error), "who", "What.method")


def test_attributes_that_do_not_fit_the_class_do_not_break_the_caller() -> None:
    back = rebuild(Failure(1, "Fenced", "text", "trace", {"nonsense": 1}), "who", "what")
    assert isinstance(back, CallFailed)
    assert back.message == "text"
