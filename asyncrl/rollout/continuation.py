"""One answer over all interruptions: what it has so far, and what is still to be asked for.

``p`` prompt tokens, ``k`` kept tokens, ``m`` the most tokens that the request allows. Every part is asked for with the p + k
tokens so far as its prompt, m - k tokens as its budget and the draw position moved on by k, so that neither budget nor draws
depend on where the answer was cut.
"""

import msgspec

from asyncrl.trajectory import GenerateOutput, GenerateRequest, Kept, PolicyVersion, StopReason


class Continuation:
    """An answer in progress. It is ended when ``output`` gives it whole."""

    def __init__(self, request: GenerateRequest, kept: Kept | None = None) -> None:
        """Begin with what was ``kept`` of an earlier try at ``request``: the same prompt, tokens within its budget."""
        self.request = request
        self._token_ids: list[int] = []
        self._log_probs: list[float] = []
        self._versions: list[PolicyVersion] = []
        self._reason = StopReason.ABORT
        if kept is not None:
            self._extend(kept.token_ids, kept.log_probs, kept.versions, kept.stop_reason)

    @property
    def output(self) -> GenerateOutput | None:
        """The whole answer, None while it goes on."""
        if self._reason is StopReason.ABORT:
            return None
        return GenerateOutput(
            request_id=self.request.request_id,
            token_ids=self._token_ids,
            log_probs=self._log_probs,
            versions=self._versions,
            stop_reason=self._reason,
        )

    @property
    def kept(self) -> Kept:
        """What there is so far."""
        return Kept(
            prompt_ids=self.request.prompt_ids,
            token_ids=list(self._token_ids),
            log_probs=list(self._log_probs),
            versions=list(self._versions),
            stop_reason=self._reason,
        )

    @property
    def rest(self) -> GenerateRequest:
        """What is still to be generated."""
        done, request = len(self._token_ids), self.request
        if not done:
            return request
        sampling = msgspec.structs.replace(request.sampling, max_tokens=request.sampling.max_tokens - done)
        prompt_ids = request.prompt_ids + self._token_ids
        return msgspec.structs.replace(request, prompt_ids=prompt_ids, sampling=sampling, drawn=request.drawn + done)

    def add(self, part: GenerateOutput) -> None:
        """Take over what ``rest`` was answered with. A part that was aborted leaves the rest to be asked for."""
        self._extend(part.token_ids, part.log_probs, part.versions, part.stop_reason)

    def _extend(self, token_ids: list[int], log_probs: list[float], versions: list[PolicyVersion], reason: StopReason) -> None:
        self._token_ids += token_ids
        self._log_probs += log_probs
        self._versions += versions
        spent = len(self._token_ids) >= self.request.sampling.max_tokens
        self._reason = StopReason.LENGTH if spent and reason is StopReason.ABORT else reason
