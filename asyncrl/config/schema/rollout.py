"""``actor_rollout_ref.rollout.*``: how responses are sampled."""

from typing import Annotated, Literal

import msgspec

from asyncrl.config.schema.section import Section, known, refuse
from asyncrl.config.schema.trainer import Custom
from asyncrl.config.schema.types import Count, Dtype, MinusOneOrMore, NonNegative, NonNegativeInt, Positive, TopP


class ValKwargs(Section, frozen=True, kw_only=True):
    """Sampling in validation."""

    n: Count = 1
    """Sessions per validation prompt."""
    temperature: NonNegative = 0.0
    """Sampling temperature; 0 takes the likeliest token."""
    top_p: TopP = 1.0
    """Sample from the smallest set of tokens that holds this much probability."""
    top_k: MinusOneOrMore = -1
    """Sample from this many likeliest tokens; -1 or 0 = from all."""
    do_sample: bool = False
    """verl's second word for a temperature above 0; the temperature decides."""

    def __post_init__(self) -> None:
        if self.do_sample and self.temperature == 0.0:
            raise refuse("temperature", self.temperature, "allowed: above 0 while do_sample is true, or do_sample=false")


class Agent(Section, frozen=True, kw_only=True):
    """The processes that run sessions."""

    num_workers: Count = 8
    """Agent worker processes."""
    default_agent_loop: Literal["single_turn_agent"] = "single_turn_agent"
    """Loop of a prompt whose row names none."""


class CheckpointEngine(Section, frozen=True, kw_only=True):
    """How weights reach the engines."""

    backend: Literal["naive", "nccl"] | None = None
    """null = ``nccl`` in separate_async, else ``naive``, and no other value than that. ``naive``: copied in place, to an engine that
    shares its rank's device. ``nccl``: broadcast to engines in processes of their own; on CPUs it goes over gloo."""
    update_weights_bucket_megabytes: Count = 2048
    """``nccl``: most bytes of a bucket of weights, in 2^20."""


class Rollout(Section, frozen=True, kw_only=True):
    """The rollout engine and its sampling. Training divides logits by the same ``temperature``."""

    name: Literal["embedded"] = "embedded"
    """The engine: ``embedded`` is asyncrl's own, over the model's forward pass. ``hf`` is read as this name."""
    custom_engine: Custom = msgspec.field(default_factory=Custom)
    """An engine of your own in its place: called with an ``asyncrl.workers.engine_process.EngineRecipe``, it gives a
    ``asyncrl.rollout.engine.RolloutEngine``. asyncrl's own."""
    mode: Literal["async"] = "async"
    """Sessions run independently of each other."""
    n: Count = 1
    """Sessions per prompt (the group size)."""
    temperature: Positive = 1.0
    """Sampling temperature in training."""
    top_p: TopP = 1.0
    """Sample from the smallest set of tokens that holds this much probability."""
    top_k: MinusOneOrMore = -1
    """Sample from this many likeliest tokens; -1 or 0 = from all."""
    prompt_length: Count | None = None
    """Longest prompt; null = ``data.max_prompt_length``, and no other value than that."""
    response_length: Count | None = None
    """Longest response; null = ``data.max_response_length``, and no other value than that."""
    dtype: Dtype | None = None
    """Format of the engine's weights and cache; null = bfloat16 on a GPU, float32 on a CPU."""
    max_num_seqs: Count = 256
    """Sequences in generation at a time, per engine."""
    max_num_batched_tokens: Count = 8192
    """Prompt tokens prefilled in one step of the engine."""
    max_model_len: Count | None = None
    """Longest prompt and response together; null = the sum of the two limits."""
    full_determinism: bool = False
    """Admit requests in key order in fixed waves: two runs sample the same bits."""
    free_cache_engine: bool = True
    """Free the engine's cache while the policy learns."""
    ignore_eos: bool = False
    """Generate on after an end token, up to the limit."""
    calculate_log_probs: bool = True
    """Keep the engine's log-prob of each sampled token, and report how far it is from the trainer's."""
    tensor_model_parallel_size: Annotated[int, msgspec.Meta(ge=1, le=1)] = 1
    """Ranks of one engine; the embedded engine fits in one."""
    log_prob_micro_batch_size_per_gpu: Count | None = None
    """Rows per forward pass of a rank for ``old_log_probs``; null = by tokens."""
    log_prob_use_dynamic_bsz: bool | None = None
    """Cut by tokens also where a number of rows is given; null = ``actor.use_dynamic_bsz``."""
    log_prob_max_token_len_per_gpu: Count | None = None
    """Tokens of one micro-batch of a rank; null = ``actor.ppo_max_token_len_per_gpu``."""
    val_kwargs: ValKwargs = msgspec.field(default_factory=ValKwargs)
    """Sampling in validation."""
    nnodes: NonNegativeInt = 0
    """separate_async: nodes with engines on devices of their own. Fewer than there are nodes: whole nodes, the last ones;
    as many: each node has engines beside its trainer ranks."""
    n_gpus_per_node: Count | None = None
    """separate_async: engines on each of these nodes; null = ``trainer.n_gpus_per_node``."""
    agent: Agent = msgspec.field(default_factory=Agent)
    """Agent workers."""
    checkpoint_engine: CheckpointEngine = msgspec.field(default_factory=CheckpointEngine)
    """Weight sync."""

    @property
    def prompt_limit(self) -> int:
        """Longest prompt in force."""
        return known(self.prompt_length, "actor_rollout_ref.rollout.prompt_length")

    @property
    def response_limit(self) -> int:
        """Longest response in force."""
        return known(self.response_length, "actor_rollout_ref.rollout.response_length")

    @property
    def model_limit(self) -> int:
        """Longest sequence in force."""
        return self.prompt_limit + self.response_limit if self.max_model_len is None else self.max_model_len

    @property
    def dynamic(self) -> bool:
        """Whether micro-batches are cut by tokens even when rows are given."""
        return known(self.log_prob_use_dynamic_bsz, "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz")

    @property
    def token_budget(self) -> int:
        """Tokens of one micro-batch of a rank."""
        return known(self.log_prob_max_token_len_per_gpu, "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu")
