"""Prompts to tokens and back, against transformers' own tokenizer."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from asyncrl.agents.chat import ChatTokenizer
from asyncrl.agents.template import ChatTemplate
from asyncrl.errors import ConfigError, DataError

CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "what is 3+4?"}],
    [{"role": "system", "content": "be brief."}, {"role": "user", "content": " ab ä\n\nab "}],
    [{"role": "user", "content": "1"}, {"role": "assistant", "content": "  2 "}, {"role": "user", "content": "3"}],
    [{"role": "user", "content": "look", "facts": {"b": ["ä", 1, None], "a": "<b>"}}],
    [{"role": "user", "content": "</s><|user|><s>"}],
]


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("values", [{}, {"thinking": True}, {"bos_token": "!"}])
def test_a_chat_becomes_the_ids_that_transformers_gives(folder: Path, chat: list[dict[str, Any]], values: dict[str, Any]) -> None:
    peer = AutoTokenizer.from_pretrained(folder)
    expected = peer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False, truncation=False, **values)
    ids = ChatTokenizer(folder, template_values=values).encode_prompt(chat)
    assert ids == expected
    assert ChatTokenizer(folder).decode(ids, skip_special_tokens=False) == peer.decode(ids)
    assert ChatTokenizer(folder).decode(ids) == peer.decode(ids, skip_special_tokens=True)


def test_the_last_open_turn_is_the_assistants(tokenizer: ChatTokenizer) -> None:
    text = tokenizer.decode(tokenizer.encode_prompt([{"role": "user", "content": "hi"}]), skip_special_tokens=False)
    assert text == "<s><|user|>\nhi\n</s><|assistant|>"


def test_a_text_is_encoded_as_it_is(tokenizer: ChatTokenizer) -> None:
    ids = tokenizer.encode_prompt("3+4=")
    assert tokenizer.decode(ids, skip_special_tokens=False) == "3+4="
    assert len(ids) == 4


def test_the_cut_and_padding_in_the_file_are_not_used(tokenizer: ChatTokenizer) -> None:
    assert len(tokenizer.encode_prompt("0123456789")) == 10
    assert len(tokenizer.encode_prompt("01")) == 2


def test_a_long_prompt_loses_its_left_end_and_its_length_is_known(folder: Path) -> None:
    cut = ChatTokenizer(folder, max_prompt_length=3)
    assert cut.decode(cut.encode_prompt("12345")) == "345"
    assert cut.decode(cut.encode_prompt("12")) == "12"
    assert cut.prompt_length("12345") == 5
    chat = [{"role": "user", "content": "hi"}]
    whole = ChatTokenizer(folder)
    assert cut.prompt_length(chat) == len(whole.encode_prompt(chat))
    assert cut.encode_prompt(chat) == whole.encode_prompt(chat)[-3:]


def test_the_ends_are_those_of_tokenizer_and_generation_configuration(folder: Path) -> None:
    assert ChatTokenizer(folder).eos_ids == (2,)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 2]}))
    assert ChatTokenizer(folder).eos_ids == (2, 9)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 7}))
    assert ChatTokenizer(folder).eos_ids == (2, 7)
    assert ChatTokenizer(folder).pad_id == 3
    assert ChatTokenizer(folder).vocab_size == max(ChatTokenizer(folder).encode_prompt("ab")) + 1


def test_a_template_file_comes_before_the_one_in_the_configuration_and_a_given_one_before_both(folder: Path) -> None:
    chat = [{"role": "user", "content": "hi"}]
    (folder / "chat_template.jinja").write_text("file {{ messages[0].content }}")
    assert ChatTokenizer(folder).decode(ChatTokenizer(folder).encode_prompt(chat)) == "file hi"
    peer = AutoTokenizer.from_pretrained(folder)
    assert peer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == "file hi"
    given = ChatTokenizer(folder, chat_template="given {{ messages[0].content }}")
    assert given.decode(given.encode_prompt(chat)) == "given hi"


def test_of_several_named_templates_the_default_one_counts(folder: Path) -> None:
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    chat = [{"role": "user", "content": "hi"}]
    assert ChatTokenizer(folder).decode(ChatTokenizer(folder).encode_prompt(chat)) == "d"


def test_without_a_template_only_texts_can_be_encoded(folder: Path) -> None:
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert ChatTokenizer(folder).encode_prompt("hi")
    with pytest.raises(DataError, match="no chat template"):
        ChatTokenizer(folder).encode_prompt([{"role": "user", "content": "hi"}])


def test_a_prompt_that_the_template_refuses_or_that_has_no_tokens_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="no role robot"):
        ChatTokenizer(folder).encode_prompt([{"role": "robot", "content": "hi"}])
    with pytest.raises(DataError, match="has no tokens"):
        ChatTokenizer(folder, chat_template="{# nothing #}").encode_prompt([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__ }}{{ ''.__class__.mro() }}",
        "{{ raise_exception.__globals__['json'] }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    with pytest.raises(DataError, match="refuses"):
        ChatTemplate(source).render([{"role": "user", "content": "hi"}], {})


def test_a_template_may_ask_for_the_date_and_leave_a_loop() -> None:
    source = "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m }}{% endfor %} {{ strftime_now('%Y') }}"
    assert re.fullmatch(r"\{'role': 'user'\} \d{4}", ChatTemplate(source).render([{"role": "user"}, {"role": "user"}], {}))


def test_broken_folders_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.path.*expected a folder with tokenizer\.json"):
        ChatTokenizer(tmp_path / "none")
    with pytest.raises(ConfigError, match="not valid Jinja: line 1"):
        ChatTokenizer(folder, chat_template="{% for %}")
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json.*not readable"):
        ChatTokenizer(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="not a readable tokenizer"):
        ChatTokenizer(folder)
