"""Counters of one process: calls by endpoint, how many failed, how long they took."""

from collections.abc import Iterable, Mapping

from asyncrl.runtime.histogram import Histogram
from asyncrl.runtime.records import EndpointStats


class Meter(Histogram):
    """How long the calls of one endpoint took that have ended, and how many of them failed."""

    __slots__ = ("failures",)

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0


class Meters:
    """The meters of the endpoints that this process calls, by "Class.method"; made at the first call."""

    __slots__ = ("_meters",)

    def __init__(self) -> None:
        self._meters: dict[str, Meter] = {}

    def of(self, label: str) -> Meter:
        """The meter of an endpoint."""
        meter = self._meters.get(label)
        if meter is None:
            meter = self._meters[label] = Meter()
        return meter

    def stats(self) -> list[EndpointStats]:
        """What was counted, by endpoint in the order of the first calls. Any thread."""
        return stats_of(self._meters.copy().items())


def stats_of(meters: Iterable[tuple[str, Meter]] | Mapping[str, Meter]) -> list[EndpointStats]:
    """Meters as values; those that counted nothing are left out."""
    pairs = meters.items() if isinstance(meters, Mapping) else meters
    found = []
    for endpoint, meter in pairs:
        buckets = meter.buckets
        if buckets:
            calls = sum(count for _, count in buckets)
            found.append(EndpointStats(endpoint, calls, meter.failures, meter.seconds, buckets))
    return found
