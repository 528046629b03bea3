"""How a type that contains registered classes looks on the wire.

A registered object becomes ``(first frame, frame count, head)``: its buffers are frames beside the message, its head is
plain data inside it. ``shape_of`` rewrites an annotation accordingly (containers, unions and struct fields included) and
gives the two functions that turn a value into that form and back. Types without registered classes stay untouched.
"""

import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar, Union

import msgspec

from asyncrl.errors import WireError

T = TypeVar("T")
Buffer: TypeAlias = Any
"""Anything with the buffer protocol: bytes, bytearray, memoryview, arrays."""

PackedHead = tuple[int, int, Any]
Pack = Callable[[Any, list[Buffer]], Any]
Unpack = Callable[[Any, Sequence[memoryview]], Any]


class Registered(msgspec.Struct, Generic[T]):
    """How objects of one class are cut into a head and buffers, and rebuilt."""

    cls: type[T]
    pack: Callable[[T], tuple[Any, list[Buffer]]]
    unpack: Callable[[Any, list[memoryview]], T]


class Shape(msgspec.Struct):
    """``wire`` is the type that is decoded; ``pack``/``unpack`` are None where nothing is registered inside."""

    wire: Any
    pack: Pack | None = None
    unpack: Unpack | None = None
    accepts: tuple[type, ...] = (object,)
    arrives: tuple[type, ...] = (object,)


REGISTERED: dict[type, Registered[Any]] = {}
_STRUCTS: dict[type, Shape] = {}


def shape_of(annotation: Any) -> Shape:
    """The wire form of an annotation. Raises WireError for a union whose members cannot be told apart."""
    if isinstance(annotation, type) and annotation in REGISTERED:
        return _registered_shape(REGISTERED[annotation])
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        inner = shape_of(args[0])
        return inner if inner.pack else Shape(annotation, accepts=inner.accepts, arrives=inner.arrives)
    if origin in (Union, types.UnionType):
        return _union_shape(annotation, [shape_of(arg) for arg in args])
    if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis):
        return _tuple_shape(annotation, [shape_of(arg) for arg in args])
    if isinstance(origin, type) and args and issubclass(origin, typing.Mapping):
        return _mapping_shape(annotation, args[0], shape_of(args[1]))
    if isinstance(origin, type) and args and issubclass(origin, typing.Sequence):
        return _sequence_shape(annotation, origin, shape_of(args[0]))
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return _struct_shape(annotation)
    known = annotation if isinstance(annotation, type) else object
    return Shape(annotation, accepts=(type(None) if annotation is None else known,))


def _registered_shape(entry: Registered[Any]) -> Shape:
    def pack(value: Any, frames: list[Buffer]) -> Any:
        if not isinstance(value, entry.cls):
            raise WireError(f"expected {entry.cls.__name__}, got {type(value).__name__}")
        head, buffers = entry.pack(value)
        first = len(frames)
        frames.extend(buffers)
        return (first, len(buffers), head)

    def unpack(value: Any, frames: Sequence[memoryview]) -> Any:
        first, count, head = value
        if first < 0 or count < 0 or first + count > len(frames):
            raise WireError(f"{entry.cls.__name__} refers to frames {first}..{first + count}, the message has {len(frames)}")
        try:
            return entry.unpack(head, list(frames[first : first + count]))
        except Exception as error:
            # Code of the class's owner, over bytes of somebody else: whatever it raises, these bytes do not fit.
            raise WireError(f"{entry.cls.__name__} cannot be rebuilt: {error}") from error

    return Shape(PackedHead, pack, unpack, (entry.cls,), (tuple,))


def _union_shape(annotation: Any, members: list[Shape]) -> Shape:
    accepts = tuple(kind for member in members for kind in member.accepts)
    if not any(member.pack for member in members):
        return Shape(annotation, accepts=accepts)
    packing = [member for member in members if member.pack]

    def pack(value: Any, frames: list[Buffer]) -> Any:
        for member in packing:
            if member.pack and isinstance(value, member.accepts):
                return member.pack(value, frames)
        return value

    def unpack(value: Any, frames: Sequence[memoryview]) -> Any:
        for member in packing:
            if member.unpack and isinstance(value, member.arrives):
                return member.unpack(value, frames)
        return value

    return Shape(Union[tuple(member.wire for member in members)], pack, unpack, accepts, (object,))  # noqa: UP007  built at run time


