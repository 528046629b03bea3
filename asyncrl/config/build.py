"""From a resolved plain tree to the typed :class:`Config`: unknown keys, wrong types and ranges are named as the user wrote them."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import msgspec

from asyncrl.config.names import options, sections
from asyncrl.config.schema.root import Config
from asyncrl.config.suggest import did_you_mean_value
from asyncrl.config.tree import Tree, lookup, put, values
from asyncrl.errors import ConfigError

_PLACE = re.compile(r" - at `\$\.?(.*)`$", re.DOTALL)


def split(tree: Mapping[str, Any]) -> tuple[Tree, Tree]:
    """The part of a tree that the schema knows, and all the rest (by dotted name).

    Raises :class:`ConfigError` where a section holds something that is no table.
    """
    ours: Tree = {}
    rest: Tree = {}
    for name, key, value, into in _walk(tree, "", ours):
        if name in options():
            into[key] = value
        else:
            rest[name] = value
    return ours, rest


def _walk(tree: Mapping[str, Any], prefix: str, into: Tree) -> Iterator[tuple[str, str, Any, Tree]]:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if name not in sections():
            yield name, key, value, into
        elif isinstance(value, Mapping):
            yield from _walk(value, f"{name}.", into.setdefault(key, {}))
        else:
            raise ConfigError(name, value, f"{name} is a section; set its options, as in {_first_option(name)}=...")


def _first_option(section: str) -> str:
    return next(name for name in options() if name.startswith(f"{section}."))


def listed(tree: Tree) -> None:
    """Put a list where one value stands for a list (``trainer.logger=console``), in place."""
    for name, option in options().items():
        value = lookup(tree, name)
        if option.takes_list and isinstance(value, str):
            put(tree, name, [value])


def typed(tree: Mapping[str, Any]) -> Config:
    """The configuration. Raises :class:`ConfigError` for the first value of a wrong type or out of range."""
    try:
        config = msgspec.convert(tree, Config)
    except msgspec.ValidationError as error:
        raise _named(error, tree) from None
    for place, value in values(msgspec.to_builtins(config), ""):
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(place, value, "allowed: a finite number")
    return config


def _named(error: msgspec.ValidationError, tree: Mapping[str, Any]) -> ConfigError:
    place = _PLACE.search(str(error))
    path = place.group(1) if place else ""
    cause = error.__cause__
    if isinstance(cause, ConfigError):
        return ConfigError(f"{path}.{cause.key}" if path else cause.key, cause.seen, cause.allowed, cause.hint)
    name = re.sub(r"\[.*", "", path)
    option = options().get(name)
    if option is None:
        return ConfigError(name, lookup(tree, name), str(error).partition(" - at ")[0])
    seen = lookup(tree, name)
    choices = [str(choice) for part in _parts(option.type) for choice in get_args(part) if isinstance(choice, str)]
    return ConfigError(name, seen, f"allowed: {option.allowed}", did_you_mean_value(seen, choices))


def _parts(kind: Any) -> Iterator[Any]:
    yield kind
    for inner in get_args(kind):
        yield from _parts(inner)
