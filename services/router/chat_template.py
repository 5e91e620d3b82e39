"""Chat messages to prompt text: the checkpoint's Jinja template, rendered as Hugging Face renders it.

Templates come with a checkpoint, so they run in Jinja's immutable sandbox. Invariant: what a template refuses
(`raise_exception`) or cannot render is the client's error, named as such.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, Undefined, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from splash_core.errors import ConfigError, InvalidRequest

_TOKEN_FIELDS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class ChatTemplate:
    """One compiled chat template and the special tokens that it may name."""

    def __init__(self, source: str, *, tokens: Mapping[str, str]) -> None:
        self._template = _compile(source)
        self._tokens = dict(tokens)

    @classmethod
    def load(cls, folder: Path, settings: Mapping[str, Any]) -> "ChatTemplate | None":
        """The template in chat_template.jinja, else tokenizer_config.json's; None without one."""
        file = folder / "chat_template.jinja"
        source = file.read_text() if file.is_file() else _default_template(settings.get("chat_template"))
        if source is None:
            return None
        tokens = {name: _content(settings[name]) for name in _TOKEN_FIELDS if settings.get(name) is not None}
        try:
            return cls(source, tokens=tokens)
        except TemplateError as error:
            raise ConfigError(f"the chat template of {folder} does not compile: {error}") from error

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool) -> str:
        """The prompt text of a conversation."""
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._tokens,
            )
        except (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise InvalidRequest(
                f"the model's chat template cannot render these messages: {error}", param="messages"
            ) from error


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's tokens for training; for serving it is its body."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The statements between the tags."""
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _compile(source: str) -> Template:
    # The same environment as transformers' `apply_chat_template`.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock], undefined=Undefined
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(source)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 (templates pass it by position)
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """Jinja's own filter escapes HTML; prompts must not."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _default_template(source: object) -> str | None:
    """tokenizer_config.json holds one template, or a list of named ones."""
    if isinstance(source, str):
        return source
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, Mapping)}
        template = named.get("default")
        return template if isinstance(template, str) else None
    return None


def _content(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, Mapping) else str(token)
