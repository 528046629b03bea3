"""Plain nested tables: merging, flattening, looking up by dotted name."""

from collections.abc import Iterator, Mapping
from typing import Any

Tree = dict[str, Any]


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """``base`` with the values of ``over`` in it; tables merge, everything else is replaced."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return result


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and value of everything that is no table; an empty table counts as a value."""
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{name}.")
        else:
            yield name, value


def values(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Each single value inside a value, lists and tables opened, with its place (``a.b[0]``)."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from values(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for position, inner in enumerate(value):
            yield from values(inner, f"{name}[{position}]")
    else:
        yield name, value


def plain(value: Any) -> Any:
    """The value with tuples as lists, as YAML and JSON hold them."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def lookup(tree: Mapping[str, Any], name: str) -> Any:
    """The value at a dotted name; None where there is none."""
    here: Any = tree
    for part in name.split("."):
        if not isinstance(here, Mapping) or part not in here:
            return None
        here = here[part]
    return here


def put(tree: Tree, name: str, value: Any) -> None:
    """Set the value at a dotted name whose tables exist."""
    *above, last = name.split(".")
    for part in above:
        tree = tree[part]
    tree[last] = value
