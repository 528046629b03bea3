"""Scripted rows that another policy than the trained one sampled, and a run over them, for tests of losses and corrections."""

import copy
import functools
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import torch
import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf

from asyncrl.config.load import assembled
from asyncrl.config.places import configs_folder
from asyncrl.config.schema import Config
from asyncrl.config.tree import Tree, merged
from asyncrl.launch.inline import open_session
from tests.dense_critic import DenseCritic
from tests.dense_reference import response_tokens
from tests.processes.scenario import run_scenario
from tests.processes.test_worked_example import SMALL, A, B, check_step, model, output

RATE = 0.02
"""Large enough that the second pass over a mini-batch leaves the clips below, and small enough not to magnify rounding."""
CLIPS = {"clip_low": 0.01, "clip_high": 0.02, "clip_c": 1.03}
"""Narrow, so that some token is beyond each."""
ACTOR = "actor_rollout_ref.actor"
OPTIONS = (
    *SMALL,
    f"{ACTOR}.optim.lr={RATE}",
    f"{ACTOR}.clip_ratio_low=0.01",
    f"{ACTOR}.clip_ratio_high=0.02",
    f"{ACTOR}.clip_ratio_c=1.03",
)
TWICE = (f"{ACTOR}.ppo_mini_batch_size=1", f"{ACTOR}.ppo_epochs=2")
"""Four optimizer steps, all but the first with ratios that are not 1."""


@functools.cache
def start() -> Any:
    """The policy before any step; not to be trained."""
    return model()


def scripted() -> list[Any]:
    """Two prompts: a session with two outputs, masks with zeros inside and at the end, an empty answer; off policy, both ways."""
    return copy.deepcopy(_scripted())


@functools.cache
def _scripted() -> list[Any]:
    first = [[output(A, [7, 13], 1.0)], [output(A, [8, 5, 13], 0.0)], [output(A, [9, 9, 13], 9.0), output([*A, 9], [2, 13], 0.5)]]
    second = [[output(B, [1, 5, 5, 13], 0.5, [1, 0, 0, 1])], [output(B, [1, 3, 5], 1.0, [1, 1, 0])], [output(B, [], 0.75)]]
    draw, policy = torch.Generator().manual_seed(3), start()
    for row in (row for group in (first, second) for session in group for row in session):
        with torch.no_grad():
            now = response_tokens(policy, [row], 1.0)[0][0]
        moved = (now + 0.6 * torch.randn(len(now), generator=draw)).clamp(max=-0.01)
        row["log_probs"] = (moved * torch.tensor(row["response_mask"])).tolist()
    return [first, second]


def order(record: dict[str, Any], epochs: int) -> dict[str, list[Any]]:
    """The optimizer steps of ``TWICE``: one for each prompt and pass."""
    uids = [tag["uid"] for tag in record["tags"].values()]
    prompts = [[row for row, each in enumerate(uids) if each == uid] for uid in dict.fromkeys(uids)]
    return {"mini_batches": prompts * epochs, "passes": [epoch for epoch in range(epochs) for _ in prompts]}


NUMBER = re.compile(r"-?\d+(\.\d+)?e-?\d+")
"""In a form that YAML takes for a text."""


@functools.cache
def quickstart() -> Tree:
    """The shipped quickstart as a table: composing files for each of many runs would take longer than the runs."""
    held = OmegaConf.to_container(OmegaConf.load(configs_folder() / "quickstart.yaml"), resolve=False)
    assert isinstance(held, dict)
    return {str(key): value for key, value in held.items() if key != "defaults"}


def table(option: str) -> Tree:
    """``a.b=1`` as ``{"a": {"b": 1}}``; a list of names, a band and a path are texts."""
    name, _, text = option.partition("=")
    value: Any = text if "_" in text or "/" in text else json.loads(text) if NUMBER.fullmatch(text) else yaml.safe_load(text)
    for part in reversed(name.split(".")):
        value = {part: value}
    return dict(value)


def in_folder(config: Config, folder: Path) -> Config:
    return msgspec.structs.replace(config, trainer=msgspec.structs.replace(config.trainer, default_local_dir=str(folder)))


async def run(folder: Path, steps: list[Any], *options: str) -> list[dict[str, Any]]:
    """The records of the steps of an inline run."""
    loaded = assembled(functools.reduce(merged, map(table, ("debug=inline", *OPTIONS, *options)), quickstart()), "quickstart")
    loaded = msgspec.structs.replace(loaded, config=in_folder(loaded.config, folder / "run"))
    async with open_session(loaded) as session:
        await run_scenario({"out": str(folder), "steps": steps}, session)
    return [json.loads((folder / f"step_{number + 1}.json").read_text()) for number in range(len(steps))]


def check_run(
    folder: Path, records: list[dict[str, Any]], epochs: int = 1, critic: DenseCritic | None = None, **settings: Any
) -> list[dict[str, Any]]:
    """Hold the records against the dense steps, which are returned."""
    trained, reference = copy.deepcopy(start()), start()
    found = []
    for number, record in enumerate(records):
        changes = CLIPS | (order(record, epochs) if epochs > 1 else {}) | {"lr": RATE} | settings
        found.append(check_step(record, folder / f"weights_{number + 1}.safetensors", trained, reference, critic, **changes))
        assert max(record["numbers"]["actor/by_update/grad_norm"]) > 1e-3
    return found
