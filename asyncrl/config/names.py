"""Every option of the schema by its dotted name: type, default, meaning, and what a value may be."""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo, fields

from asyncrl.config.schema.root import Config
from asyncrl.config.schema.section import Section
from asyncrl.config.tree import plain


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One option."""

    name: str
    type: Any
    default: Any
    meaning: str

    @property
    def allowed(self) -> str:
        """What a value may be, in words."""
        return allowed_text(self.type)

    @property
    def takes_table(self) -> bool:
        """Whether the value is a table whose keys are the user's."""
        return any(get_origin(part) is dict for part in alternatives(self.type))

    @property
    def takes_list(self) -> bool:
        """Whether the value is a list of any length, for which one value alone may stand."""
        return any(get_origin(part) is tuple and Ellipsis in get_args(part) for part in alternatives(self.type))


def alternatives(kind: Any) -> tuple[Any, ...]:
    """The members of a union, or the type itself."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def allowed_text(kind: Any) -> str:
    """A type in words, such as ``null, or a whole number >= 1``."""
    parts = alternatives(kind)
    words = [_single(part) for part in parts if part is not NoneType]
    return ", or ".join((["null"] if NoneType in parts else []) + words)


def _single(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        choices = [str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in arguments]
        return choices[0] if len(choices) == 1 else "one of " + ", ".join(choices)
    if origin is Annotated:
        meta = arguments[1]
        return f"{meta.ge:g}" if meta.ge is not None and meta.ge == meta.le else f"{_single(arguments[0])}{_range(meta)}"
    if origin is tuple:
        inner = f"({_single(arguments[0])})"
        return f"a list, each {inner}" if Ellipsis in arguments else f"a list of {len(arguments)}, each {inner}"
    if origin is dict:
        return "a table {key: value}"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[kind]


def _range(meta: msgspec.Meta) -> str:
    if meta.min_length is not None:
        return " that is not empty"
    bounds = [(">", meta.gt), (">=", meta.ge), ("<", meta.lt), ("<=", meta.le)]
    text = " and ".join(f"{sign} {bound if isinstance(bound, int) else f'{bound:g}'}" for sign, bound in bounds if bound is not None)
    return f" {text}" if text else ""


def is_section(kind: Any) -> bool:
    """Whether a field's type is a section of the tree."""
    return isinstance(kind, type) and issubclass(kind, Section)


@cache
def field_meanings(section: type[Section]) -> Mapping[str, str]:
    """The docstring under each field of a section, by attribute name; a section above it knows what it does not repeat."""
    body = ast.parse(textwrap.dedent(inspect.getsource(section))).body[0]
    assert isinstance(body, ast.ClassDef)
    above = section.__base__
    found: dict[str, str] = dict(field_meanings(above)) if above is not None and issubclass(above, Section) else {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = inspect.cleandoc(ast.literal_eval(text.value))
    return MappingProxyType(found)


def _default(field: FieldInfo) -> Any:
    value = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
    return plain(msgspec.to_builtins(value))


def _walk(section: type[Section], prefix: str) -> Iterator[tuple[str, FieldInfo, type[Section]]]:
    for field in fields(section):
        name = f"{prefix}{field.encode_name}"
        yield name, field, section
        if is_section(field.type):
            yield from _walk(field.type, f"{name}.")


@cache
def options() -> Mapping[str, Option]:
    """All options, in the order of the schema. ``meaning`` is left empty here: :func:`describe` reads it from the source."""
    return MappingProxyType(
        {
            name: Option(name=name, type=field.type, default=_default(field), meaning="")
            for name, field, _ in _walk(Config, "")
            if not is_section(field.type)
        }
    )


@cache
def sections() -> frozenset[str]:
    """The dotted names of all sections."""
    return frozenset(name for name, field, _ in _walk(Config, "") if is_section(field.type))


def dotted_names() -> dict[str, str]:
    """Each option's dotted name and what its value may be, in words."""
    return {name: option.allowed for name, option in options().items()}


@cache
def described() -> Mapping[str, Option]:
    """:func:`options` with their meanings."""
    meanings = {name: field_meanings(section).get(field.name, "") for name, field, section in _walk(Config, "")}
    return MappingProxyType({name: msgspec.structs.replace(option, meaning=meanings[name]) for name, option in options().items()})


def describe(key: str) -> str:
    """The docstring of an option or section. Raises ``KeyError`` for a name that is neither."""
    for name, field, section in _walk(Config, ""):
        if name == key:
            return field_meanings(section).get(field.name, "")
    raise KeyError(key)
