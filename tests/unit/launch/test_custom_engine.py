"""An engine of the user's own in place of the embedded one: how it is found, and what is refused."""

from pathlib import Path

import pytest

from asyncrl.config.load import load_config
from asyncrl.errors import ConfigError
from asyncrl.launch.models import engine_recipe
from asyncrl.launch.preflight import preflight
from asyncrl.rollout.scripted import ScriptedEngine

CODE = """
from asyncrl.rollout.scripted import ScriptedEngine

def seven(recipe):
    return ScriptedEngine(lambda request: [7], max_num_seqs=recipe.max_num_seqs, max_model_len=recipe.max_model_len)

number = 7
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "engines.py"
    path.write_text(CODE)
    return str(path)


def options(file: str, name: str) -> list[str]:
    section = "actor_rollout_ref.rollout.custom_engine"
    return ["config=quickstart", f"{section}.path={file}", f"{section}.name={name}"]


def test_the_recipe_opens_the_engine_of_the_user(file: str) -> None:
    config = load_config(options(file, "seven")).config
    preflight(config)
    engine = engine_recipe(config, "cpu").open()
    assert isinstance(engine, ScriptedEngine)
    # The quickstart's 8 tokens of a prompt and 4 of an answer.
    assert engine.max_model_len == 12


@pytest.mark.parametrize(
    ("name", "said"),
    [("eight", "defines no such name; it has ScriptedEngine, seven"), ("number", "it is a int, expected a class or function")],
)
def test_what_makes_no_engine_is_refused_before_anything_starts(file: str, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        preflight(load_config(options(file, name)).config)
    assert "actor_rollout_ref.rollout.custom_engine.name" in str(caught.value)


def test_without_one_the_recipe_is_of_the_embedded_engine() -> None:
    assert engine_recipe(load_config(["config=quickstart"]).config, "cpu").custom is None
