"""What only an administrator's key may do over REST."""

from __future__ import annotations

from pathlib import Path

import pytest

from signalling.api_keys import ApiKeys
from tests.contract.wire.front_door import Door, make_door

pytestmark = pytest.mark.asyncio


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return make_door(tmp_path)


async def test_listing_another_tenants_needs_the_key_of_one(door: Door, tmp_path: Path) -> None:
    async with door.client() as client:
        (listed,) = (await client.get("/v1/sessions")).json()["sessions"]
        assert listed["session_id"] == f"ses_{'a' * 26}"
        refused = await client.get("/v1/sessions", params={"tenant": "other"})
        assert (refused.status_code, refused.json()["reason"]) == (403, "admin_required")
    async with door.client(ApiKeys(state=tmp_path).add("operators", is_admin=True)) as client:
        found = await client.get("/v1/sessions", params={"tenant": "default"})
        assert len(found.json()["sessions"]) == 1


async def test_closing_as_an_administrator_needs_the_key_of_one(door: Door, tmp_path: Path) -> None:
    session = f"/v1/sessions/ses_{'a' * 26}"
    params = {"as_admin": "true", "message": "Upkeep."}
    async with door.client() as client:
        refused = await client.delete(session, params=params)
        assert (refused.status_code, refused.json()["reason"]) == (403, "admin_required")
        assert (await client.delete(session)).json()["close_reason"] == ""
    async with door.client(ApiKeys(state=tmp_path).add("operators", is_admin=True)) as client:
        closed = await client.delete(session, params=params)
        assert (closed.status_code, closed.json()["close_reason"]) == (200, "admin_closed")
