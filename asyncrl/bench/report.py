"""What a benchmark found: each figure beside its reference, as JSON or as a table."""

from collections.abc import Mapping

import msgspec


class Figure(msgspec.Struct, frozen=True):
    """Our value and the reference's, both in ``unit``; ``ratio`` is value / reference."""

    value: float
    unit: str
    reference: float
    ratio: float

    @classmethod
    def of(cls, value: float, unit: str, reference: float) -> "Figure":
        """The figure with its ratio. Raises ValueError for a reference that is not above 0."""
        if not reference > 0.0:
            raise ValueError(f"a reference is above 0, got {reference:g} {unit}")
        return cls(value, unit, reference, value / reference)


class Report(msgspec.Struct, frozen=True):
    """All figures of one benchmark."""

    bench: str
    figures: Mapping[str, Figure]

    def json(self) -> str:
        """One line: ``{"bench": NAME, "figures": {FIGURE: {"value": x, "unit": u, "reference": y, "ratio": r}}}``."""
        return msgspec.json.encode(self).decode()

    def table(self) -> str:
        """The figures for a terminal; in a unit per second more is better, in a unit of time less."""
        rows = [(self.bench, "ours", "reference", "unit", "ratio")]
        rows += [(name, f"{f.value:.4g}", f"{f.reference:.4g}", f.unit, f"{f.ratio:.2f}") for name, f in self.figures.items()]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
