"""The OpenAI-compatible HTTP endpoints.

Invariant: every answer that is not a success is an OpenAI error object, including those for unknown URLs.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from services.router.answers import Header
from services.router.config import RouterConfig
from services.router.dispatch import Dispatcher
from services.router.errors import UnknownUrl, error_response, status_of
from services.router.generation import Generator
from services.router.health import alive_causes, gauges, ready_causes
from services.router.http import ClientGone, EventStream, check_key, read_json, unless_gone
from services.router.metrics import Metrics
from services.router.registry import Registry, no_worker
from services.router.running import RunningAnswers
from services.router.schemas import DetokenizeBody, TokenizeBody, read
from services.router.tokenizer import Tokenizer
from services.router.validate import RequestReader, Work
from splash_core.dispatch.admission import DeploymentLimits
from splash_core.errors import InvalidRequest, InvariantBroken, SplashError

_LOG = logging.getLogger("splash.router")
_CLIENT_CLOSED = 499
"""What the metrics call a client that left; never sent, since nobody would read it."""

Handler = Callable[[Request], Any]
ReadWork = Callable[..., Work]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Clocks and identifiers, injected so that tests can fix them."""

    monotonic: Callable[[], float]
    wall: Callable[[], float]
    new_id: Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The endpoints and what they stand on."""

    config: RouterConfig
    registry: Registry
    dispatcher: Dispatcher
    tokenizer: Tokenizer
    reader: RequestReader
    generator: Generator
    metrics: Metrics
    answers: RunningAnswers
    sources: Sources

    def app(self) -> Starlette:
        """The ASGI application."""
        open_to_all = {
            "/health": self.health,
            "/ready": self.ready,
            "/metrics": self.render_metrics,
        }
        get = {"/v1/models": self.models, "/v1/models/{name:path}": self.model}
        post = {
            "/v1/chat/completions": self.chat,
            "/v1/completions": self.completion,
            "/tokenize": self.tokenize,
            "/detokenize": self.detokenize,
        }
        routes = [Route(path, self._guarded(path, handler, None)) for path, handler in open_to_all.items()]
        key = self.config.api_key
        routes += [Route(path, self._guarded(path, handler, key)) for path, handler in get.items()]
        routes += [
            Route(path, self._guarded(path, handler, key), methods=["POST"]) for path, handler in post.items()
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: unknown_url})

    async def chat(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        return await self._generate(request, self.reader.chat, prefix="chatcmpl")

    async def completion(self, request: Request) -> Response:
        """`POST /v1/completions`."""
        return await self._generate(request, self.reader.completion, prefix="cmpl")

    async def models(self, _: Request) -> Response:
        """`GET /v1/models`."""
        return JSONResponse(
            {"object": "list", "data": [self._model(name) for name in self.config.accepted_names]}
        )

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/NAME`."""
        name = request.path_params["name"]
        self.reader.check_model(name)
        return JSONResponse(self._model(name))

    async def tokenize(self, request: Request) -> Response:
        """`POST /tokenize`: ids of a text or of a conversation."""
        body = read(TokenizeBody, await read_json(request, max_bytes=self.config.max_body_bytes))
        self.reader.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise InvalidRequest("give either prompt or messages", param="prompt")
        # Away from the event loop: a long text takes seconds.
        ids = await asyncio.to_thread(self.reader.tokenized, body, max_tokens=self.config.max_tokenized)
        limits = self.registry.limits()
        return JSONResponse(
            {
                "count": len(ids),
                "max_model_len": None if limits is None else limits.max_model_len,
                "tokens": ids,
            }
        )

    async def detokenize(self, request: Request) -> Response:
        """`POST /detokenize`: the text of token ids."""
        body = read(DetokenizeBody, await read_json(request, max_bytes=self.config.max_body_bytes))
        self.reader.check_model(body.model)
        most = self.config.max_tokenized
        if len(body.tokens) > most:
            raise InvalidRequest(
                f"tokens has {len(body.tokens)} ids; at most {most} are taken", param="tokens"
            )
        ids = self.reader.check_ids(body.tokens, "tokens")
        skip = bool(body.skip_special_tokens)
        text = await asyncio.to_thread(self.tokenizer.decode, ids, skip_special_tokens=skip)
        return JSONResponse({"prompt": text})

    async def health(self, _: Request) -> Response:
        """`GET /health`: 200 while every group makes steps or is idle."""
        causes = alive_causes(
            self.registry.records(), now_s=self.sources.monotonic(), limit_s=self.config.stall_s
        )
        return error_response(no_worker(causes)) if causes else JSONResponse({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        """`GET /ready`: 200 while requests can be served."""
        causes = ready_causes(self.registry, self.dispatcher)
        return error_response(no_worker(causes)) if causes else JSONResponse({"status": "ready"})

    async def render_metrics(self, _: Request) -> Response:
        """`GET /metrics`: Prometheus' text form."""
        page = self.metrics.render(gauges(self.registry, self.dispatcher))
        return PlainTextResponse(page, media_type="text/plain; version=0.0.4")

    async def _generate(self, request: Request, read_work: ReadWork, *, prefix: str) -> Response:
        raw = await read_json(request, max_bytes=self.config.max_body_bytes)
        request_id = f"{prefix}-{self.sources.new_id()}"
        limits = self._limits()
        # Tokenising a long prompt takes long enough to stall other streams.
        work = await asyncio.to_thread(read_work, raw, request_id=request_id, limits=limits)
        self.dispatcher.check_entry(
            sequences=len(work.jobs),
            prompt_tokens=sum(len(job.prompt) for job in work.jobs),
            scoring=all(job.sampling.max_tokens == 0 for job in work.jobs),
        )
        header = Header(answer_id=request_id, created=int(self.sources.wall()), model=self.config.model_name)
        return await self._answer(request, work, header)

    async def _answer(self, request: Request, work: Work, header: Header) -> Response:
        if not work.stream:
            body = await unless_gone(request, self.generator.whole(work, header))
            return JSONResponse(body, headers={"x-request-id": header.answer_id})
        chunks = self.generator.chunks(work, header)
        try:
            first = await unless_gone(request, _first(chunks))
        except BaseException:
            await chunks.aclose()
            raise
        return EventStream(
            chunks,
            first=first,
            within=self.answers.within(self.config.request_timeout_s),
            on_error=lambda: self.metrics.count("splash_stream_errors_total"),
            request_id=header.answer_id,
        )

    def _limits(self) -> DeploymentLimits:
        limits = self.registry.limits()
        if limits is None:
            raise no_worker(self.registry.causes())
        return limits

    def _model(self, name: str) -> dict[str, Any]:
        limits = self.registry.limits()
        return {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "splash",
            "max_model_len": None if limits is None else limits.max_model_len,
        }

    def _guarded(self, path: str, handler: Handler, key: str | None) -> Handler:
        """An endpoint that checks the key, counts its answers and turns errors into error objects."""

        async def endpoint(request: Request) -> Response:
            try:
                check_key(request, key)
                async with self.answers.within(self.config.request_timeout_s):
                    response: Response = await handler(request)
            except ClientGone:
                self.metrics.count("splash_requests_total", endpoint=path, code=str(_CLIENT_CLOSED))
                return Response(status_code=_CLIENT_CLOSED)
            except SplashError as error:
                if status_of(error) >= 500:
                    _LOG.warning("request failed", extra={"fields": {"endpoint": path, "cause": str(error)}})
                response = error_response(error)
            except Exception:
                _LOG.exception("request failed")
                response = error_response(InvariantBroken("internal error; see the router's log"))
            self.metrics.count("splash_requests_total", endpoint=path, code=str(response.status_code))
            return response

        return endpoint


async def _first(chunks: Any) -> dict[str, Any]:
    return await anext(chunks)


async def unknown_url(request: Request, error: Exception) -> Response:
    """404 and 405 for what is not offered."""
    assert isinstance(error, HTTPException)
    message = f"Unknown request URL: {request.method} {request.url.path}. Please check the URL for typos."
    if error.status_code == 405:
        message = f"Not allowed to {request.method} on {request.url.path}."
    return error_response(UnknownUrl(message, status=error.status_code, headers=dict(error.headers or {})))
