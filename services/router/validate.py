"""From a request body to the work it asks for: prompts as token ids, sampling, stop rules, answer format.

Invariant: what leaves here is within the context and the vocabulary; everything else is a 400 that names the
field, and no worker has been called.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from services.router.answers import ChatFormat, CompletionFormat, Echo, Format
from services.router.events import SequenceJob
from services.router.sampling import SamplingReader, Wanted, stop_strings
from services.router.schemas import Body, ChatBody, ChatMessage, CompletionBody, TokenizeBody, read_generation
from services.router.sequence import TextRules
from services.router.tokenizer import TextTooLong, Tokenizer
from splash_core.dispatch.admission import DeploymentLimits
from splash_core.errors import ContextTooLong, InvalidRequest, NotFound

_COMPLETION_TOKENS = 16
"""OpenAI's default `max_tokens` of the completions endpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One validated request."""

    jobs: tuple[SequenceJob, ...]
    """One a choice, in the order of their indices."""
    rules: TextRules
    format: Format
    prompt_tokens: int
    """Of all distinct prompts."""
    stream: bool
    include_usage: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSettings:
    """See `RouterConfig`."""

    names: tuple[str, ...]
    eos_ids: tuple[int, ...]
    max_choices: int
    max_logprobs: int
    max_output_tokens: int | None


