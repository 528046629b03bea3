"""The tokenizer of the agents: prompts to token ids, token ids to text, without transformers.

It reads the files of a Hugging Face folder: ``tokenizer.json``, ``tokenizer_config.json``, ``special_tokens_map.json``,
``chat_template.jinja`` and ``generation_config.json``, of which only the first must exist.
"""

from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from asyncrl.agents.template import ChatTemplate, Message
from asyncrl.errors import ConfigError, DataError

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The names under which a template finds the special tokens."""


class ChatTokenizer:
    """Encodes prompts and decodes answers.

    ``max_prompt_length`` cuts longer prompts on the left; ``chat_template`` replaces the folder's own;
    ``template_values`` are further names for the template (``data.apply_chat_template_kwargs``).

    Raises ConfigError for a folder without ``tokenizer.json`` and for broken files.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        max_prompt_length: int | None = None,
        chat_template: str | None = None,
        template_values: dict[str, Any] | None = None,
    ) -> None:
        self._folder = Path(folder).expanduser()
        self._tokenizer = _load_tokenizer(self._folder / "tokenizer.json")
        settings = _read_json(self._folder / "special_tokens_map.json") | _read_json(self._folder / "tokenizer_config.json")
        self.special_tokens: dict[str, str] = {name: _token_text(settings[name]) for name in SPECIAL_TOKENS if settings.get(name)}
        """Texts of the named special tokens, such as ``eos_token``."""
        self.eos_ids: tuple[int, ...] = self._end_ids()
        """Ids that end an answer: the tokenizer's own, and those of the generation configuration."""
        source = chat_template or _folder_template(self._folder, settings)
        self._template = ChatTemplate(source) if source else None
        self._template_values = {**self.special_tokens, **(template_values or {})}
        self._max_prompt_length = max_prompt_length

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def pad_id(self) -> int | None:
        """Id of the pad token, None if there is none."""
        return self._token_id("pad_token")

    def encode_prompt(self, prompt: str | list[Message]) -> list[int]:
        """Token ids of a prompt, the last ``max_prompt_length`` of them.

        A text is encoded as it is, without special tokens added; chat messages go through the template, which opens the
        answer. Raises DataError for a prompt without tokens, or that the template refuses.
        """
        ids = self._encode(prompt)
        if not ids:
            raise DataError(f"the prompt {prompt!r:.100} has no tokens")
        return ids if self._max_prompt_length is None else ids[-self._max_prompt_length :]

    def prompt_length(self, prompt: str | list[Message]) -> int:
        """Tokens of the whole prompt, before any cut."""
        return len(self._encode(prompt))

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids. For reading and judging only: it is never encoded again."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def _encode(self, prompt: str | list[Message]) -> list[int]:
        text = prompt if isinstance(prompt, str) else self._render(prompt)
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _render(self, messages: list[Message]) -> str:
        if self._template is None:
            raise DataError(
                f"{self._folder} has no chat template, so the prompt must be a text; "
                f"or give one in actor_rollout_ref.model.custom_chat_template (seen: {messages!r:.100})"
            )
        return self._template.render(messages, self._template_values)

    def _token_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self._tokenizer.token_to_id(token)

    def _end_ids(self) -> tuple[int, ...]:
        named = _read_json(self._folder / "generation_config.json").get("eos_token_id")
        listed = named if isinstance(named, list) else [named]
        return tuple(dict.fromkeys(id for id in (self._token_id("eos_token"), *listed) if id is not None))


def _load_tokenizer(path: Path) -> Tokenizer:
    if not path.is_file():
        raise ConfigError("actor_rollout_ref.model.path", str(path.parent), "expected a folder with tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the tokenizers library raises nothing narrower
        raise ConfigError("actor_rollout_ref.model.path", str(path), f"not a readable tokenizer: {error}") from error
    # The file may carry the cut and padding of somebody's training.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty when there is no such file."""
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigError("actor_rollout_ref.model.path", str(path), f"not readable: {error}") from error


def _token_text(token: Any) -> str:
    """A special token is written as its text, or as an object that holds it."""
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _folder_template(folder: Path, settings: dict[str, Any]) -> str | None:
    """The folder's template: its own file comes first; a list of named templates means the one called ``default``."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    source = settings.get("chat_template")
    if isinstance(source, list):
        source = next((entry["template"] for entry in source if entry["name"] == "default"), None)
    return source
