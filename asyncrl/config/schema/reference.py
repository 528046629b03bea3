"""``actor_rollout_ref.ref.*``: the frozen reference model."""

import msgspec

from asyncrl.config.schema.fsdp import FsdpConfig
from asyncrl.config.schema.section import Section, known
from asyncrl.config.schema.types import Count


class Reference(Section, frozen=True, kw_only=True):
    """How the reference's log-probs are computed; the model exists only when a KL term needs it."""

    log_prob_micro_batch_size_per_gpu: Count | None = None
    """Rows per forward pass of a rank; null = by tokens."""
    log_prob_use_dynamic_bsz: bool | None = None
    """Cut by tokens also where a number of rows is given; null = ``actor.use_dynamic_bsz``."""
    log_prob_max_token_len_per_gpu: Count | None = None
    """Tokens of one micro-batch of a rank; null = ``actor.ppo_max_token_len_per_gpu``."""
    fsdp_config: FsdpConfig = msgspec.field(default_factory=FsdpConfig)
    """Sharding of the reference."""

    @property
    def dynamic(self) -> bool:
        """Whether micro-batches are cut by tokens even when rows are given."""
        return known(self.log_prob_use_dynamic_bsz, "actor_rollout_ref.ref.log_prob_use_dynamic_bsz")

    @property
    def token_budget(self) -> int:
        """Tokens of one micro-batch of a rank."""
        return known(self.log_prob_max_token_len_per_gpu, "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu")
