"""A plain route answers what the framework's own would."""

from __future__ import annotations

from typing import Annotated

import httpx2
import pytest
from fastapi import APIRouter, FastAPI, Header, Query
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from signalling.plain_route import PlainRoute
from signalling.problems import on_invalid_request
from signalling.rest_types import Answer, Body

pytestmark = pytest.mark.asyncio

JSON = {"Content-Type": "application/json"}


class Wish(Body):
    text: str
    number: int = 0


class Granted(Answer):
    name: str
    text: str
    number: int
    key: str | None


def application(route_class: type[APIRoute]) -> FastAPI:
    router = APIRouter(route_class=route_class)

    @router.post("/wishes/{name}", status_code=201)
    async def grant(
        name: str, wish: Wish, key: Annotated[str | None, Header(alias="Wish-Key")] = None
    ) -> Granted:
        return Granted(name=name, text=wish.text, number=wish.number, key=key)

    @router.delete("/wishes/{name}")
    async def drop(name: str, number: Annotated[int, Query()] = 7, why: str = "") -> Granted:
        return Granted(name=name, text=why, number=number, key=None)

    @router.get("/wishes/{name}")
    async def find(name: str, number: int) -> Granted:
        return Granted(name=name, text="", number=number, key=None)

    app = FastAPI(exception_handlers={RequestValidationError: on_invalid_request})
    app.router.routes.extend(router.routes)
    return app


async def asked(
    route_class: type[APIRoute],
    method: str,
    path: str,
    content: bytes,
    headers: list[tuple[str, str]],
) -> tuple[int, str | None, str]:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    transport = httpx2.ASGITransport(application(route_class))
    async with httpx2.AsyncClient(transport=transport, base_url="http://door") as client:
        answer = await client.request(method, path, content=content, headers=raw)
    return answer.status_code, answer.headers.get("content-type"), answer.text


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        (b'{"text": "a \\u00e4", "number": 3}', "application/json"),
        ('{"text": "ä"}'.encode(), "application/json; charset=utf-8"),
        (b'{"text": "a"}', "application/problem+json"),
        (b'{"text": "a"}', "text/plain"),
        (b'{"text": "a"}', ""),
        (b'{"text": "a", "text": "b"}', "application/json"),
        (b'{"text": "a", "number": "3"}', "application/json"),
        (b'{"text": "a", "number": NaN}', "application/json"),
        (b'{"text": "a", "more": 1}', "application/json"),
        (b"{}", "application/json"),
        (b"[]", "application/json"),
        (b"null", "application/json"),
        (b"", "application/json"),
        (b"{", "application/json"),
        (b"\xff\xfe", "application/json"),
        (b"[" * 100_000, "application/json"),
    ],
)
async def test_a_body_is_taken_as_by_the_framework(content: bytes, content_type: str) -> None:
    headers = [("Content-Type", content_type)] if content_type else []
    expected = await asked(APIRoute, "POST", "/wishes/a", content, headers)
    assert await asked(PlainRoute, "POST", "/wishes/a", content, headers) == expected


@pytest.mark.parametrize(
    "headers", [[], [("Wish-Key", "")], [("wish-key", "é")], [("Wish-Key", "a"), ("Wish-Key", "b")]]
)
async def test_so_are_headers(headers: list[tuple[str, str]]) -> None:
    every = [*JSON.items(), *headers]
    expected = await asked(APIRoute, "POST", "/wishes/a", b'{"text": ""}', every)
    assert expected[0] == 201
    assert await asked(PlainRoute, "POST", "/wishes/a", b'{"text": ""}', every) == expected


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/wishes/a%20b"),
        ("DELETE", "/wishes/a?number=3&why=so%20"),
        ("DELETE", "/wishes/a?why="),
        ("DELETE", "/wishes/a?number=three"),
        ("DELETE", "/wishes/a?"),
        ("GET", "/wishes/a?number=3"),
        ("GET", "/wishes/a"),
        ("PUT", "/wishes/a"),
        ("GET", "/nothing"),
    ],
)
async def test_so_are_methods_paths_and_queries(method: str, path: str) -> None:
    expected = await asked(APIRoute, method, path, b"", [])
    assert await asked(PlainRoute, method, path, b"", []) == expected
