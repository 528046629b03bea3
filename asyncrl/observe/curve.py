"""The learning curve of a run as a picture, read from its ``metrics.jsonl``."""

from pathlib import Path
from typing import Any

import msgspec


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Every record of ``metrics.jsonl``, in order; a torn last line is left out."""
    records: list[dict[str, Any]] = []
    for line in (folder / "metrics.jsonl").read_bytes().splitlines():
        try:
            records.append(msgspec.json.decode(line, type=dict[str, Any]))
        except msgspec.DecodeError:
            break
    return records


def draw_curve(folder: Path, title: str) -> Path:
    """Write ``learning_curve.png`` into the run folder: validation and training reward above, groups without spread below."""
    from matplotlib.figure import Figure  # a figure of its own is drawn without a screen, and without pyplot's state

    records = read_metrics(folder)
    figure = Figure(figsize=(8, 5.5))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for name in _names(records, "val-core/"):
        above.plot(*_series(records, name), marker="o", label=f"{name.removeprefix('val-core/')} (greedy)")
    above.plot(*_series(records, "critic/score/mean"), alpha=0.6, label="reward of the sampled answers")
    above.set_ylabel("share right")
    above.set_ylim(0, 1)
    above.legend(loc="lower right")
    for name, label in (("zero_spread", "no spread"), ("all_right", "all right"), ("all_wrong", "all wrong")):
        below.plot(*_series(records, f"training/groups/{name}"), label=label)
    below.set_ylabel("groups")
    below.set_xlabel("step")
    below.legend(loc="upper left", fontsize="small")
    above.set_title(title)
    path = folder / "learning_curve.png"
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    return path


def _names(records: list[dict[str, Any]], prefix: str) -> list[str]:
    return list(dict.fromkeys(name for record in records for name in record if name.startswith(prefix)))


def _series(records: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    points = [(record["step"], record[name]) for record in records if record.get(name) is not None]
    return [step for step, _ in points], [value for _, value in points]
