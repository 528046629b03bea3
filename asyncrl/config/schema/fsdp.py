"""``*.fsdp_config.*``: how a model is sharded over the ranks."""

from asyncrl.config.schema.section import Section, refuse
from asyncrl.config.schema.types import Dtype, MinusOneOrMore


class FsdpConfig(Section, frozen=True, kw_only=True):
    """FSDP2 of one model."""

    fsdp_size: MinusOneOrMore = -1
    """Ranks that share one copy of the weights; -1 or the world size = all. Smaller: replicas of a shard group."""
    reshard_after_forward: bool = True
    """Free gathered weights after the forward pass (less memory, one more gather)."""
    model_dtype: Dtype = "fp32"
    """Format of the master weights."""
    dtype: Dtype | None = None
    """Format of the computation; null = bfloat16 on a GPU, float32 on a CPU."""

    def __post_init__(self) -> None:
        if self.fsdp_size == 0:
            raise refuse("fsdp_size", 0, "allowed: -1 (all ranks), or at least 1")
