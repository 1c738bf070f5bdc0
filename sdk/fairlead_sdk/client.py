"""The front door over HTTP: requests that are safe to repeat, streams of JSON lines, uploads.

Every mutation carries an Idempotency-Key, so a request whose answer was lost is sent again.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from urllib.parse import urlsplit

import httpx2

from fairlead_sdk import json_form as form
from fairlead_sdk.errors import (
    FairleadError,
    MeshUnavailable,
    Unavailable,
    error_from_problem,
)
from fairlead_sdk.json_form import JsonObject

NDJSON = "application/x-ndjson"
PACK = "application/x-fairlead-pack"
_PAUSES = (0.1, 0.3)
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 60.0
# A stream that is silent for so long is taken up again by its cursor: a dead connection (sleep,
# NAT) looks just like a quiet command.
_SILENCE_SECONDS = 60.0
_LONGEST_LINE_BYTES = 4 * 1024 * 1024

Sleep = Callable[[float], Awaitable[None]]


def make_idempotency_key() -> str:
    """Make a key for one mutation; use it for every attempt."""
    return secrets.token_urlsafe(18)


class FrontDoor:
    """A connection pool to one front door. Use as an async context manager."""

    def __init__(
        self,
        *,
        url: str,
        api_key: str,
        transport: httpx2.AsyncBaseTransport | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.url = url
        self.sleep = sleep
        headers = {"Accept-Encoding": "identity", "User-Agent": "fairlead-sdk"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        parts = urlsplit(url)
        self._client = httpx2.AsyncClient(
            base_url=url,
            headers=headers,
            timeout=_timeout(_ANSWER_SECONDS),
            transport=transport,
            # Proxies of the environment are not for this machine's own stack.
            trust_env=parts.hostname not in {"127.0.0.1", "localhost", "::1"},
            verify=True if parts.scheme == "https" else _no_authorities(),
        )

    async def __aenter__(self) -> FrontDoor:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> JsonObject:
        """Read a resource."""
        return await self._request("GET", path, params=params)

    async def post(self, path: str, body: JsonObject | None = None, *, key: str = "") -> JsonObject:
        """Change something; `key` is the idempotency key, made up when empty."""
        return await self._request("POST", path, body=body, key=key or make_idempotency_key())

    async def delete(self, path: str) -> JsonObject:
        """Remove a resource."""
        return await self._request("DELETE", path, key=make_idempotency_key())

    async def _request(
        self,
        method: str,
        path: str,
        *,
        body: JsonObject | None = None,
        params: Mapping[str, str] | None = None,
        key: str = "",
    ) -> JsonObject:
        headers = {"Idempotency-Key": key} if key else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        for pause in (*_PAUSES, None):
            try:
                with self._transport_errors():
                    response = await self._client.request(
                        method, path, content=_encoded(body), params=params, headers=headers
                    )
                    _raise_for_problem(response.status_code, response.content)
                    return _read(response.content)
            except Unavailable:
                if pause is None:
                    raise
                await self.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        body: JsonObject | None = None,
        params: Mapping[str, str] | None = None,
        key: str = "",
    ) -> AsyncIterator[AsyncIterator[JsonObject]]:
        """Open a stream of JSON lines, without any retry: `resumed` is the place for that."""
        headers = {"Accept": NDJSON}
        if key:
            headers["Idempotency-Key"] = key
        if body is not None:
            headers["Content-Type"] = "application/json"
        with self._transport_errors():
            async with self._client.stream(
                method,
                path,
                content=_encoded(body),
                params=params,
                headers=headers,
                timeout=_timeout(_SILENCE_SECONDS),
            ) as response:
                if response.status_code >= 400:
                    _raise_for_problem(response.status_code, await response.aread())
                yield _lines(response)

    async def upload(self, token: str, content: Callable[[], AsyncIterator[bytes]]) -> JsonObject:
        """Send a pack for the miss that gave `token`; a broken connection starts it again."""
        key = make_idempotency_key()
        for pause in (*_PAUSES, None):
            try:
                with self._transport_errors():
                    response = await self._client.post(
                        "/v1/snapshots",
                        params={"upload": token},
                        content=content(),
                        headers={"Content-Type": PACK, "Idempotency-Key": key},
                        timeout=_timeout(None),
                    )
                    _raise_for_problem(response.status_code, response.content)
                    return _read(response.content)
            except MeshUnavailable:
                if pause is None:
                    raise
                await self.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _transport_errors(self) -> _TransportErrors:
        return _TransportErrors(self.url)


class _TransportErrors:
    """Turns what the HTTP library raises into errors of ours."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        match error:
            case httpx2.ConnectError() | httpx2.ConnectTimeout():
                raise MeshUnavailable(
                    f"Nothing answers at {self._url}.",
                    reason="mesh_unreachable",
                    remedy="Start the stack with `fairlead up`, or point FAIRLEAD_URL at one.",
                ) from error
            case httpx2.TimeoutException():
                raise MeshUnavailable(
                    f"The front door at {self._url} does not answer in time.",
                    reason="mesh_silent",
                    remedy="`fairlead doctor` shows what is wrong.",
                ) from error
            case httpx2.TransportError() | httpx2.StreamError():
                raise MeshUnavailable(
                    f"The connection to {self._url} broke.",
                    reason="connection_lost",
                    remedy="Try again; `fairlead doctor` shows what is wrong.",
                ) from error
            case httpx2.InvalidURL():
                raise MeshUnavailable(
                    f"{self._url} is not an address.",
                    reason="url_invalid",
                    remedy="Set FAIRLEAD_URL to something like http://127.0.0.1:7300.",
                ) from error
            case _:
                return


def problem_of(document: JsonObject) -> FairleadError | None:
    """Give the error that a line of a stream carries instead of an event; `None` for an event."""
    if form.text(document, "type") != "problem":
        return None
    problem = form.child(document, "problem") or {}
    return error_from_problem(form.number(problem, "status") or 500, problem)


async def _lines(response: httpx2.Response) -> AsyncIterator[JsonObject]:
    kept = bytearray()
    async for chunk in response.aiter_raw():
        kept += chunk
        if b"\n" not in chunk:
            if len(kept) > _LONGEST_LINE_BYTES:
                raise _malformed()
            continue
        *whole, rest = bytes(kept).split(b"\n")
        kept = bytearray(rest)
        for line in whole:
            if line.strip():
                yield _read(line)


def _raise_for_problem(status: int, content: bytes) -> None:
    if status < 400:
        return
    try:
        problem = form.parse_object(content)
    except ValueError:
        problem = {}
    error = error_from_problem(status, problem)
    if status == 401 and not error.remedy:
        error.remedy = "Set FAIRLEAD_API_KEY to a key of this mesh."
    raise error


def _read(content: bytes) -> JsonObject:
    if not content.strip():
        return {}
    try:
        return form.parse_object(content)
    except ValueError:
        raise _malformed() from None


def _malformed() -> FairleadError:
    return error_from_problem(
        500,
        {
            "reason": "answer_malformed",
            "detail": "The answer is not what a Fairlead front door sends.",
            "remedy": "Check that FAIRLEAD_URL names a Fairlead front door of this version.",
        },
    )


def _encoded(body: JsonObject | None) -> bytes | None:
    return None if body is None else json.dumps(body, separators=(",", ":")).encode()


def _timeout(answer_seconds: float | None) -> httpx2.Timeout:
    return httpx2.Timeout(answer_seconds, connect=_CONNECT_SECONDS)


def _no_authorities() -> ssl.SSLContext:
    """Give a context that trusts nobody: plain HTTP needs none, and loading authorities is slow."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
