"""What a run reads: the tokenizer and the prompts. Without torch, so that wrong files are found before it is imported."""

from collections.abc import Sequence

from asyncrl.agents.chat import ChatTokenizer
from asyncrl.config.places import resolve_path
from asyncrl.config.schema import Config
from asyncrl.data.dataset import PromptStream
from asyncrl.data.prompts import PromptRow, load_prompts, within_length
from asyncrl.errors import DataError


def open_tokenizer(config: Config) -> ChatTokenizer:
    """The agents' tokenizer, as the configuration names it."""
    model = config.actor_rollout_ref.model
    return ChatTokenizer(
        resolve_path(model.tokenizer_path or model.path),
        max_prompt_length=config.data.max_prompt_length,
        chat_template=model.custom_chat_template,
        template_values=config.data.apply_chat_template_kwargs,
    )


def open_prompts(config: Config, tokenizer: ChatTokenizer) -> tuple[PromptStream, list[PromptRow]]:
    """The stream of training prompts, and the validation rows."""
    data = config.data
    seed = config.trainer.seed if data.seed is None else data.seed
    rows = _load(config, "train_files", data.train_files, data.train_max_samples, seed if data.shuffle else None)
    if data.filter_overlong_prompts:
        rows = within_length(rows, tokenizer.prompt_length, data.max_prompt_length)
    stream = PromptStream(rows, train_batch_size=data.train_batch_size, seed=seed, shuffle=data.shuffle)
    validation: list[PromptRow] = []
    if data.val_files:
        validation = _load(config, "val_files", data.val_files, data.val_max_samples, seed if data.validation_shuffle else None)
    return stream, validation


def total_steps(config: Config, steps_per_epoch: int) -> int:
    """The length of the run: as given, else by epochs."""
    given = config.trainer.total_training_steps
    return config.trainer.total_epochs * steps_per_epoch if given is None else given


def _load(config: Config, option: str, files: Sequence[str], most: int, subset_seed: int | None) -> list[PromptRow]:
    """The rows of the files of ``data.{option}``; an error names the option before file and row."""
    keys = {"prompt_key": config.data.prompt_key, "reward_fn_key": config.data.reward_fn_key}
    paths = [str(resolve_path(file)) for file in files]
    try:
        return load_prompts(paths, **keys, max_samples=most, subset_seed=subset_seed)
    except DataError as error:
        raise DataError(f"data.{option}: {error}") from error
