"""A small tokenizer folder and a scripted engine, shared by the tests of the agents."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from asyncrl.agents.chat import ChatTokenizer

TEMPLATE = """{{- bos_token }}
{%- for message in messages %}
    {% if message.role not in ('system', 'user', 'assistant') %}
        {{- raise_exception('no role ' + message.role) }}
    {% endif %}
    {{- '<|' + message.role + '|>' }}
    {% if message.role == 'assistant' %}
        {% generation %}{{ message.content | trim }}{% endgeneration %}
    {% else %}
{{ message.content }}
    {% endif %}
    {% if message.facts is defined %}{{ message.facts | tojson }}{% endif %}
{{- eos_token }}
{%- endfor %}
{% if add_generation_prompt %}
<|assistant|>{% if thinking | default(false) %}(think){% endif %}
{% endif %}
"""
CHARACTERS = 'abcdefghijklmnopqrstuvwxyz 0123456789+=?!.,:"<|>(){}[]\nä'
SPECIAL = ("<unk>", "<s>", "</s>", "<pad>", "<|user|>")


def write_folder(folder: Path, template: str | None = TEMPLATE) -> Path:
    """A character tokenizer that also knows ``ab`` as one token, in the files of a Hugging Face folder."""
    tokens = [*SPECIAL, *CHARACTERS]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    vocabulary["ab"] = len(tokens)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("\x00", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": {
            "content": "<s>",
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "__type": "AddedToken",
        },
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
    }
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path)


@pytest.fixture
def tokenizer(folder: Path) -> ChatTokenizer:
    return ChatTokenizer(folder)
