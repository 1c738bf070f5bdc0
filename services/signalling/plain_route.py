"""A route that FastAPI documents, but that is served without what FastAPI prepares on each request
for dependencies, forms and streams: that took longer than sessions do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send


@dataclass(frozen=True, slots=True)
class _Parameters:
    """What an endpoint takes beside texts of the path: headers by name in lower case, and one
    body.
    """

    headers: Sequence[tuple[bytes, str]]
    body: tuple[str, type[BaseModel]] | None
    unasked: Mapping[str, object]
    """What the parameters of the query are without one."""

    def read(self, scope: Scope, content: bytes) -> dict[str, object]:
        """Return the values; raises ValueError where something is not as it should be."""
        if self.unasked and scope["query_string"]:
            raise ValueError("a query")
        values: dict[str, object] = {**self.unasked, **scope["path_params"]}
        given = dict(reversed(scope["headers"]))  # of several the first one
        for header, name in self.headers:
            value = given.get(header)
            values[name] = None if value is None else value.decode("latin-1")
        if self.body is not None:
            if given.get(b"content-type") != b"application/json":
                raise ValueError("not plain JSON")
            name, model = self.body
            values[name] = _validated(model, json.loads(content))
        return values


class PlainRoute(APIRoute):
    """Serves by itself what takes texts of the path, optional texts of headers and at most one
    body. Other endpoints, requests with a query, where the endpoint takes one, and requests that
    are not as they should be are left to FastAPI.

    An endpoint returns the documented model, or a Response.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request that has matched."""
        parameters = self._parameters
        if parameters is None or scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)
            return
        request = await receive()  # whole, as nothing that comes here streams its body
        try:
            values = parameters.read(scope, request.get("body", b""))
        except (ValueError, RecursionError):
            await super().handle(scope, _again(request, receive), send)
            return
        answer = await self.endpoint(**values)
        if not isinstance(answer, Response):
            answer = answered(answer, self.status_code or 200)
        await answer(scope, receive, send)

    @cached_property
    def _parameters(self) -> _Parameters | None:
        takes = self.dependant
        queries = takes.query_params
        if takes.request_param_name or any(each.field_info.is_required() for each in queries):
            return None
        unasked = {each.name: each.get_default() for each in queries}
        headers = [(each.alias.lower().encode(), each.name) for each in takes.header_params]
        for each in takes.body_params:
            model = each.field_info.annotation
            if not (isinstance(model, type) and issubclass(model, BaseModel)):
                return None
            return _Parameters(headers, (each.name, model), unasked)
        return _Parameters(headers, None, unasked)


def _validated(model: type[BaseModel], value: object) -> BaseModel:
    """Return a body; raises the framework's error, so that nobody validates it again."""
    try:
        return model.model_validate(value, from_attributes=True)  # as FastAPI does
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        located = [{**each, "loc": ("body", *each["loc"])} for each in faults]
        raise RequestValidationError(located) from None


def answered(
    answer: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a model as an answer in JSON."""
    return Response(
        answer.model_dump_json(by_alias=True), status, headers, media_type="application/json"
    )


def _again(request: Message, receive: Receive) -> Receive:
    messages = [request]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay
