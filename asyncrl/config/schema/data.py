"""``data.*``: the prompts, and how many of them make a step."""

import msgspec

from asyncrl.config.schema.section import Section, refuse
from asyncrl.config.schema.types import Count, MinusOneOrMore, Name, Seed, Table


class Data(Section, frozen=True, kw_only=True):
    """Files of prompts, their columns, their limits and their order."""

    train_files: tuple[str, ...] = ("~/data/rlhf/gsm8k/train.parquet",)
    """Parquet or JSONL files of training prompts: one path or a list. ``pkg://PACKAGE/FILE`` is a file inside a Python package."""
    val_files: tuple[str, ...] = ("~/data/rlhf/gsm8k/test.parquet",)
    """Files of validation prompts; an empty list means no validation."""
    train_max_samples: MinusOneOrMore = -1
    """Use at most this many training prompts: a seeded subset when ``shuffle``, else the first ones. -1 = all."""
    val_max_samples: MinusOneOrMore = -1
    """The same for validation."""
    prompt_key: Name = "prompt"
    """Column of the prompt: a chat list, or a string that is taken as it is."""
    reward_fn_key: Name = "data_source"
    """Column that names the data source; rules and validation metrics go by it."""
    max_prompt_length: Count = 512
    """Longest prompt, in tokens."""
    max_response_length: Count = 512
    """Longest response, in tokens."""
    train_batch_size: Count = 1024
    """P: prompts of one step."""
    val_batch_size: Count | None = None
    """Prompts validated at a time; null = all at once."""
    shuffle: bool = True
    """Shuffle the training prompts anew in each epoch."""
    seed: Seed | None = None
    """Seed of that order; null = ``trainer.seed``."""
    validation_shuffle: bool = False
    """Shuffle the validation prompts."""
    filter_overlong_prompts: bool = False
    """Drop prompts longer than ``max_prompt_length``; off, such a prompt is cut on the left, as in verl."""
    apply_chat_template_kwargs: Table = msgspec.field(default_factory=dict)
    """Arguments for the chat template, such as ``enable_thinking``."""

    def __post_init__(self) -> None:
        if not self.train_files:
            raise refuse("train_files", list(self.train_files), "allowed: at least one file")
        for name, value in (("train_max_samples", self.train_max_samples), ("val_max_samples", self.val_max_samples)):
            if value == 0:
                raise refuse(name, 0, "allowed: -1 (all), or at least 1")
