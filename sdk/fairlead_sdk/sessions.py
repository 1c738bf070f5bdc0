"""Sessions through the front door: WebRTC associations with gateways, and tunnels."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from typing import TYPE_CHECKING
from urllib.parse import quote

from fairlead_sdk import json_form as form
from fairlead_sdk.client import FrontDoor, problem_of
from fairlead_sdk.errors import FairleadError, NotFound
from fairlead_sdk.http_errors import is_no_websocket
from fairlead_sdk.json_form import JsonObject
from fairlead_sdk.session_records import (
    OfferReply,
    OpenedSession,
    SessionEvent,
    SessionRecord,
    SessionServer,
)

if TYPE_CHECKING:
    from fairlead_sdk.peer_session import AsyncSession
    from fairlead_sdk.websocket import WebSocket

_PAGE = 100


class AsyncSessions:
    """The caller's sessions, also as a `session_api.SessionApi`."""

    def __init__(self, *, door: FrontDoor) -> None:
        self._door = door
        self._has_sockets: bool | None = None

    def open(
        self,
        launch_id: str,
        *,
        mode: str = "",
        ice_policy: str = "all",
        connect_seconds: float | None = None,
        seal_secret: bytes = b"",
    ) -> AbstractAsyncContextManager[AsyncSession]:
        """Open a session with the gateway of a launch, or of a sandbox of its own, and hold it
        connected to the end of the block.

        Without `mode` it is `trickle` where both sides can, else `complete`. `ice_policy` is `all`,
        `relay` (TURN servers only) or `direct` (never through one). Without `connect_seconds` it
        is given up after 24 s, through a relay after 60. With `seal_secret`, 32 bytes that the
        gateway has too, descriptions and candidates are sealed, so that signalling can neither read
        nor change them. Raises WebrtcMissing, OpenTimeout, ConnectTimeout, ConnectionFailed,
        SealRejected, and what the front door refuses.
        """
        from fairlead_sdk.forwarding import open_session

        return open_session(
            self,
            launch_id,
            mode=mode,
            ice_policy=ice_policy,
            connect_seconds=connect_seconds,
            seal_secret=seal_secret,
        )

    async def create(
        self, launch_id: str, *, mode: str, ice_policy: str = "all", key: str = ""
    ) -> OpenedSession:
        """Open a session with the gateway of a launch, or of a sandbox of its own, and do nothing
        more: it is closed by `close`, or when nobody comes.

        In mode `tunnel` the answer's `tunnel` is what to attach with; nothing else shows it. The
        same `key` gives the same answer. Raises what the front door refuses, as `mode_unsupported`
        where no gateway takes tunnels.
        """
        return await self.open_session(launch_id, mode=mode, ice_policy=ice_policy, key=key)

    async def get(self, session_id: str) -> SessionRecord:
        """Read a session."""
        return SessionRecord.read(await self._door.get(_path(session_id)))

    async def list(self, *, limit: int = 100, tenant: str = "") -> tuple[SessionRecord, ...]:
        """List sessions that are not closed, by id; of another `tenant` with an administrator's
        key.
        """
        found: builtins.list[SessionRecord] = []
        params = {"tenant": tenant} if tenant else {}
        while True:
            params["page_size"] = str(min(_PAGE, limit - len(found)))
            page = await self._door.get("/v1/sessions", params)
            found += (SessionRecord.read(each) for each in form.children(page, "sessions"))
            params["page_token"] = form.text(page, "next_page_token")
            if not params["page_token"] or len(found) >= limit:
                return tuple(found[:limit])

    async def close(
        self, session_id: str, *, as_admin: bool = False, message: str = ""
    ) -> SessionRecord:
        """Close a session and every channel in it; closing a closed one changes nothing.

        An administrator's key closes one of any tenant `as_admin`, as `admin_closed` and with a
        `message` for whoever has it; raises PermissionDenied (`admin_required`) for another key.
        """
        params = {"as_admin": "true", "message": message} if as_admin else None
        return SessionRecord.read(await self._door.delete(_path(session_id), params))

    async def open_session(
        self, launch_id: str, *, mode: str, ice_policy: str, key: str
    ) -> OpenedSession:
        """Reserve a gateway for a launch."""
        body: JsonObject = {"launch_id": launch_id, "mode": mode}
        if ice_policy != "all":
            body["ice_policy"] = ice_policy
        return OpenedSession.read(await self._door.post("/v1/sessions", body, key=key))

    async def send_offer(self, session_id: str, offer: str) -> OfferReply:
        """Have the gateway answer the offer of the first round."""
        body = await self._door.post(_path(session_id, "/offer"), {"offer": offer})
        return OfferReply.read(body)

    async def restart_session(self, session_id: str, offer: str) -> OfferReply:
        """Have the gateway answer the offer of one more round."""
        body = await self._door.post(_path(session_id, "/restart"), {"offer": offer})
        return OfferReply.read(body)

    async def fresh_servers(self, session_id: str) -> tuple[SessionServer, ...]:
        """Return the session's servers with names and passwords that were made now."""
        body = await self._door.post(_path(session_id, "/restart"), {})
        return OpenedSession.read(body).servers

    async def add_candidates(
        self, session_id: str, of_round: int, candidates: tuple[str, ...], *, ended: bool
    ) -> tuple[str, ...]:
        """Give candidates to the gateway and return the outcome of each."""
        body = await self._door.post(
            _path(session_id, "/candidates"),
            {
                "round": of_round,
                "candidates": list(candidates),
                "end_of_candidates": ended,
            },
        )
        return form.texts(body, "outcomes")

    @asynccontextmanager
    async def watch_session(
        self, session_id: str, cursor: int
    ) -> AsyncIterator[AsyncIterator[SessionEvent]]:
        """Watch a session from the event after `cursor` on; without any retry."""
        async with AsyncExitStack() as stack:
            yield await self._watched(stack, session_id, str(cursor) if cursor else "")

    async def _watched(
        self, stack: AsyncExitStack, session_id: str, cursor: str
    ) -> AsyncIterator[SessionEvent]:
        """Watch over a WebSocket, or where none can be had over HTTP."""
        if self._has_sockets is not False:
            path = _path(session_id, "/watch")
            try:
                socket = await stack.enter_async_context(
                    self._door.socket(f"{path}?cursor={cursor}" if cursor else path)
                )
            except FairleadError as error:
                # Without its `Upgrade` the request names a session that there is none of.
                is_lost = isinstance(error, NotFound) or is_no_websocket(error)
                if self._has_sockets or not is_lost:
                    raise
            else:
                self._has_sockets = True
                return _events(_messages(socket))
        lines = await stack.enter_async_context(
            self._door.stream(
                "GET", _path(session_id, "/events"), params={"cursor": cursor} if cursor else None
            )
        )
        self._has_sockets = False
        return _events(lines)

    async def close_session(self, session_id: str) -> None:
        """Close the session; closing a closed one is no error."""
        await self.close(session_id)


def _path(session_id: str, rest: str = "") -> str:
    return f"/v1/sessions/{quote(session_id, safe='')}{rest}"


async def _messages(socket: WebSocket) -> AsyncIterator[JsonObject]:
    while (message := await socket.receive()) is not None:
        with suppress(ValueError):
            yield form.parse_object(message)


async def _events(documents: AsyncIterator[JsonObject]) -> AsyncIterator[SessionEvent]:
    async for document in documents:
        if (problem := problem_of(document)) is not None:
            raise problem
        if (event := SessionEvent.read(document)) is not None:
            yield event
