"""Sessions through the front door: what a tunnel needs to reach a gateway."""

from __future__ import annotations

from urllib.parse import quote

from fairlead_sdk import json_form as form
from fairlead_sdk.client import FrontDoor


class AsyncSessions:
    """The caller's sessions, as `forwarding.SessionApi` asks for them."""

    def __init__(self, *, door: FrontDoor) -> None:
        self._door = door

    async def open_session(self, launch_id: str) -> str:
        """Reserve a gateway for a launch and give the session's id."""
        body = await self._door.post("/v1/sessions", {"launch_id": launch_id, "mode": "complete"})
        return form.text(body, "session_id")

    async def send_offer(self, session_id: str, sdp: str) -> str:
        """Have the gateway answer an SDP offer and give its answer."""
        path = f"/v1/sessions/{quote(session_id, safe='')}/offer"
        return form.text(await self._door.post(path, {"offer": sdp}), "answer")

    async def close_session(self, session_id: str) -> None:
        """Close the session; closing a closed one is no error."""
        await self._door.delete(f"/v1/sessions/{quote(session_id, safe='')}")
