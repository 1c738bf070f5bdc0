"""The SDK's forwarding where something is missing, taken or silent: a typed error, nothing left."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
import pytest

from fairlead_sdk.errors import FairleadError, NotFound
from fairlead_sdk.forwarding import forward
from fairlead_sdk.session_records import (
    OfferReply,
    OpenedSession,
    SessionEvent,
    SessionRecord,
    SessionServer,
)
from fairlead_tunnel.aiortc_core import AiortcConnection, AiortcCore
from tests.eventually import eventually
from tests.lone_peer import unmet_answer

_ON_THE_TUNNEL = {f"fairlead_sdk.{name}" for name in ("session_opening", "peer_session")}


class Api:
    """A mesh whose gateway answers with `answer`."""

    def __init__(self, answer: str = "v=0", error: FairleadError | None = None) -> None:
        self.answer = answer
        self.error = error
        self.closed: list[str] = []
        self.asked = asyncio.Event()

    async def open_session(
        self, launch_id: str, *, mode: str, ice_policy: str, key: str
    ) -> OpenedSession:
        if self.error is not None:
            raise self.error
        return OpenedSession(SessionRecord(session_id="ses_a"))

    async def send_offer(self, session_id: str, offer: str) -> OfferReply:
        self.asked.set()
        return OfferReply(self.answer, 1)

    async def restart_session(self, session_id: str, offer: str) -> OfferReply:
        raise NotImplementedError

    async def fresh_servers(self, session_id: str) -> tuple[SessionServer, ...]:
        raise NotImplementedError

    async def add_candidates(
        self, session_id: str, of_round: int, candidates: tuple[str, ...], *, ended: bool
    ) -> tuple[str, ...]:
        raise NotImplementedError

    @asynccontextmanager
    async def watch_session(
        self, session_id: str, cursor: int
    ) -> AsyncIterator[AsyncIterator[SessionEvent]]:
        raise NotImplementedError
        yield

    async def close_session(self, session_id: str) -> None:
        self.closed.append(session_id)


async def _sockets() -> int:
    return len(psutil.Process().net_connections())


async def failure(api: Api, port: int = 80, local_port: int = 0, seconds: float = 5.0) -> str:
    sockets = await _sockets()
    with pytest.raises(FairleadError) as caught:
        async with forward(
            api, "lch_a", port, local_port, connect_seconds=seconds, core=AiortcCore()
        ):
            pytest.fail("a tunnel was opened")
    await eventually(_sockets, lambda found: found == sockets)
    return caught.value.reason


@pytest.mark.asyncio
@pytest.mark.parametrize("missing", [("aiortc", "fairlead_native"), ("fairlead_tunnel",)])
async def test_without_the_extra_the_error_says_what_to_install(
    missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] in missing or name in _ON_THE_TUNNEL:
            monkeypatch.delitem(sys.modules, name)
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(FairleadError, match=r"pip install 'fairlead-sdk\[webrtc\]'") as caught:
        async with forward(Api(), "lch_a", 80):
            pytest.fail("a tunnel was opened")
    assert caught.value.reason == "webrtc_missing"


@pytest.mark.asyncio
async def test_what_the_mesh_refuses_is_raised() -> None:
    api = Api(error=NotFound("No such launch.", reason="launch_not_found"))
    assert await failure(api) == "launch_not_found"
    assert api.closed == []


@pytest.mark.asyncio
@pytest.mark.parametrize("answer", ["", "nonsense", "v=0\r\nm=audio 9 X 0\r\n"])
async def test_an_answer_that_makes_no_sense_is_a_failed_connection(answer: str) -> None:
    api = Api(answer=answer)
    assert await failure(api) == "connection_failed"
    assert api.closed == ["ses_a"]


@pytest.mark.asyncio
async def test_a_gateway_that_is_not_reached_is_a_timeout() -> None:
    answer = await unmet_answer()
    api = Api(answer=answer)
    assert await failure(api, seconds=0.5) == "connect_timeout"
    assert api.closed == ["ses_a"]


@pytest.mark.asyncio
async def test_cancelling_while_connecting_leaves_nothing() -> None:
    before = await _sockets()
    answer = await unmet_answer()
    sockets = await eventually(_sockets, lambda found: found == before)
    api = Api(answer=answer)

    async def forever() -> None:
        async with forward(api, "lch_a", 80, core=AiortcCore()):
            pytest.fail("a tunnel was opened")

    task = asyncio.create_task(forever())
    await api.asked.wait()
    # Wherever it is with the answer by then.
    await asyncio.sleep(0.3)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert api.closed == ["ses_a"]
    await eventually(_sockets, lambda found: found == sockets)


@pytest.mark.asyncio
async def test_cancelling_while_candidates_are_gathered_closes_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = asyncio.Event()

    async def gather_for_ever(connection: AiortcConnection) -> str:
        opened.set()
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(AiortcConnection, "offer", gather_for_ever)
    api = Api()

    async def open_it() -> None:
        async with forward(api, "lch_a", 80, core=AiortcCore()):
            pytest.fail("a tunnel was opened")

    task = asyncio.create_task(open_it())
    await opened.wait()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert api.closed == ["ses_a"]
