"""`fairlead session ls`, `show` and `close`: negotiations between clients and gateways, and
tunnels.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fairlead_sdk.cli.forwards import Forward, forwards_of
from fairlead_sdk.cli.running import Interrupts, run
from fairlead_sdk.cli.tables import Row, drawn_table
from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.cli.ticks import shown_seconds
from fairlead_sdk.json_form import JsonObject
from fairlead_sdk.session_records import TUNNEL, SessionRecord

if TYPE_CHECKING:
    from fairlead_sdk.fairlead import AsyncFairlead

_LISTED = 1000
_NEVER = datetime.min.replace(tzinfo=UTC)


def ls(*, tenant: str, is_json: bool) -> int:
    """List sessions, the newest first."""

    async def work(client: AsyncFairlead, terminal: Terminal) -> None:
        listed = await client.sessions.list(limit=_LISTED, tenant=tenant)
        found = sorted(listed, key=lambda session: session.created_at or _NEVER, reverse=True)
        here = {forward.session_id: forward for forward in forwards_of(os.environ).all()}
        if terminal.is_json:
            documents: list[JsonObject] = []
            for each in found:
                local = here.get(each.session_id)
                documents.append({**each.document, **({"local": local.document} if local else {})})
            await terminal.document({"sessions": documents})
        elif found:
            await terminal.text(_table(found, here))
        else:
            terminal.say("there are no sessions; `fairlead forward` opens one.")

    return _run(work, is_json=is_json)


def show(session: str, *, is_json: bool) -> int:
    """Show one session."""

    async def work(client: AsyncFairlead, terminal: Terminal) -> None:
        found = await client.sessions.get(session)
        if terminal.is_json:
            await terminal.document(found.document)
        else:
            await terminal.text(_facts(found))

    return _run(work, is_json=is_json)


def close(
    sessions: Sequence[str], *, as_admin: bool = False, message: str = "", is_json: bool
) -> int:
    """Close sessions, `as_admin` those of any tenant and with a message."""

    async def work(client: AsyncFairlead, terminal: Terminal) -> None:
        for each in sessions:
            closed = await client.sessions.close(each, as_admin=as_admin, message=message)
            if terminal.is_json:
                await terminal.document(closed.document)
            terminal.say(f"{each} is closed ({closed.close_reason}).")

    return _run(work, is_json=is_json)


def _run(work: Callable[[AsyncFairlead, Terminal], Awaitable[None]], *, is_json: bool) -> int:
    async def connected(terminal: Terminal, interrupts: Interrupts) -> int:
        from fairlead_sdk.cli.connection import connect

        async with connect(terminal) as client:
            await work(client, terminal)
        return 0

    return run(connected, is_json=is_json)


def _table(sessions: Sequence[SessionRecord], here: Mapping[str, Forward]) -> str:
    now = datetime.now(UTC)
    rows = []
    for each in sessions:
        age = (now - (each.created_at or now)).total_seconds()
        cells = (
            each.session_id,
            each.state,
            shown_seconds(max(0.0, age)),
            each.mode,
            each.gateway_id,
            each.launch_id,
            f"{local.address} (pid {local.pid})" if (local := here.get(each.session_id)) else "",
        )
        rows.append(Row(cells))
    return drawn_table(("SESSION", "STATE", "AGE", "MODE", "GATEWAY", "REACHES", "LOCAL"), rows)


def _facts(session: SessionRecord) -> str:
    until = session.expires_at
    is_negotiated = session.mode != TUNNEL
    facts = {
        "session": session.session_id,
        "state": session.state,
        "closed": session.close_reason,
        "mode": session.mode,
        "paths": session.ice_policy if is_negotiated else "",
        "round": str(session.round) if is_negotiated else "",
        "reaches": session.launch_id,
        "gateway": session.gateway_id,
        "kept": until.astimezone().strftime("until %Y-%m-%d %H:%M:%S") if until else "",
    }
    return "\n".join(f"{name:<10} {value}" for name, value in facts.items() if value)
