"""The port between rollout workers and whatever generates: a stepped engine.

Every method is plain and blocking and is called by one caller at a time (a job of the device thread), so an engine has
no lock and no thread. Between two steps the caller may abort, sleep or load.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from asyncrl.trajectory import FirstToken, GenerateOutput, GenerateRequest, PolicyVersion

if TYPE_CHECKING:
    from torch import Tensor


class RolloutEngine(Protocol):
    """Generates answers to requests, one token for every running request at each step."""

    @property
    def version(self) -> PolicyVersion:
        """The version of the weights in use; -1 before the first ``load`` and after one that failed."""
        ...

    @property
    def unfinished(self) -> int:
        """Requests submitted and not yet returned, by a step or by an abort."""
        ...

    def check(self, request: GenerateRequest) -> None:
        """Raise RolloutError when this engine can never serve ``request``: an empty prompt, one that leaves no room for
        a token, an unknown token id, an impossible sampling parameter, a request id that is in flight."""
        ...

    def submit(self, requests: Sequence[GenerateRequest]) -> None:
        """Take requests over; they start at a later step.

        Raises RolloutError, and takes none of them, when ``check`` refuses one or two share a request id.
        """
        ...

    def step(self) -> list[GenerateOutput]:
        """Admit what is waiting, draw one token for every running request, return the answers that ended with it.

        While an urgent request is in flight, those that are not keep their tokens and wait. An engine that sleeps wakes up. Without
        requests nothing happens. Raises EngineUnavailable before the first load.
        """
        ...

    def started(self) -> list[FirstToken]:
        """The requests with ``report_start`` that have drawn their first token since the last call, in the order of the draws."""
        ...

    def abort(self, request_ids: Sequence[str] | None = None) -> list[GenerateOutput]:
        """End the named requests, or all (None), and return the tokens they have, with ``StopReason.ABORT``.

        A name that is not in flight is passed over: its answer may have ended a moment before.
        """
        ...

    def sleep(self) -> None:
        """Give the KV cache back. There is no wake: the next step allocates again, and requests in flight go on from
        their tokens. The weights stay."""
        ...

    def load(self, version: PolicyVersion, weights: "Iterable[tuple[str, Tensor]]") -> str:
        """Copy ``weights`` into the engine's own, drop the cache, set the version; return the digest of the weights held.

        Requests in flight keep their tokens: prompt and tokens are prefilled again at the next step. Raises
        WeightSyncError for an unknown, missing or misshapen parameter; the engine then has no version until a later
        load succeeds, since part of the weights may have been replaced.
        """
        ...
