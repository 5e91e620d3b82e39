"""The policy's endpoints on the admin port: read, edit, compare, go back.

Invariant: an edit that is refused answers 400 (or 409) with the reason, and has changed nothing.
"""

import json
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from services.router.http import read_body, read_json
from services.router.policy_keeper import as_invalid
from services.router.policy_service import PolicyService
from services.router.schemas import Strict, read
from splash_core.errors import ConfigError, InvalidRequest, NotFound
from splash_core.policy.document import MAX_DOCUMENT_BYTES, PolicyDocument, parse_document, read_document
from splash_core.policy.versions import changes
from splash_core.spec.fields import parse_json

_MOST_BYTES = 4 * MAX_DOCUMENT_BYTES
"""Room for JSON with its own spacing and escapes; the document itself is bounded by its text."""


class RollbackBody(Strict):
    """`POST /admin/policy/rollback`."""

    version: int
    expected: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAdmin:
    """The endpoints and what they stand on."""

    service: PolicyService

    async def get(self, _: Request) -> Response:
        """`GET /admin/policy`: the active version, and what each group decides by."""
        told = self.service.to_json()
        return JSONResponse(told, headers={"etag": f'"{told["version"] or 0}"'})

    async def put(self, request: Request) -> Response:
        """`PUT /admin/policy?dry_run=0|1`: a whole document, as TOML text or (by its content type) JSON."""
        expected, dry_run = _expected(request), _dry_run(request)
        try:
            document = await _document(request)
            answer = await self.service.edit(document, source="admin API", expected=expected, dry_run=dry_run)
        except InvalidRequest as error:
            if not dry_run:
                self.service.keeper.reject(str(error), source="admin API")
            raise
        return JSONResponse(answer)

    async def versions(self, _: Request) -> Response:
        """`GET /admin/policy/versions`: all that are kept, oldest first, without their documents."""
        kept = self.service.keeper.history.versions
        return JSONResponse({"versions": [version.summary() for version in kept]})

    async def version(self, request: Request) -> Response:
        """`GET /admin/policy/versions/N`: one with its document."""
        number = _number(request.path_params["number"], param="version")
        return JSONResponse(self.service.keeper.history.find(number).to_json())

    async def diff(self, request: Request) -> Response:
        """`GET /admin/policy/diff?from=A&to=B`: key by key; default: the active one and the one before."""
        history, asked = self.service.keeper.history, request.query_params
        if history.active is None:
            raise NotFound("this router has no policy version yet; PUT one", param="to")
        after = history.find(_number(asked["to"], param="to")) if "to" in asked else history.active
        if "from" in asked:
            before = history.find(_number(asked["from"], param="from"))
        else:
            earlier = [version for version in history.versions if version.number < after.number]
            if not earlier:
                raise NotFound(f"there is no version before {after.number}", param="from")
            before = earlier[-1]
        found = changes(before.document, after.document)
        return JSONResponse(
            {
                "from": before.summary(),
                "to": after.summary(),
                "changes": [change.to_json() for change in found],
            }
        )

    async def rollback(self, request: Request) -> Response:
        """`POST /admin/policy/rollback`: an earlier version's document as a new version."""
        body = read(RollbackBody, await read_json(request, max_bytes=_MOST_BYTES))
        version = self.service.keeper.history.find(body.version)
        source = f"admin API, back to version {version.number}"
        return JSONResponse(await self.service.edit(version.document, source=source, expected=body.expected))


async def _document(request: Request) -> PolicyDocument:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == "application/json":
            return read_document(await read_json(request, max_bytes=_MOST_BYTES, parse=_parsed))
        text = (await read_body(request, max_bytes=_MOST_BYTES)).decode()
        return parse_document(text)
    except ConfigError as error:
        raise as_invalid(error) from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"policy: not UTF-8: {error}", param="policy", code="invalid_policy") from None


def _parsed(body: bytes) -> Any:
    """A short text: that keys stand once, and are no halves of surrogate pairs, may take its time."""
    value = parse_json(body)
    json.dumps(value, ensure_ascii=False).encode()
    return value


def _expected(request: Request) -> int | None:
    """The version that an edit was made from: `If-Match`, or `expected` in the query."""
    header, query = request.headers.get("if-match", "*"), request.query_params.get("expected")
    tag = None if header == "*" else _number(header.removeprefix("W/").strip('"'), param="If-Match")
    number = None if query is None else _number(query, param="expected")
    if None not in (tag, number) and tag != number:
        raise InvalidRequest(f"If-Match says version {tag}, expected {number}; give one", param="expected")
    return tag if number is None else number


def _dry_run(request: Request) -> bool:
    asked = request.query_params.get("dry_run", "0")
    if asked not in ("0", "1"):
        raise InvalidRequest(f"dry_run must be 0 or 1, got {asked!r}", param="dry_run")
    return asked == "1"


def _number(text: str, *, param: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise InvalidRequest(f"{param} must be the number of a policy version, got {text!r}", param=param)
    return int(text)
