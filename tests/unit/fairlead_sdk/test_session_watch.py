"""Watching a session: over a WebSocket, or over HTTP where none can be had."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from fairlead_sdk.client import FrontDoor
from fairlead_sdk.errors import FairleadError, NotFound, Unauthenticated, Unavailable
from fairlead_sdk.http_errors import broken
from fairlead_sdk.json_form import JsonObject
from fairlead_sdk.session_records import SessionBecame
from fairlead_sdk.sessions import AsyncSessions

pytestmark = pytest.mark.asyncio

LINE: JsonObject = {"type": "state", "state": "connected", "sequence": 3}
STRIPPED = NotFound("No such session.", reason="session_not_found")


class Socket:
    """A WebSocket with one event."""

    def __init__(self) -> None:
        self._messages = ["no json", json.dumps(LINE)]

    async def receive(self) -> str | None:
        return self._messages.pop(0) if self._messages else None


class Door(FrontDoor):
    """A front door that fails with what is scripted for each way, and then serves."""

    def __init__(self, *, sockets: list[FairleadError], streams: list[FairleadError]) -> None:
        super().__init__(url="http://127.0.0.1:1", api_key="")
        self.sockets = sockets
        self.streams = streams
        self.asked: list[str] = []

    def socket(self, path: str) -> AbstractAsyncContextManager[Socket]:  # type: ignore[override]
        @asynccontextmanager
        async def opened() -> AsyncIterator[Socket]:
            self.asked.append(path)
            if self.sockets:
                raise self.sockets.pop(0)
            yield Socket()

        return opened()

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
        self.asked.append(f"{path}?{dict(params or {})}")
        if self.streams:
            raise self.streams.pop(0)
        yield _lines()


async def _lines() -> AsyncIterator[JsonObject]:
    yield LINE


async def watched(sessions: AsyncSessions, cursor: int = 0) -> list[int]:
    async with sessions.watch_session("ses_a", cursor) as events:
        found = [event async for event in events]
    assert all(event.happening == SessionBecame("connected") for event in found)
    return [event.sequence for event in found]


async def test_a_websocket_is_taken_where_there_is_one() -> None:
    door = Door(sockets=[], streams=[])
    sessions = AsyncSessions(door=door)
    assert await watched(sessions) == [3]
    assert await watched(sessions, 3) == [3]
    assert door.asked == ["/v1/sessions/ses_a/watch", "/v1/sessions/ses_a/watch?cursor=3"]
    # One that was there is waited for.
    door.sockets = [broken("http://a")]
    with pytest.raises(Unavailable):
        await watched(sessions)


@pytest.mark.parametrize(
    "refused", [STRIPPED, NotFound("?", reason="http_404"), broken("http://a")]
)
async def test_without_one_it_is_watched_over_http(refused: FairleadError) -> None:
    door = Door(sockets=[refused], streams=[])
    sessions = AsyncSessions(door=door)
    assert await watched(sessions, 2) == [3]
    assert await watched(sessions) == [3]
    assert door.asked == [
        "/v1/sessions/ses_a/watch?cursor=2",
        "/v1/sessions/ses_a/events?{'cursor': '2'}",
        "/v1/sessions/ses_a/events?{}",
    ]


async def test_what_http_says_is_true() -> None:
    door = Door(sockets=[STRIPPED], streams=[NotFound("Gone.", reason="session_not_found")])
    with pytest.raises(NotFound, match="Gone"):
        await watched(AsyncSessions(door=door))
    door = Door(sockets=[Unauthenticated("No.", reason="unauthenticated")], streams=[])
    with pytest.raises(Unauthenticated):
        await watched(AsyncSessions(door=door))
    assert len(door.asked) == 1
