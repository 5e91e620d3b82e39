"""Request bodies: which fields exist, of which type, and which of OpenAI's are known but not served.

Invariant: no field is ignored unless ignoring it cannot change the answer; null means the default everywhere.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, PlainValidator, ValidationError
from pydantic_core import PydanticCustomError

from splash_core.errors import InvalidRequest

M = TypeVar("M", bound="Body")

_HARMLESS = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
    }
)
"""Bookkeeping of OpenAI's platform: accepted, without effect on the answer."""

_UNSERVED: Mapping[str, tuple[object, ...]] = {
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "parallel_tool_calls": (None, True, False),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "reasoning_effort": (None,),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
    "suffix": (None, ""),
    "logit_processors": (None,),
}
"""Fields that OpenAI knows and this server does not serve, with the values that ask for nothing."""


_MAX_BIASES = 100_000


class Strict(BaseModel):
    """No coercion, no unknown fields, no NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class _UpToFirst(FailFast):
    """Pydantic's mark has no hash, and so cannot be in a union."""

    def __hash__(self) -> int:
        return hash(self.fail_fast)


E = TypeVar("E")
Items = Annotated[list[E], _UpToFirst()]
"""A list that is read up to its first bad element: one error for each would take seconds of a long list."""


def _prompt(value: object) -> object:
    """A prompt, or several; a pydantic union would try a long list as everything that it may be."""
    items: list[Any] = value if isinstance(value, list) else []
    kinds = {type(item) for item in items}
    if isinstance(value, str) or (isinstance(value, list) and kinds <= {str}) or kinds == {int}:
        return value
    if kinds == {list} and all(type(token) is int for item in items for token in item):
        return value
    raise PydanticCustomError(
        "prompt", "a prompt is a text or a list of token ids, several are a list of such"
    )


def _biases(value: object) -> object:
    if isinstance(value, dict) and len(value) > _MAX_BIASES:
        raise PydanticCustomError("biases", "at most {most} tokens may be named", {"most": _MAX_BIASES})
    return value


class Body(Strict):
    """Fields that both generating endpoints share."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: "StreamOptions | None" = None
    stop: str | Items[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[str, float] | None, BeforeValidator(_biases)] = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Items[int] | None = None
    min_tokens: int | None = None
    priority: int | None = None


class StreamOptions(Strict):
    """What a stream shows besides the answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class TextPart(Strict):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class ChatMessage(Strict):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Items[TextPart] | None = None
    name: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None
    tool_calls: None = None


class ChatBody(Body):
    """`POST /v1/chat/completions`."""

    messages: Items[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class CompletionBody(Body):
    """`POST /v1/completions`."""

    prompt: Annotated[str | list[str] | list[int] | list[list[int]], PlainValidator(_prompt)]
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None


class TokenizeBody(Strict):
    """`POST /tokenize`: a text, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Items[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None


class DetokenizeBody(Strict):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: Items[int]
    skip_special_tokens: bool | None = None


Seconds = Annotated[float, Field(ge=0, le=1_000_000)]
"""Longer times overflow what waits for them."""


class LayoutBody(Strict):
    """`POST /admin/layout`."""

    phase: str
    group: str | None = None
    layout: str
    mode: str | None = None
    hold_s: Seconds | None = None


class PinBody(Strict):
    """`POST /admin/pin` and `/admin/unpin`; without a layout, unpin."""

    phase: str
    group: str | None = None
    layout: str | None = None


class DrainBody(Strict):
    """`POST /admin/drain`."""

    deadline_s: Seconds | None = None


def read_generation(kind: type[M], body: Mapping[str, Any]) -> M:
    """A request body of a generating endpoint; raises `InvalidRequest` naming the field."""
    wanted: dict[str, Any] = {}
    for name, value in body.items():
        if name in _HARMLESS:
            continue
        if name in _UNSERVED:
            if not any(value == allowed and type(value) is type(allowed) for allowed in _UNSERVED[name]):
                raise InvalidRequest(
                    f"{name} is not supported by this server; leave it out",
                    param=name,
                    code="unsupported_parameter",
                )
            continue
        wanted[name] = value
    return read(kind, wanted)


S = TypeVar("S", bound=Strict)


def read(kind: type[S], body: Mapping[str, Any]) -> S:
    """A request body; raises `InvalidRequest` naming the field at fault."""
    unknown = next((name for name in body if name not in kind.model_fields), None)
    if unknown is not None:
        raise _unknown(unknown)
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise _readable(error) from None


def _readable(error: ValidationError) -> InvalidRequest:
    """The most telling of pydantic's errors in OpenAI's words; a union reports one for each member."""
    found = error.errors(include_url=False, include_context=False, include_input=True)
    problem = max(found, key=lambda entry: len(_path(entry["loc"])))
    param = _path(problem["loc"])
    same = [entry["msg"] for entry in found if _path(entry["loc"]) == param]
    for entry in found:
        unserved = _unserved(entry)
        if unserved is not None:
            return unserved
    if problem["type"] == "extra_forbidden":
        return _unknown(param)
    if problem["type"] == "missing":
        return InvalidRequest(
            f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
        )
    return InvalidRequest(
        f"Invalid value for '{param}': {' or '.join(dict.fromkeys(same))}; got {_shown(problem['input'])}",
        param=param,
        code="invalid_type",
    )


def _unknown(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"Unrecognized request argument supplied: {param}", param=param, code="unknown_parameter"
    )


def _unserved(entry: Any) -> InvalidRequest | None:
    """What OpenAI knows inside a message and this server does not serve, in plain words."""
    name, given, place = entry["loc"][-1], entry["input"], _path(entry["loc"])
    if name == "type" and "content" in entry["loc"] and entry["type"] == "literal_error":
        text = f"{place} is {_shown(given)}: only parts of type 'text' are served"
    elif name == "role" and given in ("tool", "function"):
        text = f"{place} is {given!r}: tools are not served; roles are system, developer, user and assistant"
    elif name in ("tool_calls", "function_call", "audio") and entry["type"] == "none_required":
        text = f"{place} is not supported by this server; leave it out"
    else:
        return None
    return InvalidRequest(text, param=place, code="unsupported_parameter")


def _shown(value: object) -> str:
    """A value in a message; long ones are not even printed whole."""
    if isinstance(value, dict) and len(value) > 80:
        return f"an object with {len(value)} keys"
    text = repr(value[:80] if isinstance(value, str | list) else value)
    return text if len(text) <= 80 else text[:77] + "..."


def _path(location: tuple[int | str, ...]) -> str:
    """A field's place as a client writes it: `messages[0].role`; names of union members are left out."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in _UNION_MEMBERS:
            path += f".{part}" if path else part
    return path


_UNION_MEMBERS = frozenset({"str", "int", "float", "bool", "none", "TextPart", "StreamOptions"})
