"""The tables of the documentation that are made from declarations: ``python -m tests.docs.generated`` writes them anew."""

import re
from collections.abc import Callable
from typing import Any

from asyncrl.config.names import Option, described
from asyncrl.config.verl_names import default_of, defaults, in_verl
from asyncrl.workers.fields import STAGES, field_table
from tests.docs.pages import DOCS

REASONS = {
    "actor_rollout_ref.actor.clip_ratio_low": "null = `clip_ratio`, so that one option moves both sides",
    "actor_rollout_ref.actor.clip_ratio_high": "null = `clip_ratio`",
    "actor_rollout_ref.actor.grad_clip": "verl does not read it; `optim.clip_grad` counts",
    "actor_rollout_ref.actor.fsdp_config.dtype": "null = bfloat16 on a GPU, float32 on a CPU",
    "actor_rollout_ref.ref.fsdp_config.dtype": "the same",
    "actor_rollout_ref.rollout.dtype": "the same",
    "actor_rollout_ref.rollout.name": "verl has no default",
    "actor_rollout_ref.rollout.checkpoint_engine.backend": "null = what the mode takes: naive, in separate_async nccl",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "the embedded engine runs on one rank",
    "critic.model.path": "null = the policy's",
    "critic.fsdp.dtype": "null = bfloat16 on a GPU, float32 on a CPU",
    "critic.grad_clip": "verl does not read it; `critic.optim.clip_grad` counts",
    "reward.reward_kwargs.overlong_buffer_cfg.enable": "verl has no default",
    "reward.reward_kwargs.overlong_buffer_cfg.len": "the same",
    "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor": "the same",
    "reward.reward_kwargs.overlong_buffer_cfg.log": "the same",
    "trainer.logger": "files on this machine; no account needed",
    "trainer.nnodes": "null = torchrun's",
    "trainer.n_gpus_per_node": "null = torchrun's",
    "trainer.device": "null = cuda if there is one, else cpu",
    "trainer.default_local_dir": "null = a new folder for each run",
}
"""Why a default is not verl's, for the options where that is not only another spelling of the same value."""


def stage_table() -> str:
    """Each stage with its role, its reads and its writes."""
    lines = ["| stage | runs on | reads | writes |", "|---|---|---|---|"]
    lines += [f"| `{stage.name}` | {stage.role} | {_names(stage.reads)} | {_names(stage.writes)} |" for stage in STAGES]
    return "\n".join(lines)


def own_options() -> str:
    """The options that verl does not have."""
    return option_table([option for name, option in described().items() if not in_verl(name)])


def differing() -> dict[str, tuple[Any, Any]]:
    """verl's default and ours, where a run without the option would go another way."""
    found = {}
    for name, option in described().items():
        if name not in defaults():
            continue
        theirs = default_of(name)
        same = theirs == option.default or [theirs] == option.default or _follows(defaults()[name], option)
        if not same:
            found[name] = (theirs, option.default)
    return found


def _follows(text: str, option: Option) -> bool:
    """Whether verl interpolates another option and ours follows it as null."""
    return text.startswith("${") and option.default is None and "null = ``" in option.meaning and "runs/" not in option.meaning


def default_table() -> str:
    """The differing defaults with their reasons."""
    lines = ["| option | verl | here | why |", "|---|---|---|---|"]
    lines += [f"| `{name}` | {_value(theirs)} | {_value(ours)} | {REASONS[name]} |" for name, (theirs, ours) in differing().items()]
    return "\n".join(lines)


def option_table(options: list[Option]) -> str:
    """Name, values, default and meaning."""
    lines = ["| option | value | default | meaning |", "|---|---|---|---|"]
    lines += [f"| `{each.name}` | {_cell(each.allowed)} | {_value(each.default)} | {_cell(each.meaning)} |" for each in options]
    return "\n".join(lines)


def all_options() -> str:
    """Every option, one table for each main section."""
    by_section: dict[str, list[Option]] = {}
    for name, option in described().items():
        head, *rest = name.split(".")
        section = f"{head}.{rest[0]}" if head == "actor_rollout_ref" else head
        by_section.setdefault(section, []).append(option)
    return "\n\n".join(f"## {section}\n\n{option_table(options)}" for section, options in by_section.items())


TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "stages": ("a_step_in_detail.md", stage_table),
    "fields": ("a_step_in_detail.md", field_table),
    "own": ("configuration.md", own_options),
    "defaults": ("configuration.md", default_table),
    "options": ("options.md", all_options),
}
"""Name of the markers, page, and what stands between them."""


def between(text: str, name: str) -> str:
    """What stands between the markers of a table."""
    found = re.search(rf"<!-- {name}:begin -->\n(.*?)<!-- {name}:end -->", text, re.DOTALL)
    assert found is not None, f"no markers for {name}"
    return found.group(1).strip()


def write() -> None:
    """Write every table into its page."""
    for name, (page, make) in TABLES.items():
        text = (DOCS / page).read_text(encoding="utf-8")
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        before, after = text.partition(begin)[0], text.partition(end)[2]
        (DOCS / page).write_text(f"{before}{begin}\n{make()}\n{end}{after}", encoding="utf-8")


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "-"


def _value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return _cell(f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value))


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    write()
