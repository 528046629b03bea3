"""Every option of the schema is read by the code that runs; an option that changes nothing must not exist.

Reads are found in the source by the types that its annotations give: an attribute counts when what it is taken from is
known to be a section (an annotated parameter or field, ``self.x = parameter``, a local name for either, the result of an
annotated function). Where a read is not found, annotate what it starts from.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import fields

from asyncrl.config.names import allowed_text, is_section, options
from asyncrl.config.schema.root import Config
from asyncrl.config.schema.section import Section
from tests.architecture import source

FIXED = {
    "actor_rollout_ref.actor.optim.optimizer_impl": "torch.optim is the only module",
    "critic.optim.optimizer_impl": "the same",
    "actor_rollout_ref.rollout.name": "embedded is the only engine",
    "actor_rollout_ref.rollout.mode": "sessions are always independent",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "an engine is one rank",
}
"""Options with one allowed value: the schema refuses any other, so nothing has to read them."""

CHECKED = {
    "actor_rollout_ref.actor.strategy": "fsdp and fsdp2 are two words for FSDP2",
    "actor_rollout_ref.actor.grad_clip": "null or equal to optim.clip_grad, which is read",
    "critic.strategy": "fsdp and fsdp2 are two words for FSDP2",
    "critic.grad_clip": "null or equal to critic.optim.clip_grad, which is read",
    "trainer.max_critic_ckpt_to_keep": "null or equal to max_actor_ckpt_to_keep, which is read",
    "actor_rollout_ref.rollout.val_kwargs.do_sample": "must agree with the temperature, which is read",
}
"""Options that are only checked against another one, which is the one that counts."""

SCHEMA = source.PACKAGE / "config" / "schema"
NOT_READING = ("asyncrl/config/checks.py", "asyncrl/config/loss_checks.py", "asyncrl/config/plan.py", "asyncrl/config/follow.py")
"""They compare, print and fill options; none of that changes what a run does."""

Types = frozenset[str]
Read = tuple[str, str]
"""Class and attribute."""
NOTHING: Types = frozenset()


def _sections(kind: type[Section]) -> Iterator[type[Section]]:
    yield kind
    for field in fields(kind):
        if is_section(field.type):
            yield from _sections(field.type)


SECTIONS: Mapping[str, type[Section]] = {kind.__name__: kind for kind in _sections(Config)}


class Names:
    """What the names of one file stand for: a class of that name is a section only where it comes from the schema."""

    def __init__(self, path: Path) -> None:
        self._sections = {node.name for node in source.tree(path).body if isinstance(node, ast.ClassDef)} if in_schema(path) else set()
        for node in ast.walk(source.tree(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("asyncrl.config.schema"):
                self._sections |= {alias.name for alias in node.names}

    def types(self, annotation: ast.expr | None) -> Types:
        """The classes that an annotation names; members of a union all of them."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            return self.types(ast.parse(annotation.value, mode="eval").body)
        if isinstance(annotation, ast.BinOp):
            return self.types(annotation.left) | self.types(annotation.right)
        if not isinstance(annotation, ast.Name):
            return NOTHING
        section = annotation.id in SECTIONS and annotation.id in self._sections
        return frozenset({f"section {annotation.id}" if section else annotation.id})


def in_schema(path: Path) -> bool:
    return path.is_relative_to(SCHEMA)


class Package:
    """Types of the attributes of all classes, and of the results of all functions."""

    def __init__(self) -> None:
        self.attributes: dict[Read, Types] = {}
        self.results: dict[str, Types] = {}
        for path in source.modules():
            names = Names(path)
            for node in ast.walk(source.tree(path)):
                if isinstance(node, ast.ClassDef):
                    self._learn_class(node, names, in_schema(path))
                elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    self.results[node.name] = self.results.get(node.name, NOTHING) | names.types(node.returns)

    def _learn_class(self, node: ast.ClassDef, names: Names, section: bool) -> None:
        owner = f"section {node.name}" if section else node.name
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                self._learn(owner, part.target.id, names.types(part.annotation))
            elif isinstance(part, ast.FunctionDef) and part.name == "__init__":
                given = {argument.arg: names.types(argument.annotation) for argument in every_argument(part)}
                for target, value in assignments(part):
                    if isinstance(target, ast.Attribute) and isinstance(value, ast.Name):
                        self._learn(owner, target.attr, given.get(value.id, NOTHING))
            elif isinstance(part, ast.FunctionDef) and any(ast.unparse(each) == "property" for each in part.decorator_list):
                self._learn(owner, part.name, names.types(part.returns))

    def _learn(self, owner: str, attribute: str, types: Types) -> None:
        self.attributes[owner, attribute] = self.attributes.get((owner, attribute), NOTHING) | types


