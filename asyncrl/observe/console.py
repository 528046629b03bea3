"""What a person sees: a header, one line per step, a table at the end."""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table

from asyncrl.observe.trackers import Numbers


class ConsoleTracker:
    """One line per step; the line holds what tells whether the run learns and how long it takes."""

    def __init__(self, total_steps: int, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._total = total_steps
        self._spent: list[float] = []
        self._first: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def header(self, title: str, lines: Sequence[tuple[str, str]]) -> None:
        """What runs where."""
        width = max(len(name) for name, _ in lines)
        print(title, *(f"  {name:<{width}}  {text}" for name, text in lines), sep="\n", file=self._stream, flush=True)

    def log(self, step: int, numbers: Numbers) -> None:
        values = {name: float(value) for name, value in numbers.items() if isinstance(value, int | float)}
        parts = [f"step {step:>{len(str(self._total))}}/{self._total}"]
        if step and "critic/score/mean" in values:
            self._spent.append(values["timing_s/step"] + values.get("timing_s/testing", 0.0))
            parts += self._training(step, values)
        parts += [f"{_short(name)} {value:.3f}" for name, value in values.items() if name.startswith("val-core/")]
        for name, value in values.items():
            if name.startswith("val-core/") or name == "critic/score/mean":
                self._first.setdefault(name, value)
                self._last[name] = value
        print(" | ".join(parts), file=self._stream, flush=True)

    def resume(self, step: int) -> None:
        """What was printed stays printed."""

    def finish(self) -> None:
        """The table at the end: the first and the last value of what was to be learned, and the time."""
        if not self._first:
            return
        table = Table(title="what changed", title_justify="left")
        for column in ("metric", "first", "last"):
            table.add_column(column, justify="left" if column == "metric" else "right")
        for name, first in self._first.items():
            table.add_row(name, f"{first:.3f}", f"{self._last[name]:.3f}")
        if self._spent:
            table.add_row("seconds per step (median)", "", f"{sorted(self._spent)[len(self._spent) // 2]:.2f}")
        Console(file=self._stream, width=100).print(table)

    def _training(self, step: int, values: Mapping[str, float]) -> list[str]:
        recent = self._spent[-10:]
        left = (self._total - step) * sum(recent) / len(recent)
        stages = {"gen": "gen", "old": "old_log_prob", "ref": "ref", "update": "update_actor", "sync": "update_weights"}
        if "timing_share/update_critic" in values:
            stages |= {"values": "values", "critic": "update_critic"}
        shares = " ".join(f"{name} {100 * values.get(f'timing_share/{stage}', 0.0):.0f}%" for name, stage in stages.items())
        groups = "/".join(
            f"{100 * values.get(f'training/groups/{name}', math.nan):.0f}" for name in ("zero_spread", "all_right", "all_wrong")
        )
        return [
            f"reward {values['critic/score/mean']:.3f}",
            f"acc {values.get('critic/acc/mean', math.nan):.3f}",
            f"groups same/right/wrong {groups}%",
            f"{values['perf/total_num_tokens'] / values['timing_s/step']:.0f} tok/s",
            f"{values['timing_s/step']:.2f} s ({shares})",
            f"ETA {left // 60:.0f}:{left % 60:02.0f}",
        ]


def _short(name: str) -> str:
    return name.removeprefix("val-core/")
