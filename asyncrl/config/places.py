"""Where files are: the shipped configurations, and paths that point into a Python package."""

import importlib.util
from pathlib import Path

from asyncrl.errors import ConfigError

PACKAGE_SCHEME = "pkg://"


def configs_folder() -> Path:
    """The folder of the shipped configurations: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "configs", package.parent / "configs"):
        if (folder / "grpo.yaml").is_file():
            return folder
    raise ConfigError("config", str(package), "the shipped configurations are missing: install asyncrl again")


def shipped_configs() -> list[str]:
    """Names that ``config=NAME`` knows."""
    return sorted(file.stem for file in configs_folder().glob("*.yaml"))


def config_file(name: str) -> Path:
    """The YAML file behind ``config=NAME`` or ``config=PATH.yaml``. Raises :class:`ConfigError` when there is none."""
    if not name.endswith(".yaml") and "/" not in name:
        if name not in shipped_configs():
            raise ConfigError("config", name, f"allowed: {', '.join(shipped_configs())}, or the path of a file that ends in .yaml")
        return configs_folder() / f"{name}.yaml"
    file = Path(name).expanduser().absolute()
    if file.suffix != ".yaml" or not file.is_file():
        raise ConfigError("config", name, "allowed: the path of an existing file that ends in .yaml")
    return file


def resolve_path(path: str) -> str:
    """A path of the configuration as a path of this machine.

    ``pkg://PACKAGE/FILE`` is a file or folder inside an importable package, which is not imported; ``~`` is the home folder.
    Raises :class:`ConfigError` for a package that is not there.
    """
    if not path.startswith(PACKAGE_SCHEME):
        return str(Path(path).expanduser())
    package, _, rest = path.removeprefix(PACKAGE_SCHEME).partition("/")
    if ".." in rest.split("/"):
        raise ConfigError("", path, "a pkg:// path stays inside its package")
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        found = None
    if found is None or not found.submodule_search_locations:
        raise ConfigError("", path, f"there is no package {package!r}; the form is pkg://PACKAGE/FILE")
    return str(Path(found.submodule_search_locations[0], rest))
