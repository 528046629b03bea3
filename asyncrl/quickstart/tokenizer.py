"""The quickstart's tokenizer: one token a character, in the files that Hugging Face's loaders read."""

from pathlib import Path

import msgspec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from asyncrl.quickstart import sums

SETTINGS = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": 64,
    "pad_token": sums.PAD_TOKEN,
    "eos_token": sums.EOS_TOKEN,
    "clean_up_tokenization_spaces": False,
}


def write_tokenizer(folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` into ``folder``. An unknown character becomes the pad token."""
    tokenizer = Tokenizer(models.WordLevel(sums.VOCABULARY, unk_token=sums.PAD_TOKEN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([sums.PAD_TOKEN, sums.EOS_TOKEN])
    tokenizer.save(str(folder / "tokenizer.json"), pretty=True)
    settings = msgspec.json.format(msgspec.json.encode(SETTINGS), indent=2)
    (folder / "tokenizer_config.json").write_bytes(settings + b"\n")
