"""The same by an HTTP library: for TLS, for proxies, and for transports that a caller gives."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from urllib.parse import urlsplit

import httpx2

from fairlead_sdk.http_errors import broken, no_address, silent, unreachable
from fairlead_sdk.http_wire import CONNECT_SECONDS, Content


class LibraryWire:
    """A connection pool of the library's."""

    def __init__(
        self,
        *,
        url: str,
        headers: Mapping[str, str],
        kept_seconds: float,
        transport: httpx2.AsyncBaseTransport | None,
        is_local: bool,
    ) -> None:
        self._url = url
        try:
            is_safe = urlsplit(url).scheme == "https"
            self._client = httpx2.AsyncClient(
                base_url=url,
                headers=dict(headers),
                transport=transport,
                limits=httpx2.Limits(
                    max_connections=100,
                    max_keepalive_connections=20,
                    keepalive_expiry=kept_seconds,
                ),
                # Proxies of the environment are not for this machine's own stack.
                trust_env=not is_local,
                # Plain HTTP trusts nobody, and loading authorities is slow.
                verify=True if is_safe else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            )
        except (httpx2.InvalidURL, ValueError):
            raise no_address(url) from None

    def connect_ahead(self) -> None:
        """The library connects when it is asked."""

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    @asynccontextmanager
    async def exchange(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        content: Content,
        seconds: float | None,
    ) -> AsyncGenerator[_LibraryAnswer, None]:
        """Send a request and open its answer."""
        with _Translated(self._url):
            async with self._client.stream(
                method,
                target,
                content=content,
                headers=dict(headers),
                timeout=httpx2.Timeout(seconds, connect=CONNECT_SECONDS),
            ) as response:
                yield _LibraryAnswer(response)


class _LibraryAnswer:
    """An answer of the library's."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    @property
    def status(self) -> int:
        """Its status code."""
        return self._response.status_code

    @property
    def traceresponse(self) -> str:
        """The span that answered."""
        return str(self._response.headers.get("traceresponse", ""))

    def chunks(self) -> AsyncIterator[bytes]:
        """Give the body as it comes."""
        return self._response.aiter_raw()


class _Translated:
    """Turns what the library raises into errors of ours."""

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
                raise unreachable(self._url) from error
            case httpx2.TimeoutException():
                raise silent(self._url) from error
            case httpx2.TransportError() | httpx2.StreamError():
                raise broken(self._url) from error
            case httpx2.InvalidURL():
                raise no_address(self._url) from error
            case _:
                return
