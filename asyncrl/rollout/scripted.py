"""A rollout engine that answers from a script: the shipped fake. No model, no torch, the same contract."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from asyncrl.errors import EngineUnavailable, RolloutError
from asyncrl.rollout.admission import Admission, Running
from asyncrl.trajectory import GREEDY_SESSION, FirstToken, GenerateOutput, GenerateRequest, PolicyVersion, StopReason

if TYPE_CHECKING:
    from torch import Tensor

Script = Callable[[GenerateRequest], Sequence[int]]
"""The tokens that a request is answered with, at least one. An answer longer than the request allows ends with LENGTH."""


def by_session(answers: Mapping[tuple[str, str], Sequence[int]]) -> Script:
    """A script with one answer for each (uid, session); a request that comes with tokens drawn gets the rest."""
    return lambda request: answers[request.uid, request.session][request.drawn :]


class ScriptedEngine:
    """Plays a script, one token for each running request at each step.

    Every log-prob is ``log_prob``. ``loads`` keeps the versions and parameter names of every load.
    """

    def __init__(
        self, script: Script, *, max_num_seqs: int = 256, max_model_len: int = 4096, log_prob: float = -1.0, full_determinism: bool = False
    ) -> None:
        self.loads: list[tuple[PolicyVersion, list[str]]] = []
        self.max_model_len = max_model_len
        self._script, self._log_prob = script, log_prob
        self._version: PolicyVersion = -1
        self._admission = Admission(max_num_seqs, waves=full_determinism)
        self._running: list[Running] = []
        self._in_flight: dict[str, Sequence[int]] = {}
        self._started: list[FirstToken] = []

    @property
    def version(self) -> PolicyVersion:
        return self._version

    @property
    def unfinished(self) -> int:
        return len(self._in_flight)

    def check(self, request: GenerateRequest) -> None:
        reason = ""
        if request.request_id in self._in_flight:
            reason = "a request of this id is in flight"
        elif not 0 < len(request.prompt_ids) < self.max_model_len:
            reason = f"the prompt has {len(request.prompt_ids)} tokens; 1 to {self.max_model_len - 1} are served"
        elif min(request.prompt_ids) < 0:
            reason = "the prompt holds a negative token id"
        elif not (request.session.isdecimal() or request.session == GREEDY_SESSION):
            reason = f"session {request.session!r} is neither a number nor {GREEDY_SESSION!r}"
        elif request.sampling.max_tokens < 1 or not request.sampling.temperature >= 0 or not 0 < request.sampling.top_p <= 1:
            reason = f"needs max_tokens >= 1, temperature >= 0 and 0 < top_p <= 1, got {request.sampling}"
        if reason:
            raise RolloutError(f"request {request.request_id}: {reason}")

    def submit(self, requests: Sequence[GenerateRequest]) -> None:
        for request in requests:
            self.check(request)
        if len({request.request_id for request in requests}) < len(requests):
            raise RolloutError("two requests of one submit share a request id")
        answers = {request.request_id: self._script(request) for request in requests}
        for request_id, answer in answers.items():
            if not answer:
                raise RolloutError(f"request {request_id}: the script has no token for it")
        self._in_flight.update(answers)
        self._admission.add(Running(request, self._budget(request)) for request in requests)

    def _budget(self, request: GenerateRequest) -> int:
        return min(request.sampling.max_tokens, self.max_model_len - len(request.prompt_ids))

    def step(self) -> list[GenerateOutput]:
        if self._version < 0:
            raise EngineUnavailable("the engine has no weights; load a version first")
        away = frozenset(self._admission.in_the_way(self._running))
        self._admission.put_back([row for place, row in enumerate(self._running) if place in away])
        self._running = [row for place, row in enumerate(self._running) if place not in away]
        self._running += self._admission.take(self._running)
        outputs: list[GenerateOutput] = []
        kept: list[Running] = []
        for row in self._running:
            answer = self._in_flight[row.request.request_id]
            first = row.append(answer[len(row.token_ids)], self._log_prob, self._version)
            if first is not None:
                self._started.append(first)
            if len(row.token_ids) == len(answer):
                outputs.append(row.output(StopReason.STOP))
            elif len(row.token_ids) == row.budget:
                outputs.append(row.output(StopReason.LENGTH))
            else:
                kept.append(row)
        self._running = kept
        for output in outputs:
            del self._in_flight[output.request_id]
        return outputs

    def started(self) -> list[FirstToken]:
        started, self._started = self._started, []
        return started

    def abort(self, request_ids: Sequence[str] | None = None) -> list[GenerateOutput]:
        names = frozenset(self._in_flight if request_ids is None else request_ids)
        rows = [row for row in self._running if row.request.request_id in names] + self._admission.remove(names)
        self._running = [row for row in self._running if row.request.request_id not in names]
        for row in rows:
            del self._in_flight[row.request.request_id]
        return [row.output(StopReason.ABORT) for row in rows]

    def sleep(self) -> None:
        self._admission.put_back(self._running)
        self._running = []

    def load(self, version: PolicyVersion, weights: "Iterable[tuple[str, Tensor]]") -> str:
        self.sleep()
        self.loads.append((version, [name for name, _ in weights]))
        self._version = version
        return f"scripted-{version}"
