"""Ways to a terminal: when a session is tried, when it is kept to, and what each end means."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from fairlead_sdk import terminal_channels
from fairlead_sdk.client import FrontDoor
from fairlead_sdk.errors import (
    FairleadError,
    NotATerminal,
    NotFound,
    StreamLost,
    Unauthenticated,
    Unavailable,
)
from fairlead_sdk.http_errors import is_no_websocket, unreachable
from fairlead_sdk.session_errors import ConnectTimeout, WebrtcMissing
from fairlead_sdk.terminal_ways import TerminalUnreachable, TerminalWays

pytestmark = pytest.mark.asyncio

STRIPPED = NotFound("There is nothing at this path.", reason="route_not_found")
FOREIGN = NotFound("Not found.", reason="http_404")


class Socket:
    """A WebSocket of which only that it is there matters."""

    async def send(self, message: str | bytes) -> None:
        raise AssertionError

    async def receive(self) -> str | bytes | None:
        return None


class Door(FrontDoor):
    """A front door whose WebSockets fail with what is scripted, and are there after that."""

    def __init__(self, *errors: FairleadError) -> None:
        super().__init__(url="http://127.0.0.1:1", api_key="")
        self.errors = list(errors)
        self.sockets = 0

    def socket(self, path: str) -> AbstractAsyncContextManager[Socket]:  # type: ignore[override]
        @asynccontextmanager
        async def opened() -> AsyncIterator[Socket]:
            self.sockets += 1
            if self.errors:
                raise self.errors.pop(0)
            yield Socket()

        return opened()


class Channels:
    """Sessions that fail with `error`, unless that is None."""

    error: FairleadError | None = None
    opened = 0
    closed = 0

    def __init__(self, *, door: FrontDoor) -> None:
        type(self).opened += 1

    @asynccontextmanager
    async def connect(self, execution_id: str) -> AsyncIterator[Socket]:
        if self.error is not None:
            raise self.error
        yield Socket()

    async def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def channels(monkeypatch: pytest.MonkeyPatch) -> type[Channels]:
    fresh = type("FreshChannels", (Channels,), {"opened": 0, "closed": 0, "error": None})
    monkeypatch.setattr(terminal_channels, "TerminalChannels", fresh)
    return fresh


async def connect(ways: TerminalWays) -> None:
    async with ways.connect("exe_a"):
        pass


@pytest.mark.parametrize("refused", [STRIPPED, FOREIGN, unreachable("http://a")])
async def test_where_no_websocket_can_be_had_a_session_is_tried_and_kept_to(
    refused: FairleadError, channels: type[Channels]
) -> None:
    door = Door(refused)
    async with TerminalWays(door=door) as ways:
        await connect(ways)
        await connect(ways)
        assert (door.sockets, channels.opened, channels.closed) == (1, 1, 0)
    assert channels.closed == 1


@pytest.mark.parametrize(
    "refused",
    [
        Unauthenticated("No.", reason="unauthenticated"),
        Unavailable("Draining.", reason="draining"),
    ],
)
async def test_what_the_front_door_itself_refuses_stands(
    refused: FairleadError, channels: type[Channels]
) -> None:
    async with TerminalWays(door=Door(refused)) as ways:
        with pytest.raises(type(refused)):
            await connect(ways)
    assert channels.opened == 0


async def test_a_websocket_that_was_there_is_waited_for(channels: type[Channels]) -> None:
    door = Door()
    async with TerminalWays(door=door) as ways:
        await connect(ways)
        door.errors = [unreachable("http://a")]
        with pytest.raises(Unavailable):
            await connect(ways)
        await connect(ways)
    assert channels.opened == 0


@pytest.mark.parametrize("error", [WebrtcMissing(), ConnectTimeout(24)])
async def test_with_neither_both_causes_are_told(
    error: FairleadError, channels: type[Channels]
) -> None:
    channels.error = error
    async with TerminalWays(door=Door(FOREIGN)) as ways:
        with pytest.raises(TerminalUnreachable) as caught:
            await connect(ways)
    assert caught.value.fields == {"websocket": "http_404", "session": error.reason}
    assert channels.closed == channels.opened == 1


async def test_a_mesh_that_is_away_is_no_lack_of_websockets(channels: type[Channels]) -> None:
    channels.error = unreachable("http://a")
    refused = unreachable("http://b")
    async with TerminalWays(door=Door(refused)) as ways:
        with pytest.raises(Unavailable) as caught:
            await connect(ways)
        assert caught.value is refused
        # It may be tried again.
        channels.error = None
        await connect(ways)
    assert channels.closed == channels.opened == 1


async def test_what_is_wrong_with_the_terminal_is_told_as_it_is(channels: type[Channels]) -> None:
    channels.error = NotFound("There is no such execution.", reason="execution_not_found")
    async with TerminalWays(door=Door(STRIPPED)) as ways:
        with pytest.raises(NotFound) as caught:
            await connect(ways)
    assert caught.value.reason == "execution_not_found"
    assert channels.closed == 1


async def test_which_refusals_are_somebody_elses() -> None:
    assert is_no_websocket(FairleadError("?", reason="http_502"))
    assert not is_no_websocket(StreamLost("?", reason="stream_lost"))
    assert not is_no_websocket(NotATerminal("?", reason="not_a_terminal"))
