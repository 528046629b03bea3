"""Signatures as seen from the wire."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncrl.errors import WireError
from asyncrl.runtime import Actor, encode, endpoint
from asyncrl.runtime.plan import Arguments, EndpointPlan, constructor_of, endpoints_of, hints_of
from tests.unit.runtime.runtime_actors import Counter, Slow


def arguments(function: Any) -> Arguments:
    return Arguments(function, hints_of(function))


def decoded(function: Any, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    codec = arguments(function)
    data, _ = codec.encode(args, kwargs)
    return codec.decode(data, ())


def sample(self: Any, a: int, b: list[str] = ["x"], *, c: float = 1.5, d: dict[str, int] = {}) -> None:  # noqa: B006
    """A signature of every kind."""


def test_defaults_and_keywords_are_filled_in_at_the_callee() -> None:
    assert decoded(sample, 1) == ((1, ["x"]), {"c": 1.5, "d": {}})
    assert decoded(sample, 1, ["y"]) == ((1, ["y"]), {"c": 1.5, "d": {}})
    assert decoded(sample, a=1, d={"k": 2}) == ((1, ["x"]), {"c": 1.5, "d": {"k": 2}})


def test_arguments_that_do_not_fit_the_signature_raise_as_in_a_plain_call() -> None:
    for args, kwargs in (((1, ["y"], 2.0), {}), ((), {"b": []}), ((1,), {"a": 2}), ((1,), {"z": 2})):
        with pytest.raises(TypeError):
            arguments(sample).encode(args, kwargs)


def test_extra_missing_or_mistyped_values_are_refused_by_name() -> None:
    codec = arguments(sample)
    for value in ([1, [], 1.0, {}, "extra"], [], ["no"], [1, [2]], {"p0": 1}):
        with pytest.raises(WireError, match=r"sample\(a, b, c, d\)"):
            codec.decode(encoded(value), ())


def encoded(value: Any) -> bytes:
    return encode(value)[0]


def test_the_mark_leaves_the_function_as_it_was() -> None:
    async def method(self: Any, n: int) -> int:
        return n

    assert endpoint(method) is method
    assert endpoint(idempotent=True)(method) is method
    assert asyncio.run(method(None, 3)) == 3


def test_kinds_follow_from_the_function() -> None:
    kinds = {name: EndpointPlan(function).kind for name, function in (endpoints_of(Counter) | endpoints_of(Slow)).items()}
    assert (kinds["add"], kinds["repeat"], kinds["count"]) == ("async", "sync", "stream")
    assert "unmarked" not in kinds


def test_a_subclass_that_overrides_without_the_mark_takes_the_endpoint_away() -> None:
    class Child(Counter):
        async def add(self, n: int) -> int:
            return n

    assert "add" not in endpoints_of(Child)
    assert "fail" in endpoints_of(Child)


def test_endpoints_without_usable_annotations_are_refused_by_name() -> None:
    class Bad(Actor):
        @endpoint
        async def no_result(self, n: int):  # type: ignore[no-untyped-def]
            return n

        @endpoint
        async def no_argument(self, n) -> int:  # type: ignore[no-untyped-def]
            return 1

        @endpoint
        async def star(self, *n: int) -> int:
            return 1

        @endpoint
        async def missing(self, n: "Nowhere") -> int:  # type: ignore[name-defined]  # noqa: F821
            return 1

        @endpoint
        async def bare_stream(self) -> AsyncIterator:  # type: ignore[type-arg]
            yield 1

    for name, text in (
        ("no_result", "no annotation"),
        ("no_argument", "'n' has no annotation"),
        ("star", "cannot travel"),
        ("missing", "importable"),
        ("bare_stream", "AsyncIterator"),
    ):
        with pytest.raises(WireError, match=text) as caught:
            EndpointPlan(endpoints_of(Bad)[name])
        assert name in str(caught.value)


def test_a_class_without_a_constructor_takes_no_arguments() -> None:
    assert constructor_of(Slow).decode(constructor_of(Slow).encode((), {})[0], ()) == ((), {})

    class Bare(Actor):
        """No constructor."""

    assert constructor_of(Bare).encode((), {}) == (b"\x90", [])
    with pytest.raises(TypeError):
        constructor_of(Bare).encode((1,), {})
