"""Reads traces from the local stack's span store over HTTP, in a thread of its own and for two
seconds at most.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from urllib.parse import urlsplit

from signalling.launch_errors import TraceStoreAbsent, TraceStoreUnavailable
from signalling.ports import Span

_log = logging.getLogger(__name__)
_SECONDS = 2.0
_MOST_BYTES = 32 * 1024 * 1024


class NoSpanStore:
    """What a stack without a span store has."""

    async def spans(self, trace_id: str) -> Sequence[Span]:
        """Raise TraceStoreAbsent."""
        raise TraceStoreAbsent


class SpanStoreClient:
    """Asks `{url}/v1/traces/{trace_id}`; use it as a context manager."""

    def __init__(self, *, url: str, token: str | None) -> None:
        parts = urlsplit(url)
        self._secure = parts.scheme == "https"
        self._host = parts.hostname or "127.0.0.1"
        self._port = parts.port
        self._path = parts.path.rstrip("/")
        self._headers = {"Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="span-store")

    def __enter__(self) -> SpanStoreClient:
        return self

    def __exit__(self, *failure: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def spans(self, trace_id: str) -> Sequence[Span]:
        """Return the spans of a trace by start time; raises TraceStoreUnavailable."""
        if not trace_id:
            return ()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_SECONDS):
                body = await loop.run_in_executor(self._threads, self._read, trace_id)
            spans = [_span(item) for item in json.loads(body)["spans"]] if body else []
        except (OSError, http.client.HTTPException, TimeoutError, ValueError, KeyError, TypeError):
            _log.warning("the span store does not answer", exc_info=True)
            raise TraceStoreUnavailable from None
        return sorted(spans, key=lambda span: span.started_at)

    def _read(self, trace_id: str) -> bytes:
        """Return the body; empty where the trace is not known."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=_SECONDS)
        try:
            connection.request("GET", f"{self._path}/v1/traces/{trace_id}", headers=self._headers)
            response = connection.getresponse()
            body = response.read(_MOST_BYTES)
            if response.status == http.HTTPStatus.NOT_FOUND:
                return b""
            if response.status != http.HTTPStatus.OK:
                raise OSError(f"status {response.status}")
            return body
        finally:
            connection.close()


def _span(item: Mapping[str, object]) -> Span:
    attributes = item.get("attributes")
    return Span(
        span_id=str(item["span_id"]),
        parent_span_id=str(item.get("parent_span_id") or ""),
        name=str(item["name"]),
        service=str(item.get("service") or ""),
        started_at=datetime.fromisoformat(str(item["started_at"])),
        ended_at=datetime.fromisoformat(str(item["ended_at"])),
        failed=item.get("failed") is True,
        attributes={str(name): str(value) for name, value in attributes.items()}
        if isinstance(attributes, Mapping)
        else {},
    )
