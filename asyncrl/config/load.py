"""``load_config``: from a command line to the typed :class:`Config`. The only module that knows Hydra and OmegaConf.

Precedence, lowest first: defaults of the schema, group files of the YAML's ``defaults`` list, the YAML itself, the command line.
Nothing is instantiated and nothing is read from the environment: ``_target_`` and every resolver but ``oc.select`` are refused.
"""

import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml  # type: ignore[import-untyped]
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from asyncrl.config.build import listed, split, typed
from asyncrl.config.checks import check, remarks
from asyncrl.config.follow import FOLLOWS, filled
from asyncrl.config.names import allowed_text, alternatives, options, sections
from asyncrl.config.places import config_file, configs_folder, shipped_configs
from asyncrl.config.schema.root import Config
from asyncrl.config.suggest import did_you_mean
from asyncrl.config.tree import Tree, leaves, lookup, merged, plain, put, values
from asyncrl.config.verl_names import judge, known_name, switched_off
from asyncrl.errors import ConfigError

_HEAD = re.compile(r"\$\{\s*([^:}$]*)([:}$]|\Z)")
_LISTED = re.compile(r"[\w.+-]+(,[\w.+-]+)+|[\d.e+-]+_[\d.e+-]+")
"""What Hydra reads as several values, or as one number: ``token_k1,seq_max_k2``, ``0.5_5``."""
_FORM = "options are written key=value, +key=value, ++key=value or ~key; lists as key=[a,b]"
_NO_HYDRA = "there is no such option: Hydra only composes the configuration, its own options have no use here"
_FOREIGN = (HydraException, OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError, RecursionError)


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration and how it came about.

    ``name`` is the word after ``config=``; ``notices`` are lines to print at the start; ``resolved`` is the whole tree in plain
    values, null followers filled in.
    """

    config: Config
    notices: list[str]
    resolved: dict[str, Any]
    name: str


def load_config(argv: Sequence[str]) -> Loaded:
    """Read ``config=NAME`` and the options after it.

    Raises :class:`ConfigError`, which names the key, the value seen and what is allowed; never another error.
    """
    name, arguments = _config_name(argv)
    file = config_file(name)
    return assembled(_composed(file, [_override(argument, file) for argument in arguments]), name)


def assembled(given: Mapping[str, Any], name: str) -> Loaded:
    """The same from a plain tree of given values, as a YAML file holds them; ``name`` is only passed on."""
    _refuse_code(given)
    ours, rest = split(_resolved(merged(msgspec.to_builtins(Config()), given)))
    said = _aliases(ours, given) + _one_process(ours)
    listed(ours)
    config = filled(typed(ours))
    notices = [judge(key, value, critic=config.need_critic) for key, value in leaves(rest)] + said + _idle(config, given)
    check(config)
    return Loaded(config=config, notices=notices + remarks(config), resolved=plain(msgspec.to_builtins(config)), name=name)


def to_yaml(resolved: Mapping[str, Any]) -> str:
    """A resolved tree as YAML that ``config=PATH.yaml`` reads back to the same configuration."""
    return str(OmegaConf.to_yaml(OmegaConf.create(dict(resolved))))


def _config_name(argv: Sequence[str]) -> tuple[str, list[str]]:
    names = [argument.removeprefix("config=") for argument in argv if argument.startswith("config=")]
    if len(names) != 1 or not names[0]:
        shipped = ", ".join(shipped_configs())
        raise ConfigError("config", " ".join(names), f"give config=NAME once; shipped: {shipped}; or config=PATH.yaml")
    return names[0], [argument for argument in argv if not argument.startswith("config=")]


def _override(argument: str, file: Path) -> str:
    """One argument in Hydra's grammar, with ``+`` and no sign turned into ``++``: whether a key exists is judged later."""
    key, _, value = argument.partition("=")
    key = key.lstrip("+~")
    if (value.startswith("~") and "'" not in value) or (_takes_text(key) and _LISTED.fullmatch(value)):
        argument = f"{argument.removesuffix(value)}'{value}'"
    try:
        parsed: Override = OverridesParser.create().parse_override(argument)
    except HydraException as error:
        raise ConfigError(key, argument, _FORM) from error
    if not parsed.key_or_group or argument.startswith("-"):
        raise ConfigError(key, argument, _FORM)
    if re.split(r"[./@]", parsed.key_or_group)[0] == "hydra":
        raise ConfigError(key, argument, _NO_HYDRA)
    if parsed.is_sweep_override():
        raise ConfigError(key, argument, f"one value, not several; {_FORM}")
    if parsed.is_delete() and key not in options() and key not in sections() and known_name(key) is None:
        raise ConfigError(key, argument, "there is no such option", did_you_mean(key))
    if parsed.is_delete() or any((folder / parsed.key_or_group).is_dir() for folder in (file.parent, configs_folder())):
        return argument
    return f"++{argument.lstrip('+')}"


