"""The fields of a row in the queue, and which stage reads and writes which.

This is the one declaration: stages fetch exactly what they declare to read, what they put is checked against what they
declare to write, and the field table in the documentation is generated from here. A stage declares all that it may read and
write; where an option does not ask for a field, the stage is used ``without`` it. Shapes: ``p`` prompt tokens, ``r`` response
tokens of the row.
"""

from dataclasses import dataclass

from asyncrl.errors import TransferError


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its name, dtype, shape of a row, and what it holds."""

    name: str
    dtype: str
    shape: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a step: who runs it, what it reads and what it writes."""

    name: str
    role: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    def check_writes(self, names: tuple[str, ...]) -> None:
        """Raise TransferError unless ``names`` are exactly the declared fields."""
        if sorted(names) != sorted(self.writes):
            raise TransferError(f"stage {self.name} writes {sorted(names)}, it declared {sorted(self.writes)}")

    def without(self, *names: str) -> "Stage":
        """The stage as it is where nothing asks for these fields. Raises ValueError for one that it does not declare."""
        if unknown := [name for name in names if name not in (*self.reads, *self.writes)]:
            raise ValueError(f"stage {self.name} neither reads nor writes {', '.join(unknown)}")
        reads, writes = (tuple(name for name in declared if name not in names) for declared in (self.reads, self.writes))
        return Stage(self.name, self.role, reads, writes)


FIELDS: dict[str, Field] = {
    field.name: field
    for field in (
        Field("prompts", "int64", "[p]", "token ids that the model saw before it answered"),
        Field("responses", "int64", "[r]", "token ids of the answer, tool and template tokens included"),
        Field("response_mask", "int64", "[r]", "1 for a token that the policy sampled, 0 for one put in or, later, rejected"),
        Field("rollout_log_probs", "float32", "[r]", "log-prob of each sampled token when it was sampled, 0 where the mask is 0"),
        Field("rollout_versions", "int32", "[r]", "policy version that sampled each token, -1 where the mask is 0"),
        Field("rm_scores", "float32", "[r]", "the reward, at the last sampled token; 0 elsewhere"),
        Field("reward_extra_info", "json", "object", "further values that the reward function returned"),
        Field("reward_components", "float32", "one a key", "the parts of the reward that `algorithm.gdpo_reward_keys` names, in its order"),
        Field("old_log_probs", "float32", "[r]", "log-probs under the weights with which the step began"),
        Field("sum_pi_squared", "float32", "[r]", "sum over the vocabulary of the squared probability, under the same weights"),
        Field("ref_log_prob", "float32", "[r]", "log-probs under the reference model"),
        Field("values", "float32", "[r]", "the critic's value of the state before each token"),
        Field("token_level_rewards", "float32", "[r]", "rm_scores minus the KL penalty; only with KL in the reward"),
        Field("rollout_is_weights", "float32", "[r]", "importance weight of each policy token; only with `rollout_is`, not in bypass mode"),
        Field("loss_mask", "int64", "[r]", "the response mask before rejection; only with `rollout_rs`, not in bypass mode"),
        Field("advantages", "float32", "[r]", "the advantage at each policy token, 0 where the mask is 0"),
        Field("returns", "float32", "[r]", "what the advantage is measured from; equals advantages for outcome estimators"),
    )
}

ROLLOUT = Stage(
    "rollout",
    "agent",
    (),
    (
        "prompts",
        "responses",
        "response_mask",
        "rollout_log_probs",
        "rollout_versions",
        "rm_scores",
        "reward_extra_info",
        "reward_components",
    ),
)
OLD_LOG_PROB = Stage(
    "old_log_prob", "policy", ("prompts", "responses", "response_mask", "rollout_log_probs"), ("old_log_probs", "sum_pi_squared")
)
BYPASS = Stage("bypass", "policy", ("rollout_log_probs",), ("old_log_probs",))
REF_LOG_PROB = Stage("ref_log_prob", "reference", ("prompts", "responses"), ("ref_log_prob",))
VALUES = Stage("values", "critic", ("prompts", "responses"), ("values",))
KL_IN_REWARD = Stage("kl_in_reward", "policy", ("response_mask", "rm_scores", "old_log_probs", "ref_log_prob"), ("token_level_rewards",))
CORRECTION = Stage(
    "rollout_correction",
    "policy",
    ("response_mask", "old_log_probs", "rollout_log_probs"),
    ("rollout_is_weights", "response_mask", "loss_mask"),
)
COMPONENTS = Stage("components", "controller", ("reward_components",), ())
ADVANTAGES = Stage("advantages", "policy", ("response_mask",), ("advantages", "returns"))
TOKEN_ADVANTAGES = Stage(
    "token_advantages",
    "policy",
    ("response_mask", "rm_scores", "token_level_rewards", "values", "old_log_probs", "sum_pi_squared", "rollout_is_weights"),
    ("advantages", "returns"),
)
UPDATE_CRITIC = Stage("update_critic", "critic", ("prompts", "responses", "response_mask", "values", "returns", "loss_mask"), ())
UPDATE = Stage(
    "update",
    "policy",
    ("prompts", "responses", "response_mask", "old_log_probs", "advantages", "ref_log_prob", "rollout_is_weights", "loss_mask"),
    (),
)
REPORT = Stage("report", "controller", ("reward_extra_info",), ())
GENERATIONS_SHOWN = Stage("generations", "controller", ("prompts", "responses"), ())

STAGES: tuple[Stage, ...] = (
    ROLLOUT,
    OLD_LOG_PROB,
    BYPASS,
    REF_LOG_PROB,
    VALUES,
    KL_IN_REWARD,
    CORRECTION,
    COMPONENTS,
    ADVANTAGES,
    TOKEN_ADVANTAGES,
    UPDATE_CRITIC,
    UPDATE,
    REPORT,
    GENERATIONS_SHOWN,
)


def field_table() -> str:
    """The table of fields, writers and readers as Markdown."""
    lines = ["| field | dtype | shape of a row | written by | read by | what it holds |", "|---|---|---|---|---|---|"]
    for field in FIELDS.values():
        writers = ", ".join(stage.name for stage in STAGES if field.name in stage.writes)
        readers = ", ".join(stage.name for stage in STAGES if field.name in stage.reads) or "-"
        lines.append(f"| `{field.name}` | {field.dtype} | {field.shape} | {writers} | {readers} | {field.meaning} |")
    return "\n".join(lines)