class RequestReader:
    """Validates requests against one model and its deployment's limits."""

    def __init__(
        self, tokenizer: Tokenizer, settings: ReaderSettings, *, random_seed: Callable[[], int]
    ) -> None:
        self._tokenizer = tokenizer
        self._settings = settings
        self._sampling = SamplingReader(
            vocab_size=tokenizer.vocab_size, eos_ids=settings.eos_ids, random_seed=random_seed
        )

    def chat(self, raw: dict[str, Any], *, request_id: str, limits: DeploymentLimits) -> Work:
        """A chat request as work."""
        body = read_generation(ChatBody, raw)
        self.check_model(body.model)
        if body.top_logprobs is not None and not body.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        self._check_logprobs(logprobs, "top_logprobs")
        max_tokens = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
        if body.max_completion_tokens not in (None, max_tokens):
            raise InvalidRequest(
                "max_tokens and max_completion_tokens differ; give one of them", param="max_tokens"
            )
        self._check_choices(body.n, 1)
        prompt = self.chat_ids(body.messages, max_tokens=limits.max_prompt)
        wanted = Wanted(max_tokens=max_tokens, logprobs=logprobs, prompt_field="messages", echo=False)
        return self._work(
            body, [prompt], wanted, request_id, limits, ChatFormat(self._tokenizer, logprobs=logprobs)
        )

    def completion(self, raw: dict[str, Any], *, request_id: str, limits: DeploymentLimits) -> Work:
        """A completion request as work."""
        body = read_generation(CompletionBody, raw)
        self.check_model(body.model)
        self._check_logprobs(body.logprobs, "logprobs")
        if body.best_of not in (None, body.n or 1):
            raise InvalidRequest("best_of must equal n; other values are not supported", param="best_of")
        echo = bool(body.echo)
        prompts = self._prompts(body.prompt, limits)
        self._check_choices(body.n, len(prompts))
        if body.max_tokens == 0 and not echo:
            raise InvalidRequest("max_tokens 0 needs echo: true; give at least 1", param="max_tokens")
        echoes = [
            Echo(text=self._echo_text(text, ids), tokens=ids)
            for text, ids in prompts
            for _ in range(body.n or 1)
        ]
        answer = CompletionFormat(self._tokenizer, logprobs=body.logprobs, echoes=echoes if echo else ())
        wanted = Wanted(max_tokens=body.max_tokens, logprobs=body.logprobs, prompt_field="prompt", echo=echo)
        return self._work(body, [ids for _, ids in prompts], wanted, request_id, limits, answer)

    def check_model(self, name: str | None) -> None:
        """Raise `NotFound` unless the model is served here; None means the one that is."""
        if name is not None and name not in self._settings.names:
            raise NotFound(
                f"The model '{name}' does not exist; this server has {', '.join(self._settings.names)}",
                param="model",
                code="model_not_found",
            )

    def chat_ids(
        self, messages: Sequence[ChatMessage], *, max_tokens: int, add_generation_prompt: bool = True
    ) -> tuple[int, ...]:
        """Token ids of a conversation, by the model's template; `ContextTooLong` if far too many."""
        template = self._tokenizer.template
        if template is None:
            raise InvalidRequest("this model has no chat template; use /v1/completions", param="messages")
        if not messages:
            raise InvalidRequest("messages must have at least one message", param="messages")
        plain = [_plain(message, index) for index, message in enumerate(messages)]
        text = template.render(plain, add_generation_prompt=add_generation_prompt)
        return self._encode(text, "messages", max_tokens=max_tokens, add_special_tokens=False)

    def text_ids(self, text: str, *, max_tokens: int, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Token ids of a prompt's text; `ContextTooLong` if far too many."""
        return self._encode(text, "prompt", max_tokens=max_tokens, add_special_tokens=add_special_tokens)

    def tokenized(self, body: TokenizeBody, *, max_tokens: int) -> tuple[int, ...]:
        """Token ids of a text or of a conversation; `ContextTooLong` if there are more than `max_tokens`."""
        if body.messages is not None:
            generation = body.add_generation_prompt is not False
            param, ids = (
                "messages",
                self.chat_ids(body.messages, max_tokens=max_tokens, add_generation_prompt=generation),
            )
        else:
            special = body.add_special_tokens is not False
            param, ids = (
                "prompt",
                self.text_ids(body.prompt or "", max_tokens=max_tokens, add_special_tokens=special),
            )
        if len(ids) > max_tokens:
            raise _beyond(max_tokens, param, f"{len(ids)} tokens")
        return ids

    def check_ids(self, ids: Sequence[int], param: str) -> tuple[int, ...]:
        """Token ids from a client: each in the vocabulary."""
        return self._sampling.check_ids(ids, param)

    def _encode(self, text: str, param: str, *, max_tokens: int, add_special_tokens: bool) -> tuple[int, ...]:
        try:
            ids = self._tokenizer.encode_within(
                text, add_special_tokens=add_special_tokens, max_tokens=max_tokens
            )
        except TextTooLong as error:
            raise _beyond(
                max_tokens, param, f"{len(text)} characters, {error.at_least} tokens or more"
            ) from None
        return tuple(ids)

    def _prompts(
        self, prompt: str | list[str] | list[int] | list[list[int]], limits: DeploymentLimits
    ) -> list[tuple[str | None, tuple[int, ...]]]:
        """Each prompt's text (None where only ids were given) and ids."""
        many: list[Any] = prompt if isinstance(prompt, list) and not _is_ids(prompt) else [prompt]
        if not many:
            raise InvalidRequest("prompt must have at least one prompt", param="prompt")
        if len(many) > self._settings.max_choices:
            raise InvalidRequest(
                f"prompt has {len(many)} prompts; at most {self._settings.max_choices} fit one request",
                param="prompt",
            )
        found: list[tuple[str | None, tuple[int, ...]]] = []
        for one in many:
            if isinstance(one, str):
                found.append((one, self.text_ids(one, max_tokens=limits.max_prompt)))
            else:
                found.append((None, self._sampling.check_ids(one, "prompt")))
        return found

    def _echo_text(self, text: str | None, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False) if text is None else text

    def _check_choices(self, n: int | None, prompts: int) -> None:
        if n is not None and not 1 <= n * prompts <= self._settings.max_choices:
            raise InvalidRequest(
                f"n must be at least 1 and n times prompts at most {self._settings.max_choices}, got {n}",
                param="n",
            )

    def _check_logprobs(self, count: int | None, param: str) -> None:
        if count is not None and not 0 <= count <= self._settings.max_logprobs:
            raise InvalidRequest(
                f"{param} must be 0 to {self._settings.max_logprobs}, got {count}", param=param
            )

    def _work(
        self,
        body: Body,
        prompts: Sequence[tuple[int, ...]],
        wanted: Wanted,
        request_id: str,
        limits: DeploymentLimits,
        answer: Format,
    ) -> Work:
        if body.stream_options is not None and not body.stream:
            raise InvalidRequest("stream_options needs stream: true", param="stream_options")
        stops = stop_strings(body.stop)
        n = 1 if body.n is None else body.n
        jobs: list[SequenceJob] = []
        for prompt in prompts:
            room = self._fit(prompt, wanted, limits)
            for choice in range(n):
                sampling = self._sampling.read(body, wanted, max_tokens=room, choice=choice)
                name = f"{request_id}-{len(jobs)}"
                open_ended = wanted.max_tokens is None
                jobs.append(
                    SequenceJob(request_id=name, prompt=prompt, sampling=sampling, open_ended=open_ended)
                )
        rules = TextRules(stops=stops, min_tokens=jobs[0].sampling.min_tokens)
        return Work(
            jobs=tuple(jobs),
            rules=rules,
            format=answer,
            prompt_tokens=sum(len(prompt) for prompt in prompts),
            stream=bool(body.stream),
            include_usage=bool(body.stream_options and body.stream_options.include_usage),
        )

    def _fit(self, prompt: Sequence[int], wanted: Wanted, limits: DeploymentLimits) -> int:
        """The `max_tokens` of a prompt; raises `ContextTooLong` with the numbers."""
        if not prompt:
            raise InvalidRequest(f"{wanted.prompt_field} is empty", param=wanted.prompt_field)
        least = 1 if wanted.max_tokens is None else wanted.max_tokens
        if least == 0 and len(prompt) <= limits.max_scored:
            return 0
        best = limits.of_prompt(len(prompt))
        if len(prompt) + least > best.max_model_len or len(prompt) > best.max_prompt:
            of_prompt = f", {best.max_prompt} of them in the {wanted.prompt_field}"
            at_least = "at least " if wanted.max_tokens is None else ""
            raise ContextTooLong(
                f"This model's maximum context length is {best.max_model_len} tokens"
                f"{of_prompt if best.max_prompt < best.max_model_len else ''}. However, you requested "
                f"{at_least}{len(prompt) + least} tokens ({len(prompt)} in the {wanted.prompt_field}, "
                f"{at_least}{least} in the completion). "
                f"Please reduce the length of the {wanted.prompt_field} or completion.",
                param=wanted.prompt_field,
            )
        if wanted.max_tokens is not None:
            return wanted.max_tokens
        room = best.max_model_len - len(prompt)
        caps = [
            self._settings.max_output_tokens,
            _COMPLETION_TOKENS if wanted.prompt_field == "prompt" else None,
        ]
        return min([room, *(cap for cap in caps if cap is not None)])


def _beyond(max_tokens: int, param: str, found: str) -> ContextTooLong:
    return ContextTooLong(
        f"At most {max_tokens} tokens are taken here. However, the {param} has {found}. "
        f"Please reduce the length of the {param}.",
        param=param,
    )


def _is_ids(prompt: Sequence[object]) -> bool:
    return bool(prompt) and all(isinstance(token, int) for token in prompt)


def _plain(message: ChatMessage, index: int) -> dict[str, Any]:
    """A message as templates know it: the text of its parts, and `system` for `developer`."""
    content = message.content
    if content is None:
        raise InvalidRequest(
            f"messages[{index}].content is null; give a text", param=f"messages[{index}].content"
        )
    text = content if isinstance(content, str) else "\n".join(part.text for part in content)
    role = "system" if message.role == "developer" else message.role
    return {"role": role, "content": text} | ({"name": message.name} if message.name is not None else {})
