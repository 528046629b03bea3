"""A function of the user, found by path and name. The configuration is trusted: loading a file runs its code."""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.rewards.function import FunctionReward, RewardFunction
from asyncrl.rewards.pool import WorkerPool
from asyncrl.rewards.rules import default_compute_score

REWARD = "reward.custom_reward_function"
"""The section whose ``path`` and ``name`` an error names."""
PACKAGE_PREFIX = "pkg://"
"""A path that begins so names an importable module instead of a file."""


def load_reward(path: str | None, name: str, pool: WorkerPool, kwargs: Mapping[str, Any] | None = None) -> FunctionReward:
    """The reward of the configuration; without ``path`` the built-in rules, chosen by ``data_source``.

    Raises ConfigError for a file, name or signature that does not fit.
    """
    return FunctionReward(load_function(path, name) if path else default_compute_score, pool, kwargs)


def load_function(path: str, name: str) -> RewardFunction:
    """The reward function ``name`` of ``path``. Raises ConfigError when there is none."""
    function = load_object(path, name, REWARD)
    if not callable(function):
        raise ConfigError(f"{REWARD}.name", name, f"it is a {type(function).__name__} in {path}, expected a function")
    return function  # type: ignore[no-any-return]


def load_object(path: str, name: str, section: str) -> Any:
    """What the file (or ``pkg://`` module) ``path`` calls ``name``. Raises ConfigError, which names ``section``, when there is none."""
    module = _import_package(path, section) if path.startswith(PACKAGE_PREFIX) else _import_file(path, section)
    public = vars(module)
    if name not in public:
        known = [key for key, value in public.items() if callable(value) and not key.startswith("_")]
        raise ConfigError(f"{section}.name", name, f"{path} defines no such name; it has {', '.join(known) or 'no function'}")
    return public[name]


def _import_package(path: str, section: str) -> ModuleType:
    try:
        return importlib.import_module(path.removeprefix(PACKAGE_PREFIX))
    except Exception as error:  # whatever the trusted module raises
        raise ConfigError(f"{section}.path", path, f"it cannot be imported: {type(error).__name__}: {error}") from error


def _import_file(path: str, section: str) -> ModuleType:
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise ConfigError(f"{section}.path", path, "no such file")
    # One name for one file, in no package's way; dataclasses look their module up in sys.modules.
    name = f"asyncrl_user_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{section}.path", path, "expected a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the trusted file raises
        del sys.modules[name]
        raise ConfigError(f"{section}.path", path, f"running it raised {type(error).__name__}: {error}") from error
    return module
