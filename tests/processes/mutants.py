"""Faults put into a module of asyncrl by editing its source, for as long as a block lasts.

The edited source is compiled, and the module's functions get the new code. A function stays the object that it was, so that who imported
it by name, and the tables that hold it, run the fault as well.
"""

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType


@dataclass(frozen=True)
class Mutation:
    """A fault: pieces that stand once in the source of a module, and what is put there instead."""

    module: str
    """Below ``asyncrl``."""
    edits: Mapping[str, str]


@contextlib.contextmanager
def mutated(mutation: Mutation) -> Iterator[None]:
    """A block with the fault. Raises LookupError for a piece that does not stand there once, and for a fault that changes no function."""
    module = importlib.import_module(f"asyncrl.{mutation.module}")
    assert module.__file__ is not None
    source = Path(module.__file__).read_text()
    for old, new in mutation.edits.items():
        if source.count(old) != 1:
            raise LookupError(f"{old!r} stands {source.count(old)} times in {mutation.module}")
        source = source.replace(old, new)
    faulty = {code.co_qualname: code for code in _codes(compile(source, module.__file__, "exec", dont_inherit=True))}
    before = {function: function.__code__ for function in _functions(module)}
    changed = [function for function, code in before.items() if code != faulty[function.__qualname__]]
    if not changed:
        raise LookupError(f"{mutation.edits} changes no function of {mutation.module}")
    try:
        for function in changed:
            function.__code__ = faulty[function.__qualname__]
        yield
    finally:
        for function in changed:
            function.__code__ = before[function]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """The functions and methods whose source is the module's; those that a dataclass makes have another."""
    for value in vars(module).values():
        for member in [*vars(value).values()] if isinstance(value, type) else [value]:
            function = member.fget if isinstance(member, property) else member
            function = function.__func__ if isinstance(function, classmethod | staticmethod) else function
            while isinstance(function, FunctionType) and "__wrapped__" in vars(function):
                function = vars(function)["__wrapped__"]
            if isinstance(function, FunctionType) and function.__code__.co_filename == module.__file__:
                yield function
