"""What is known about an endpoint or a constructor from its signature: codecs of its arguments and of its result."""

import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from asyncrl.errors import WireError
from asyncrl.runtime.actor import MARK, Actor, EndpointMark
from asyncrl.runtime.codec import ENCODER, Codec, check_frames
from asyncrl.runtime.messages import check_name
from asyncrl.runtime.shapes import Buffer, Shape, shape_of

Kind = Literal["async", "sync", "stream"]


class Arguments:
    """Codec of a parameter list: positional order on the wire, trailing defaults left out."""

    def __init__(self, function: Callable[..., Any], hints: dict[str, Any]) -> None:
        self.owner = function.__qualname__
        self.parameters = list(inspect.signature(function).parameters.values())[1:]
        for parameter in self.parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise WireError(f"{self.owner}: *{parameter.name} cannot travel; take a list or a dict")
            if parameter.name not in hints:
                raise WireError(f"{self.owner}: parameter {parameter.name!r} has no annotation")
        self.positional = sum(p.kind is not p.KEYWORD_ONLY for p in self.parameters)
        self.shapes: list[Shape] = [shape_of(hints[p.name]) for p in self.parameters]
        self._packing = [(i, shape.pack, shape.unpack) for i, shape in enumerate(self.shapes) if shape.pack and shape.unpack]
        pairs = enumerate(zip(self.parameters, self.shapes, strict=True))
        fields: list[Any] = [(f"p{i}", shape.wire, _field(parameter)) for i, (parameter, shape) in pairs]
        struct = msgspec.defstruct(self.owner.replace(".", "_"), fields, array_like=True, forbid_unknown_fields=True, kw_only=True)
        self._decoder = msgspec.msgpack.Decoder(struct)

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes, list[Buffer]]:
        """Bytes and frames. Raises TypeError for arguments that do not fit the signature, WireError for their values."""
        if kwargs or len(args) > self.positional:
            args = self._ordered(args, kwargs)
        frames: list[Buffer] = []
        try:
            if not self._packing:
                return ENCODER.encode(args), frames
            packed = list(args)
            for place, pack, _ in self._packing:
                if place < len(packed):
                    packed[place] = pack(packed[place], frames)
            return ENCODER.encode(packed), check_frames(frames)
        except (TypeError, ValueError, RecursionError, AttributeError, OverflowError) as error:
            raise WireError(f"{self.owner}: cannot encode the arguments: {error}") from error

    def _ordered(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        if len(args) > self.positional:
            raise TypeError(f"{self.owner} takes {self.positional} positional arguments, got {len(args)}")
        given = dict(kwargs)
        values = list(args)
        for parameter in self.parameters[len(args) :]:
            if parameter.name in given:
                values.append(given.pop(parameter.name))
            elif parameter.default is not parameter.empty:
                values.append(parameter.default)
            else:
                raise TypeError(f"{self.owner} needs {parameter.name!r}")
        if given:
            raise TypeError(f"{self.owner} got unexpected or repeated arguments: {', '.join(given)}")
        return tuple(values)

    def decode(self, data: bytes | memoryview | msgspec.Raw, frames: Sequence[memoryview]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword-only values. Raises WireError when they do not fit the annotations."""
        try:
            values = msgspec.structs.astuple(self._decoder.decode(data))
            if self._packing:
                came = list(values)
                for place, _, unpack in self._packing:
                    came[place] = unpack(came[place], frames)
                values = tuple(came)
        except (msgspec.DecodeError, RecursionError, ValueError, TypeError) as error:
            names = ", ".join(p.name for p in self.parameters)
            raise WireError(f"{self.owner}({names}): {error}") from error
        if self.positional == len(values):
            return values, {}
        named = zip(self.parameters[self.positional :], values[self.positional :], strict=True)
        return values[: self.positional], {parameter.name: value for parameter, value in named}


def _field(parameter: inspect.Parameter) -> Any:
    if parameter.default is parameter.empty:
        return msgspec.field()
    value = parameter.default
    return msgspec.field(default_factory=lambda: value)


class EndpointPlan:
    """One endpoint: its kind, its marks and the codecs of its border."""

    def __init__(self, function: Callable[..., Any]) -> None:
        mark = vars(function).get(MARK)
        if not isinstance(mark, EndpointMark):
            raise TypeError(f"{function.__qualname__} is not marked with @endpoint")
        self.name, self.label = function.__name__, function.__qualname__
        check_name("the name of an endpoint", self.name)
        self.collective, self.idempotent, self.roles = mark.collective, mark.idempotent, mark.roles
        hints = hints_of(function)
        if "return" not in hints:
            raise WireError(f"{self.label}: the result has no annotation")
        self.kind: Kind = "sync"
        result = hints["return"]
        if inspect.isasyncgenfunction(function):
            self.kind, result = "stream", _item_of(self.label, result)
        elif inspect.iscoroutinefunction(function):
            self.kind = "async"
        try:
            self.arguments = Arguments(function, hints)
            self.result = Codec(result)
        except (TypeError, WireError) as error:
            raise WireError(f"{self.label} cannot be an endpoint: {error}") from error


def _item_of(label: str, annotation: Any) -> Any:
    arguments = typing.get_args(annotation)
    if not arguments:
        raise WireError(f"{label}: a stream is annotated with AsyncIterator[...] of its items")
    return arguments[0]


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The resolved annotations. Raises WireError when a name in them is not importable at run time."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise WireError(f"{function.__qualname__}: annotations must be importable at run time: {error}") from error


_PLANS: dict[Callable[..., Any], EndpointPlan] = {}


def plan_of(function: Callable[..., Any]) -> EndpointPlan:
    """The cached plan of an endpoint."""
    plan = _PLANS.get(function)
    if plan is None:
        plan = _PLANS[function] = EndpointPlan(function)
    return plan


def endpoints_of(cls: type[Actor]) -> dict[str, Callable[..., Any]]:
    """Every marked method of a class and its bases, by name."""
    found: dict[str, Callable[..., Any]] = {}
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            if inspect.isfunction(member) and MARK in vars(member):
                found[name] = member
            else:
                found.pop(name, None)
    return found


def constructor_of(cls: type[Actor]) -> Arguments:
    """Codec of a class's constructor arguments, for actors that are built in another process."""
    function = vars(cls).get("__init__") or cls.__init__
    if function is object.__init__:
        return Arguments(_no_arguments, {})
    return Arguments(function, hints_of(function))


def _no_arguments(self: object) -> None:
    """Signature of a class without a constructor."""
