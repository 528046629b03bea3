"""Pictures of the two-digit runs, drawn from their run folders: ``python -m asyncrl.quickstart.pictures``.

``generalise OUT.png RUN`` draws held-out beside trained accuracy of one run;
``controls OUT.png RIGHT LR0 REVERSED COIN`` draws the held-out accuracy of a run beside those of its three controls.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.observe.curve import read_metrics

HELD_OUT = "val-core/add2_heldout/acc/mean@1"
TRAINED = "val-core/add2_train/acc/mean@1"
SAMPLED = "critic/acc/mean"
CONTROLS = ("right reward", "learning rate 0", "reversed reward", "coin")


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a picture: values of a metric by step."""

    label: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    marker: str = "o"


def curve(records: Sequence[dict[str, Any]], metric: str, label: str, marker: str = "o") -> Curve:
    """The records that hold ``metric``. Raises ValueError when none does."""
    points = [(int(record["step"]), float(record[metric])) for record in records if record.get(metric) is not None]
    if not points:
        raise ValueError(f"no record holds {metric}: is this a run of config=quickstart_generalise?")
    return Curve(label, tuple(step for step, _ in points), tuple(value for _, value in points), marker)


def generalise_curves(run: Path) -> list[Curve]:
    """Greedy accuracy on held-out and on trained prompts, and the share right among the sampled answers."""
    records = read_metrics(run)
    return [
        curve(records, HELD_OUT, "held-out pairs (greedy)"),
        curve(records, TRAINED, "trained pairs (greedy)", "s"),
        curve(records, SAMPLED, "sampled answers to training prompts", ""),
    ]


def control_curves(runs: Sequence[Path]) -> list[Curve]:
    """Held-out accuracy of the runs, in the order of ``CONTROLS``."""
    return [curve(read_metrics(run), HELD_OUT, label) for label, run in zip(CONTROLS, runs, strict=True)]


def draw(curves: Sequence[Curve], title: str, picture: Path) -> None:
    """Write one picture with all ``curves``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for line in curves:
        axes.plot(line.steps, line.values, marker=line.marker, markersize=4, label=line.label, alpha=1.0 if line.marker else 0.5)
    axes.set(title=title, xlabel="step", ylabel="share right", ylim=(0, 1))
    axes.legend(loc="best")
    figure.tight_layout()
    figure.savefig(picture, dpi=110)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> int:
    """Draw the picture that the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m asyncrl.quickstart.pictures", description="Draw the two-digit runs.")
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind, runs in (("generalise", ("RUN",)), ("controls", ("RIGHT", "LR0", "REVERSED", "COIN"))):
        one = kinds.add_parser(kind)
        one.add_argument("picture", type=Path, metavar="OUT.png")
        one.add_argument("runs", type=Path, nargs=len(runs), metavar=runs if len(runs) > 1 else runs[0], help="run folders")
    options = parser.parse_args(arguments)
    if options.kind == "generalise":
        draw(generalise_curves(options.runs[0]), "Two-digit sums: held-out and trained pairs", options.picture)
    else:
        draw(control_curves(options.runs), "Two-digit sums, held-out pairs: the run and its controls", options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