def every_argument(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def assignments(function: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, value) of every assignment below a node; ``a, b = c, d`` is two."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=True)
            else:
                yield target, node.value


class Reader(ast.NodeVisitor):
    """Walks one file and collects what is read from sections."""

    def __init__(self, package: Package, names: Names, schema: bool) -> None:
        self._package, self._names, self._schema = package, names, schema
        self._scopes: list[dict[str, Types]] = [{}]
        self._owner: Types = NOTHING
        self.reads: set[Read] = set()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        before, self._owner = self._owner, frozenset({f"section {node.name}" if self._schema else node.name})
        self.generic_visit(node)
        self._owner = before

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        scope = {argument.arg: self._names.types(argument.annotation) for argument in every_argument(node)}
        if "self" in scope:
            scope["self"] = self._owner
        self._scopes.append(scope)
        for target, value in assignments(node):
            if isinstance(target, ast.Name):
                scope[target.id] = scope.get(target.id, NOTHING) | self.types(value)
        self.generic_visit(node)
        self._scopes.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            self.reads |= {(owner, node.attr) for owner in self.types(node.value) if owner.startswith("section ")}
        self.generic_visit(node)

    def types(self, node: ast.expr) -> Types:
        """The classes that an expression may be an instance of."""
        match node:
            case ast.Name():
                return next((scope[node.id] for scope in reversed(self._scopes) if node.id in scope), NOTHING)
            case ast.Attribute():
                owners = self.types(node.value)
                return frozenset().union(*(self._package.attributes.get((owner, node.attr), NOTHING) for owner in owners))
            case ast.IfExp():
                return self.types(node.body) | self.types(node.orelse)
            case ast.Await():
                return self.types(node.value)
            case ast.Call(func=ast.Name() as function):
                return self._package.results.get(function.id, NOTHING) | frozenset({function.id})
            case ast.Call(func=ast.Attribute() as method):
                return self._package.results.get(method.attr, NOTHING)
        return NOTHING


def reads_of(package: Package, path: Path) -> set[Read]:
    reader = Reader(package, Names(path), in_schema(path))
    reader.visit(source.tree(path))
    return reader.reads


def property_reads(package: Package) -> dict[Read, set[Read]]:
    """What each property of a section reads."""
    found: dict[Read, set[Read]] = {}
    for path in filter(in_schema, source.modules()):
        for node in source.tree(path).body:
            for part in node.body if isinstance(node, ast.ClassDef) else []:
                if isinstance(node, ast.ClassDef) and isinstance(part, ast.FunctionDef) and part.name != "__post_init__":
                    reader = Reader(package, Names(path), schema=True)
                    reader.visit_ClassDef(ast.ClassDef(node.name, [], [], [part], []))
                    found[f"section {node.name}", part.name] = reader.reads
    return found


@cache
def all_reads() -> frozenset[Read]:
    """What the code that runs reads, by itself or through properties of sections."""
    package = Package()
    found: set[Read] = set()
    for path in source.modules():
        if not in_schema(path) and source.name(path) not in NOT_READING:
            found |= reads_of(package, path)
    through = property_reads(package)
    new = found
    while new:
        new = {read for each in new for read in through.get(each, set())} - found
        found = found | new
    return frozenset(found)


def is_read(option: str) -> bool:
    """Whether the option and every section on the way to it are read."""
    kind: type[Section] = Config
    for part in option.split("."):
        field = next(field for field in fields(kind) if field.encode_name == part)
        if (f"section {kind.__name__}", field.name) not in all_reads():
            return False
        kind = field.type if is_section(field.type) else kind
    return True


def test_every_option_is_read_outside_the_schema() -> None:
    unread = [option for option in options() if not is_read(option) and option not in FIXED and option not in CHECKED]
    assert not unread, f"{len(unread)} options are read from nowhere:\n" + "\n".join(unread)


@pytest.mark.parametrize("option", FIXED)
def test_an_option_that_nobody_reads_has_one_allowed_value(option: str) -> None:
    assert not is_read(option), "it is read now: take it out of FIXED"
    words = allowed_text(options()[option].type)
    assert not words.startswith(("one of", "a ", "null", "true or false")), f"{option} may be {words}"


def test_the_search_finds_reads_of_every_kind_and_no_others(tmp_path: Path) -> None:
    text = """
from asyncrl.config.schema.actor import Actor
from asyncrl.config.schema.root import Config
class Holder:
    def __init__(self, config: Config) -> None:
        self._config = config
    def run(self, other):
        data, held = self._config.data, self._config
        print(data.shuffle, other.seed, held.trainer.seed)
def limits(actor: "Actor | None", config):
    actor.clip_low
    config.data.val_files
    return lambda: actor.ppo_epochs
"""
    file = tmp_path / "some.py"
    file.write_text(text)
    package, names = Package(), Names(file)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            package._learn_class(node, names, section=False)
    reader = Reader(package, names, schema=False)
    reader.visit(ast.parse(text))
    assert reader.reads == {
        ("section Config", "data"), ("section Data", "shuffle"), ("section Config", "trainer"), ("section Trainer", "seed"),
        ("section Actor", "clip_low"), ("section Actor", "ppo_epochs"),
    }  # fmt: skip
    assert property_reads(package)["section Actor", "clip_low"] == {("section Actor", "clip_ratio"), ("section Actor", "clip_ratio_low")}
