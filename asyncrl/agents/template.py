"""A chat template: Jinja in a sandbox, with the settings and helpers that Hugging Face templates count on."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from asyncrl.errors import ConfigError, DataError

Message = dict[str, Any]


class ChatTemplate:
    """A compiled template. Raises ConfigError when the source is not valid Jinja."""

    def __init__(self, source: str) -> None:
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError("chat template", source[:80], f"it is not valid Jinja: line {error.lineno}: {error.message}") from error

    def render(self, messages: Sequence[Message], values: dict[str, Any]) -> str:
        """The text of ``messages`` with the opening of the next answer. ``values`` are further names for the template.

        Raises DataError when the template refuses the messages.
        """
        given = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True, **values}
        try:
            return self._template.render(given)
        except (jinja2.TemplateError, TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
            raise DataError(f"the chat template refuses {list(messages)!r:.300}: {error}") from error


class _GenerationBlock(Extension):
    """``{% generation %}``, with which templates mark the assistant's part; here it marks nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML characters; templates want plain JSON."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
