"""The quickstart as a plain tree, so that a test of one option need not compose files."""

from collections.abc import Callable
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from asyncrl.config.places import configs_folder
from asyncrl.config.tree import Tree, merged


@pytest.fixture(scope="session")
def quickstart_with() -> Callable[[str], Tree]:
    """A function of one ``key=value`` that gives the shipped quickstart's given values with it."""
    loaded = OmegaConf.to_container(OmegaConf.load(configs_folder() / "quickstart.yaml"), resolve=False)
    assert isinstance(loaded, dict)
    base = {str(key): value for key, value in loaded.items() if key != "defaults"}
    parser = OverridesParser.create()

    def with_option(argument: str) -> Tree:
        parsed = parser.parse_override(argument)
        value: Any = parsed.value()
        for part in reversed(parsed.key_or_group.split(".")):
            value = {part: value}
        return merged(base, value)

    return with_option