def _takes_text(name: str) -> bool:
    """Whether the value of an option may be a text of the user's."""
    option = options().get(name)
    return option is not None and any("a text" in allowed_text(kind) for kind in alternatives(option.type)) and not option.takes_list


def _composed(file: Path, overrides: list[str]) -> Tree:
    """The YAML, its groups and the command line as a plain tree, interpolations not yet resolved."""
    search = [] if file.parent == configs_folder() else [f"hydra.searchpath=[file://{configs_folder()}]"]
    try:
        with warnings.catch_warnings(), initialize_config_dir(str(file.parent), version_base="1.3"):
            warnings.simplefilter("ignore")
            own = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
            if isinstance(own, dict) and "hydra" in own:
                raise ConfigError("hydra", own["hydra"], _NO_HYDRA)
            composed = compose(file.stem, overrides=search + overrides)
        whole = OmegaConf.to_container(composed, resolve=False)
    except _FOREIGN as error:
        raise _mapped(error, file, overrides) from error
    assert isinstance(whole, dict)
    return {str(key): value for key, value in whole.items()}


def _mapped(error: Exception, file: Path, overrides: list[str]) -> ConfigError:
    text = str(error).strip().splitlines()
    message = text[0] if text else type(error).__name__
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        if override in message or f"'{key}'" in message:
            return ConfigError(key, override, " ".join(text[:2]))
    return ConfigError("config", str(file), " ".join(text[:3]))


def _refuse_code(given: Mapping[str, Any]) -> None:
    """Refuse what would run code or read the environment."""
    for key, value in values(given, ""):
        if "_target_" in key.split("."):
            raise ConfigError(key, value, "a configuration holds values, it does not build objects: _target_ is refused")
        for head, end in _HEAD.findall(value) if isinstance(value, str) else ():
            if (end == ":" and head.strip() != "oc.select") or end == "$":
                raise ConfigError(key, value, "allowed in ${...}: the name of another option, or oc.select:NAME,VALUE")


def _resolved(tree: Tree) -> Tree:
    for key, value in leaves(tree):
        if value == "???":
            raise ConfigError(key, value, f"it must be given, as in {key}=...")
    if not any("${" in value for _, value in values(tree, "") if isinstance(value, str)):
        return tree
    try:
        whole = OmegaConf.to_container(OmegaConf.create(tree), resolve=True)
    except _FOREIGN as error:
        key = str(getattr(error, "full_key", "") or "config")
        raise ConfigError(key, lookup(tree, key), str(error).partition("\n")[0] or "an interpolation that refers to itself") from error
    assert isinstance(whole, dict)
    return {str(key): value for key, value in whole.items()}


def _aliases(ours: Tree, given: Mapping[str, Any]) -> list[str]:
    """Translate other spellings of a value in place; returns what to say about them."""
    said = []
    engine, strategies = "actor_rollout_ref.rollout.name", ("actor_rollout_ref.actor.strategy", "critic.strategy")
    if lookup(ours, engine) == "hf":
        put(ours, engine, "embedded")
        said.append(f"{engine}=hf means the embedded engine")
    named = [strategy for strategy in strategies if lookup(given, strategy) in ("fsdp", "fsdp2")]
    return said + [f"{strategy}={lookup(given, strategy)} means FSDP2" for strategy in named]


def _idle(config: Config, given: Mapping[str, Any]) -> list[str]:
    """What to say about options of a critic that is not there."""
    if config.need_critic:
        return []
    told = [(f"critic.{name}", value) for name, value in leaves(given.get("critic") or {}) if name != "enable"]
    ours = [(name, value) for name, value in told if name in options() and name not in FOLLOWS and value != options()[name].default]
    return [switched_off(name, value) for name, value in ours]


def _one_process(ours: Tree) -> list[str]:
    """With ``debug=inline`` the run has one rank, whatever the configuration says, in place; returns what to say about it."""
    if lookup(ours, "debug") != "inline":
        return []
    said = []
    for name in ("trainer.nnodes", "trainer.n_gpus_per_node"):
        if lookup(ours, name) not in (None, 1):
            said.append(f"debug=inline runs one rank: {name}={lookup(ours, name)} is taken as 1")
        put(ours, name, 1)
    return said
