"""Pictures of the shipped runs, drawn from their run folders: ``python -m asyncrl.quickstart.pictures``.

``generalise OUT.png RUN`` draws held-out beside trained accuracy of one run;
``controls OUT.png RIGHT LR0 REVERSED COIN`` draws the held-out accuracy of a run beside those of its three controls;
``modes OUT.png SYNC COLOCATE SEPARATE`` draws the quickstart in its three modes, by step and by the clock, and prints the table.
"""

import argparse
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from asyncrl.observe.curve import read_metrics

HELD_OUT = "val-core/add2_heldout/acc/mean@1"
TRAINED = "val-core/add2_train/acc/mean@1"
SAMPLED = "critic/acc/mean"
ONE_DIGIT = "val-core/add1_train/acc/mean@1"
MODES = ("sync", "colocate_async", "separate_async")
KINDS = {"generalise": ("RUN",), "controls": ("RIGHT", "LR0", "REVERSED", "COIN"), "modes": ("SYNC", "COLOCATE", "SEPARATE")}
"""The pictures, and the runs that each is drawn from."""
CONTROLS = ("right reward", "learning rate 0", "reversed reward", "coin")


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a picture: values of a metric by step, or by the seconds until it."""

    label: str
    steps: tuple[float, ...]
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


def clock(records: Sequence[dict[str, Any]]) -> list[float]:
    """Seconds of steps and validations until the end of each record."""
    spent = [float(record.get("timing_s/step", 0.0)) + float(record.get("timing_s/testing", 0.0)) for record in records]
    return list(itertools.accumulate(spent))


def mode_curves(runs: Sequence[Path]) -> tuple[list[Curve], list[Curve]]:
    """Greedy accuracy of the runs, in the order of ``MODES``: by step, and by the clock."""
    by_step: list[Curve] = []
    by_clock: list[Curve] = []
    for run, mode in zip(runs, MODES, strict=True):
        records = read_metrics(run)
        seconds = [until for until, record in zip(clock(records), records, strict=True) if record.get(ONE_DIGIT) is not None]
        by_step.append(curve(records, ONE_DIGIT, mode))
        by_clock.append(replace(by_step[-1], steps=tuple(seconds)))
    return by_step, by_clock


def mode_table(by_step: Sequence[Curve], by_clock: Sequence[Curve]) -> str:
    """Accuracy and seconds of each mode at each validation, as a table of Markdown. All runs validate at the same steps."""
    lines = [f"| step | {' | '.join(line.label for line in by_step)} |", f"|---:|{'---:|' * len(by_step)}"]
    for place, step in enumerate(by_step[0].steps):
        cells = [f"{line.values[place]:.2f} ({beside.steps[place]:.0f} s)" for line, beside in zip(by_step, by_clock, strict=True)]
        lines.append(f"| {step} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw_modes(by_step: Sequence[Curve], by_clock: Sequence[Curve], picture: Path) -> None:
    """Write one picture: by step on the left, by the clock on the right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, sides = pyplot.subplots(1, 2, sharey=True, figsize=(10, 4))
    for axes, curves, label in zip(sides, (by_step, by_clock), ("step", "seconds"), strict=True):
        for line in curves:
            axes.plot(line.steps, line.values, marker=line.marker, markersize=4, label=line.label)
        axes.set(xlabel=label, ylim=(0, 1))
    sides[0].set(ylabel="share right (greedy)")
    sides[1].legend(loc="lower right")
    figure.suptitle("One-digit sums in the three modes")
    figure.tight_layout()
    figure.savefig(picture, dpi=110)
    pyplot.close(figure)


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
    parser = argparse.ArgumentParser(prog="python -m asyncrl.quickstart.pictures", description="Draw the shipped runs.")
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind, runs in KINDS.items():
        one = kinds.add_parser(kind)
        one.add_argument("picture", type=Path, metavar="OUT.png")
        one.add_argument("runs", type=Path, nargs=len(runs), metavar=runs if len(runs) > 1 else runs[0], help="run folders")
    options = parser.parse_args(arguments)
    if options.kind == "modes":
        by_step, by_clock = mode_curves(options.runs)
        draw_modes(by_step, by_clock, options.picture)
        print(mode_table(by_step, by_clock))
    elif options.kind == "generalise":
        draw(generalise_curves(options.runs[0]), "Two-digit sums: held-out and trained pairs", options.picture)
    else:
        draw(control_curves(options.runs), "Two-digit sums, held-out pairs: the run and its controls", options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
