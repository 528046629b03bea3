"""What every section of the configuration is: a frozen struct that knows all its fields and takes no other."""

from typing import TypeVar

import msgspec

from asyncrl.errors import ConfigError

T = TypeVar("T")


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections. Checks of one section stand in its ``__post_init__`` and raise by :func:`refuse`."""


def refuse(field: str, seen: object, allowed: str) -> ConfigError:
    """The error for one field of a section.

    ``field`` is relative to the section; the loader puts the section's dotted name before it.
    """
    return ConfigError(field, seen, allowed)


def known(value: T | None, name: str) -> T:
    """A value that is filled from another section when it is null.

    Raises ``ValueError`` for a tree built by hand that was not passed through ``asyncrl.config.follow.filled``.
    """
    if value is None:
        raise ValueError(f"{name} is null: build the configuration with load_config(), or pass it through filled()")
    return value