def _tuple_shape(annotation: Any, members: list[Shape]) -> Shape:
    if not any(member.pack for member in members):
        return Shape(annotation, accepts=(tuple,))

    def pack(value: Any, frames: list[Buffer]) -> Any:
        return tuple(m.pack(v, frames) if m.pack else v for m, v in zip(members, value, strict=True))

    def unpack(value: Any, frames: Sequence[memoryview]) -> Any:
        return tuple(m.unpack(v, frames) if m.unpack else v for m, v in zip(members, value, strict=True))

    return Shape(tuple[tuple(member.wire for member in members)], pack, unpack, (tuple,), (tuple,))  # type: ignore[misc]


def _sequence_shape(annotation: Any, origin: type, item: Shape) -> Shape:
    if item.pack is None or item.unpack is None:
        return Shape(annotation, accepts=(list, tuple))
    pack_item, unpack_item, build = item.pack, item.unpack, tuple if origin is tuple else list

    def pack(value: Any, frames: list[Buffer]) -> Any:
        return [pack_item(each, frames) for each in value]

    def unpack(value: Any, frames: Sequence[memoryview]) -> Any:
        return build(unpack_item(each, frames) for each in value)

    return Shape(list[item.wire], pack, unpack, (list, tuple), (list,))  # type: ignore[name-defined]


def _mapping_shape(annotation: Any, key: Any, item: Shape) -> Shape:
    if item.pack is None or item.unpack is None:
        return Shape(annotation, accepts=(typing.cast(type, typing.Mapping),))
    pack_item, unpack_item = item.pack, item.unpack

    def pack(value: Any, frames: list[Buffer]) -> Any:
        return {name: pack_item(each, frames) for name, each in value.items()}

    def unpack(value: Any, frames: Sequence[memoryview]) -> Any:
        return {name: unpack_item(each, frames) for name, each in value.items()}

    return Shape(dict[key, item.wire], pack, unpack, (typing.cast(type, typing.Mapping),), (dict,))  # type: ignore[name-defined]


def _struct_shape(cls: type[msgspec.Struct]) -> Shape:
    if cls in _STRUCTS:
        return _STRUCTS[cls]
    _STRUCTS[cls] = Shape(cls, accepts=(cls,))  # a struct that contains itself is taken to hold nothing registered on the way back
    fields = msgspec.structs.fields(cls)
    shapes = [shape_of(field.type) for field in fields]
    if any(shape.pack for shape in shapes):
        _STRUCTS[cls] = _mirrored(cls, [field.encode_name for field in fields], shapes)
    return _STRUCTS[cls]


def _mirrored(cls: type[msgspec.Struct], encoded: list[str], shapes: list[Shape]) -> Shape:
    """A twin struct whose fields have their wire types; the same bytes on the wire as the original would have."""
    config = cls.__struct_config__
    names = cls.__struct_fields__
    fields: list[Any] = [
        (f"f{i}", shape.wire, _default(field)) for i, (shape, field) in enumerate(zip(shapes, msgspec.structs.fields(cls), strict=True))
    ]
    twin = msgspec.defstruct(
        cls.__name__,
        fields,
        kw_only=True,
        array_like=config.array_like,
        forbid_unknown_fields=config.forbid_unknown_fields,
        tag=config.tag,
        tag_field=config.tag_field,
        rename={f"f{i}": name for i, name in enumerate(encoded)},
    )

    def pack(value: Any, frames: list[Buffer]) -> Any:
        given = msgspec.structs.astuple(value)
        return twin(**{f"f{i}": s.pack(v, frames) if s.pack else v for i, (s, v) in enumerate(zip(shapes, given, strict=True))})

    def unpack(value: Any, frames: Sequence[memoryview]) -> Any:
        came = msgspec.structs.astuple(value)
        return cls(**{n: s.unpack(v, frames) if s.unpack else v for n, s, v in zip(names, shapes, came, strict=True)})

    return Shape(twin, pack, unpack, (cls,), (twin,))


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.field(default_factory=field.default_factory)
    return msgspec.field()
