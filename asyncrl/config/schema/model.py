"""``actor_rollout_ref.model.*``: the model that is trained."""

from asyncrl.config.schema.section import Section
from asyncrl.config.schema.types import Name


class Model(Section, frozen=True, kw_only=True):
    """A causal language model in Hugging Face's form."""

    path: Name = "~/models/deepseek-llm-7b-chat"
    """Folder of the model, or ``pkg://PACKAGE/FOLDER`` inside a Python package."""
    tokenizer_path: Name | None = None
    """Folder of the tokenizer; null = the model's."""
    trust_remote_code: bool = False
    """Run Python code that lies in the model's folder."""
    custom_chat_template: str | None = None
    """Chat template in place of the tokenizer's."""
    enable_gradient_checkpointing: bool = True
    """Compute activations again in the backward pass."""
    use_remove_padding: bool = True
    """Pack rows without padding; off = padded. The same numbers either way."""
