"""A checkpoint as a Hugging Face folder that plain transformers loads."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.config.places import resolve_path
from asyncrl.errors import CheckpointError
from asyncrl.launch.resume import CONFIG_FILE
from asyncrl.training.checkpoint import CheckpointFolder

WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json")
"""What an exported folder does not take over from the start model."""


def export(run: Path, target: Path, say: Callable[[str], None]) -> int:
    """Write the newest good checkpoint of ``run`` into ``target``, a folder that is not there yet; return its step.

    Configuration, tokenizer and templates are those of the model that the run started from. Raises CheckpointError when
    there is no run, no checkpoint or no room for the folder.
    """
    if not (run / CONFIG_FILE).is_file():
        raise CheckpointError(f"{run} is no run folder: it has no {CONFIG_FILE}")
    if target.exists():
        raise CheckpointError(f"{target} exists already; name a folder that does not")
    found = CheckpointFolder(str(run), None).newest(say)
    if found is None:
        raise CheckpointError(f"{run} has no checkpoint that can be read; trainer.save_freq decides how often one is written")
    settings = msgspec.yaml.decode((run / CONFIG_FILE).read_bytes(), type=dict[str, Any])
    model = settings["actor_rollout_ref"]["model"]
    source = Path(resolve_path(model["path"]))
    draft = target.with_name(f"{target.name}.partial")
    shutil.copytree(source, draft, ignore=shutil.ignore_patterns(*WEIGHTS))
    if model["tokenizer_path"]:
        shutil.copytree(resolve_path(model["tokenizer_path"]), draft, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*WEIGHTS))
    from asyncrl.training.sharded import read_weights  # imports torch

    read_weights(found.folder, str(source), draft / "model.safetensors", trust_remote_code=bool(model["trust_remote_code"]))
    draft.rename(target)
    return found.step
