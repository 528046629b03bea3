"""The nouns of a rollout, shared by every room above: no tensors, no sockets, no clock.

``P`` prompts make ``P`` prompt groups of ``n`` sessions each; a session leaves one trajectory, or several when its
context was reset. A trajectory is a row of the TransferQueue under ``{uid}_{session}_{index}``; the marker of its prompt
is the row ``{uid}``.
"""

import enum
from typing import Any

import msgspec

from asyncrl.errors import DataError

PolicyVersion = int
"""Version v is the weights after step v; 0 is the start."""

GREEDY_SESSION = "g"
"""The session name of a greedy baseline."""


class StopReason(enum.StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    """The model sampled an end-of-sequence or stop token; it is the last token of the answer."""
    LENGTH = "length"
    """The token budget was used up."""
    ABORT = "abort"
    """Somebody asked for the end; the tokens so far are kept."""


class Status(enum.StrEnum):
    """The status in a prompt's marker."""

    PENDING = "pending"
    RUNNING = "running"
    FINISHED = "finished"
    FAILURE = "failure"

    @property
    def settled(self) -> bool:
        """Whether every session of the prompt has ended."""
        return self in (Status.FINISHED, Status.FAILURE)


class TrajectoryKey(msgspec.Struct, frozen=True, order=True):
    """``{uid}_{session}_{index}``: the index counts the outputs of one session.

    >>> TrajectoryKey.parse("s1e0p7_3_0")
    TrajectoryKey(uid='s1e0p7', session='3', index=0)
    >>> str(TrajectoryKey("s1e0p7", "g", 0))
    's1e0p7_g_0'
    """

    uid: str
    session: str
    index: int

    def __str__(self) -> str:
        return f"{self.uid}_{self.session}_{self.index}"

    @classmethod
    def parse(cls, key: str) -> "TrajectoryKey":
        """Read a key from the right. Raises DataError for anything else than uid, session and index."""
        parts = key.rsplit("_", 2)
        if len(parts) != 3 or not parts[2].isdecimal() or not (parts[1].isdecimal() or parts[1] == GREEDY_SESSION):
            raise DataError(f"{key!r} is not a trajectory key; expected uid_session_index")
        return cls(check_uid(parts[0]), parts[1], int(parts[2]))

    def order(self) -> tuple[str, int, int]:
        """A sort key: sessions by number, a greedy baseline first."""
        return (self.uid, -1 if self.session == GREEDY_SESSION else int(self.session), self.index)


def make_uid(seed: int, epoch: int, position: int) -> str:
    """The derived name of one use of one prompt.

    >>> make_uid(1, 0, 7)
    's1e0p7'
    """
    return f"s{seed}e{epoch}p{position}"


def check_uid(uid: str) -> str:
    """Return ``uid``, or raise DataError when it is empty or holds an underscore, which separates the parts of a key."""
    if not uid or "_" in uid:
        raise DataError(f"uid {uid!r} must not be empty or hold '_': it separates uid, session and index in a key")
    return uid


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one answer is sampled."""

    temperature: float = 1.0
    """0 is greedy; its log-probs are untempered."""
    top_p: float = 1.0
    top_k: int = -1
    """-1 is off."""
    max_tokens: int
    """Most tokens of this answer."""
    ignore_eos: bool = False


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One answer asked of a rollout engine."""

    request_id: str
    """Unique among the requests in flight."""
    uid: str
    session: str
    prompt_ids: list[int]
    """Everything the model sees before the answer: at least one token."""
    sampling: SamplingParams
    seed: int = 0
    """With uid, session and the number of tokens drawn so far it fixes every draw."""
    drawn: int = 0
    """Tokens this session has already sampled: the position of the first draw."""
    report_start: bool = False
    """Whether the engine tells at once that it has drawn the first token."""
    urgent: bool = False
    """While such a request is in flight, an engine leaves all that are not urgent where they are."""


class FirstToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request ``request_id`` has its first token, drawn by the weights of ``version``."""

    request_id: str
    version: PolicyVersion


class GenerateOutput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a rollout engine sampled for one request. The three lists have equal length, possibly 0."""

    request_id: str
    token_ids: list[int]
    log_probs: list[float]
    """Log-probability of each sampled token under the distribution it was drawn from."""
    versions: list[PolicyVersion]
    """Version of the weights that drew each token."""
    stop_reason: StopReason


class Kept(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What has been sampled of one answer. The last three lists have equal length."""

    prompt_ids: list[int]
    """Everything the model saw before the answer."""
    token_ids: list[int]
    log_probs: list[float]
    versions: list[PolicyVersion]
    stop_reason: StopReason = StopReason.ABORT
    """Why the answer ended; ``ABORT`` as long as it has not."""


class PartialGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A running group: the latest answer of each session that has tokens of one."""

    uid: str
    partition_id: str
    lease: int
    sessions: dict[str, Kept]


class PromptGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One prompt and the sessions asked of it: the unit of issue, lease and sampling."""

    uid: str
    partition_id: str
    """``train`` or ``val``."""
    prompt: str | list[dict[str, Any]]
    """A text taken as it is, or a list of chat messages."""
    data_source: str
    ground_truth: Any = None
    extra_info: dict[str, Any] = {}
    sessions: int
    """n, the number of sessions."""
    sampling: SamplingParams
    seed: int
    lease: int
    """The number in the marker's tag that guards every put of this group."""
    step: int
    """The step that issued the group."""
    agent_name: str = "single_turn_agent"
    greedy_baseline: bool = False
    """One more session, which takes the likeliest tokens; it is judged as the others are, and never trained."""
    reward_components: list[str] = []
    """Parts of the reward, by their names in what the reward function returns, that its rows must have."""
    filter_metric: str = ""
    """What a filter of groups looks at: the name of a value that the reward function returns; "" is the raw score."""
    report_start: bool = False
    """Whether the marker of the running group tells the oldest version that has drawn a token for it."""
    urgent: bool = False
    """Whether engines serve its sessions before those of other groups, which wait meanwhile."""
    kept: dict[str, Kept] = {}
    """By session: an answer that an earlier issue of this group began. The session's first generation goes on from it, if it
    is asked for the same prompt."""

    @property
    def session_names(self) -> list[str]:
        """The sessions asked for, by number; the greedy one comes last."""
        return [str(number) for number in range(self.sessions)] + ([GREEDY_SESSION] if self.greedy_baseline else [])

    def sampling_of(self, session: str) -> SamplingParams:
        """How the answers of a session are sampled."""
        if session != GREEDY_SESSION:
            return self.sampling
        return msgspec.structs.replace(self.sampling, temperature=0.0, top_p=1.0, top_k=-1)


class Trajectory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One output of one session, as an agent loop returns it.

    ``response_ids``, ``response_mask``, ``log_probs`` and ``versions`` have equal length.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    """1 for a token that the policy sampled, 0 for one that a tool or the template put in."""
    log_probs: list[float]
    """0 where the mask is 0."""
    versions: list[PolicyVersion]
    """-1 where the mask is 0."""
    num_turns: int = 2
    stop_reason: StopReason = StopReason.STOP


class RewardItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One answer to be judged; the names are those of verl's reward functions."""

    data_source: str
    solution_str: str
    ground_truth: Any = None
    extra_info: dict[str, Any] = {}


class RewardResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A score, or the reason why there is none: a failure is never a number."""

    score: float | None = None
    extra: dict[str, Any] = {}
    """Further values of the reward function, such as ``acc``."""
    error: str = ""
