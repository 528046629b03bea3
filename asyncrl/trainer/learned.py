"""What a local update of one role did."""

from collections.abc import Sequence
from dataclasses import dataclass

from asyncrl.metrics import Metrics, merge
from asyncrl.workers.trained import UpdateReport


@dataclass(frozen=True, slots=True)
class Learned:
    """Metrics of each optimizer step, those of all rows together, and how many rows there were."""

    by_update: list[Metrics]
    metrics: Metrics
    rows: int

    @classmethod
    def of(cls, reports: Sequence[UpdateReport]) -> "Learned":
        """The parts of all ranks as one."""
        by_update = [merge(step) for step in zip(*(report.by_update for report in reports), strict=True)]
        return cls(by_update, merge(report.metrics for report in reports), sum(report.rows for report in reports))
