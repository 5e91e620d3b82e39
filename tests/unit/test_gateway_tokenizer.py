"""Tokenizer and chat templates against transformers, which the router itself never imports."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.router.chat_template import ChatTemplate
from services.router.tokenizer import Tokenizer, read_eos_ids
from splash_core.errors import ConfigError, InvalidRequest
from tests.support.scripted_router import SPECIAL, write_tokenizer

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BLOCKS = """
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%Y") %}
    {%- endif %}
{%- endif %}
Today: {{ date_string }}
{% for message in messages %}
    {% if message.role == 'system' %}
        {% continue %}
    {% endif %}
    {% generation %}
{{ message.role }}: {{ message.content | trim }} {{ {"é": "<&>", "n": 1} | tojson }}
{{ [1, 2] | tojson(indent=2) }}
    {% endgeneration %}
    {% if loop.index > 3 %}{% break %}{% endif %}
{% endfor %}
{% set ns = namespace(count=0) %}
{% for message in messages %}{% set ns.count = ns.count + 1 %}{% endfor %}
{{ ns.count }}{{ eos_token }}{{ undefined_thing }}{% if tools is none %}no tools{% endif %}
{% if add_generation_prompt %}
assistant:
{%- endif %}
"""
MESSAGES = [
    {"role": "system", "content": "Be <brief> & kind"},
    {"role": "user", "content": "  naïve café ☃ 😀 "},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "more\n\nlines"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(str(folder))


@pytest.mark.parametrize("source", [CHATML, BLOCKS, None])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_templates_render_as_in_transformers(
    folder: Path, reference: Any, source: str | None, add_generation_prompt: bool
) -> None:
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = source or settings["chat_template"]
    template = ChatTemplate.load(folder, settings)
    assert template is not None
    expected = reference.apply_chat_template(
        MESSAGES,
        chat_template=settings["chat_template"],
        tokenize=False,
        add_generation_prompt=add_generation_prompt,
    )
    assert template.render(MESSAGES, add_generation_prompt=add_generation_prompt) == expected


@pytest.mark.parametrize("text", ["", "hello the inane", "naïve café ☃ 😀", "<|user|>x<|end|>", "\n\n  a\t"])
@pytest.mark.parametrize("special", [True, False])
def test_ids_and_texts_are_those_of_transformers(
    folder: Path, reference: Any, text: str, special: bool
) -> None:
    tokenizer = Tokenizer.load(folder)
    ids = tokenizer.encode(text, add_special_tokens=special)
    assert ids == reference(text, add_special_tokens=special)["input_ids"]
    for skip in (True, False):
        expected = reference.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        assert tokenizer.decode(ids, skip_special_tokens=skip) == expected


def test_template_file_wins_over_settings(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("file: {{ messages[0].content }}")
    template = ChatTemplate.load(tmp_path, {"chat_template": "settings"})
    assert template is not None
    assert template.render([{"role": "user", "content": "x"}], add_generation_prompt=False) == "file: x"


def test_named_templates_take_the_default(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    template = ChatTemplate.load(tmp_path, {"chat_template": named})
    assert template is not None
    assert template.render([], add_generation_prompt=False) == "D"
    assert ChatTemplate.load(tmp_path, {}) is None


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content.no.such.thing }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ 1 + 'a' }}",
    ],
)
def test_what_a_template_refuses_is_a_request_error(source: str) -> None:
    template = ChatTemplate(source, tokens={})
    with pytest.raises(InvalidRequest) as caught:
        template.render([{"role": "user", "content": "x"}], add_generation_prompt=True)
    assert caught.value.param == "messages"


def test_a_template_that_does_not_compile_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not compile"):
        ChatTemplate.load(tmp_path, {"chat_template": "{% if %}"})


def test_bos_is_added_where_the_settings_say_so(tmp_path: Path, folder: Path) -> None:
    raw = json.loads((folder / "tokenizer.json").read_text())
    raw["post_processor"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    settings = {"bos_token": SPECIAL[0], "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer.load(tmp_path)
    plain = tokenizer.encode("in", add_special_tokens=False)
    assert len(plain) == 1
    with_bos = tokenizer.encode("in", add_special_tokens=True)
    assert with_bos[1:] == plain
    assert tokenizer.token_bytes(with_bos[0]) == b"<|bos|>"


def test_eos_comes_from_the_generation_settings(tmp_path: Path, folder: Path) -> None:
    assert len(read_eos_ids(folder)) == 1
    (tmp_path / "config.json").write_text('{"eos_token_id": 3}')
    assert read_eos_ids(tmp_path) == (3,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [4, 5]}')
    assert read_eos_ids(tmp_path) == (4, 5)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json is missing"):
        Tokenizer.load(tmp_path)
