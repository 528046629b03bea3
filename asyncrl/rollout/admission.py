"""Which requests start next: pure bookkeeping, no tensors.

Two rules. First come, first served: a request starts as soon as a slot is free. Waves, for full determinism: what is
submitted together is put in key order and cut into waves of ``max_num_seqs``; a wave runs alone, and starts when the one
before it has ended. So a wave depends on what was submitted together, not on the order or the moment of submissions.
Under both, nothing that is not urgent runs or starts while something urgent is in flight.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from asyncrl.trajectory import GREEDY_SESSION, FirstToken, GenerateOutput, GenerateRequest, PolicyVersion, StopReason


@dataclass(slots=True, eq=False)
class Running:
    """A request with what has been drawn for it. The three lists have equal length."""

    request: GenerateRequest
    budget: int
    """Most tokens of this answer: what was asked for, or what fits into the model's length."""
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[PolicyVersion] = field(default_factory=list)

    @property
    def known(self) -> int:
        """Tokens of prompt and answer so far."""
        return len(self.request.prompt_ids) + len(self.token_ids)

    def append(self, token: int, log_prob: float, version: PolicyVersion) -> FirstToken | None:
        """One more token. Returns the word that it is the first one, if the request asks for it."""
        self.token_ids.append(token)
        self.log_probs.append(log_prob)
        self.versions.append(version)
        if len(self.token_ids) == 1 and self.request.report_start:
            return FirstToken(self.request.request_id, version)
        return None

    def ids(self) -> list[int]:
        """Prompt and answer so far."""
        return self.request.prompt_ids + self.token_ids

    def output(self, reason: StopReason) -> GenerateOutput:
        """The answer, ended for ``reason``."""
        return GenerateOutput(
            request_id=self.request.request_id,
            token_ids=self.token_ids,
            log_probs=self.log_probs,
            versions=self.versions,
            stop_reason=reason,
        )


def key_order(running: Running) -> tuple[str, int, int, list[int]]:
    """Sort by uid and session; position and prompt settle the order of two requests of one session."""
    request = running.request
    session = -1 if request.session == GREEDY_SESSION else int(request.session)
    return (request.uid, session, request.drawn, request.prompt_ids)


class _Lane:
    """The requests of one urgency that wait for a slot."""

    def __init__(self, max_num_seqs: int, *, waves: bool) -> None:
        self.max_num_seqs = max_num_seqs
        self._by_waves = waves
        self._waiting: deque[Running] = deque()
        self._waves: deque[list[Running]] = deque()

    def __len__(self) -> int:
        return len(self._waiting) + sum(len(wave) for wave in self._waves)

    def add(self, requests: Iterable[Running]) -> None:
        """Queue new requests behind all others."""
        if not self._by_waves:
            self._waiting.extend(requests)
            return
        ordered, size = sorted(requests, key=key_order), self.max_num_seqs
        self._waves.extend(ordered[first : first + size] for first in range(0, len(ordered), size))

    def put_back(self, requests: Sequence[Running]) -> None:
        """Queue requests that ran before all others: they start together, in their order."""
        if self._by_waves and requests:
            self._waves.appendleft(list(requests))
        else:
            self._waiting.extendleft(reversed(requests))

    def take(self, running: int) -> list[Running]:
        """The requests that start now, beside ``running`` others of this urgency."""
        if self._by_waves:
            return self._waves.popleft() if self._waves and not running else []
        free = min(self.max_num_seqs - running, len(self._waiting))
        return [self._waiting.popleft() for _ in range(free)]

    def remove(self, request_ids: Collection[str] | None) -> list[Running]:
        """Take the named requests, or all (None), out of the queue."""
        removed: list[Running] = []
        for queue in (*self._waves, self._waiting):
            gone = [running for running in queue if request_ids is None or running.request.request_id in request_ids]
            for running in gone:
                queue.remove(running)
            removed += gone
        self._waves = deque(wave for wave in self._waves if wave)
        return removed


class Admission:
    """The requests that wait for a slot."""

    def __init__(self, max_num_seqs: int, *, waves: bool) -> None:
        self._urgent, self._others = _Lane(max_num_seqs, waves=waves), _Lane(max_num_seqs, waves=waves)

    def __len__(self) -> int:
        return len(self._urgent) + len(self._others)

    def add(self, requests: Iterable[Running]) -> None:
        """Queue new requests behind all others of their urgency."""
        for lane, share in self._by_lane(list(requests)):
            lane.add(share)

    def put_back(self, requests: Sequence[Running]) -> None:
        """Queue requests that ran before all others of their urgency: they start together, in their order."""
        for lane, share in self._by_lane(requests):
            lane.put_back(share)

    def in_the_way(self, running: Sequence[Running]) -> list[int]:
        """The places of those that must make way for something urgent: to be put back before the next ``take``."""
        if not (len(self._urgent) or any(each.request.urgent for each in running)):
            return []
        return [place for place, each in enumerate(running) if not each.request.urgent]

    def take(self, running: Sequence[Running]) -> list[Running]:
        """The requests that start now, beside these."""
        urgent = len(self._urgent) or any(each.request.urgent for each in running)
        return (self._urgent if urgent else self._others).take(len(running))

    def remove(self, request_ids: Collection[str] | None) -> list[Running]:
        """Take the named requests, or all (None), out of the queue."""
        return self._urgent.remove(request_ids) + self._others.remove(request_ids)

    def _by_lane(self, requests: Sequence[Running]) -> list[tuple[_Lane, list[Running]]]:
        split = {True: [each for each in requests if each.request.urgent], False: [each for each in requests if not each.request.urgent]}
        return [(lane, split[urgent]) for urgent, lane in ((True, self._urgent), (False, self._others)) if split[urgent]]
