"""`fairlead sandbox`: isolated places to execute in, with a lease of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fairlead_sdk.cli.running import Interrupts, run
from fairlead_sdk.cli.tables import Row, drawn_table
from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.cli.ticks import shown_seconds
from fairlead_sdk.sandbox_records import SandboxRecord, SandboxRequest

if TYPE_CHECKING:
    from fairlead_sdk.fairlead import AsyncFairlead

_LISTED = 1000
_ANY = SandboxRequest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxChoices:
    """What the user asked for."""

    isolation: str
    wish: SandboxRequest | None
    workspace: str
    host_id: str
    lease: float | None


def create(choices: SandboxChoices, *, is_json: bool) -> int:
    """Make a sandbox."""

    async def work(client: AsyncFairlead, terminal: Terminal) -> None:
        wish = choices.wish or _ANY
        workspace_id = ""
        if choices.workspace:
            from fairlead_sdk.cli.workspace import find_workspace

            workspace_id = (await find_workspace(client, choices.workspace)).workspace_id
        made = await client.sandboxes.create(
            isolation=choices.isolation,
            profile=wish.profile,
            limits=wish.limits,
            network=wish.network,
            allow=wish.allow,
            lease=choices.lease,
            workspace_id=workspace_id,
            host_id=choices.host_id,
        )
        if terminal.is_json:
            await terminal.document(made.record.document)
            return
        await terminal.text(made.sandbox_id)
        terminal.say(f"{_walls(made.record)}; {_held(made.record)}")

    return _run(work, is_json=is_json)


def ls(*, is_json: bool) -> int:
    """List sandboxes."""

    async def work(client: AsyncFairlead, terminal: Terminal) -> None:
        def warn(host_id: str) -> None:
            terminal.warn(f"{host_id} does not answer; what it holds is not listed.")

        found = await client.sandboxes.list(limit=_LISTED, on_unanswered=warn)
        if terminal.is_json:
            await terminal.document({"sandboxes": [each.document for each in found]})
        elif found:
            await terminal.text(_table(found))
        else:
            terminal.say("there are no sandboxes; `fairlead sandbox create` makes one.")

    return _run(work, is_json=is_json)


def show(sandbox: str, *, is_json: bool) -> int:
    """Show one sandbox."""

    async def work(client: AsyncFairlead, terminal: Terminal) -> None:
        from fairlead_sdk.cli.connection import find_sandbox

        found = await client.sandboxes.get(await find_sandbox(client, sandbox))
        if terminal.is_json:
            await terminal.document(found.record.document)
        else:
            await terminal.text(_facts(found.record))

    return _run(work, is_json=is_json)


def renew(sandbox: str, *, lease: float | None, is_json: bool) -> int:
    """Hold a sandbox for longer."""

    async def work(client: AsyncFairlead, terminal: Terminal) -> None:
        from fairlead_sdk.cli.connection import find_sandbox

        renewed = await client.sandboxes.renew(await find_sandbox(client, sandbox), lease=lease)
        if terminal.is_json:
            await terminal.document(renewed.document)
        terminal.say(_held(renewed))

    return _run(work, is_json=is_json)


def rm(sandboxes: Sequence[str], *, is_json: bool) -> int:
    """Give sandboxes back."""

    async def work(client: AsyncFairlead, terminal: Terminal) -> None:
        from fairlead_sdk.cli.connection import find_sandbox

        found = [await find_sandbox(client, text) for text in sandboxes]
        for each in found:
            released = await client.sandboxes.release(each)
            if terminal.is_json:
                await terminal.document({"sandbox_id": each, "released": released})
            terminal.say(f"{each} is given back{'' if released else ' already'}.")

    return _run(work, is_json=is_json)


def _run(work: Callable[[AsyncFairlead, Terminal], Awaitable[None]], *, is_json: bool) -> int:
    async def connected(terminal: Terminal, interrupts: Interrupts) -> int:
        from fairlead_sdk.cli.connection import connect

        async with connect(terminal) as client:
            await work(client, terminal)
        return 0

    return run(connected, is_json=is_json)


def _held(sandbox: SandboxRecord) -> str:
    return f"{sandbox.sandbox_id} is held until {sandbox.expires_at.astimezone():%H:%M:%S}."


def _walls(sandbox: SandboxRecord) -> str:
    missing = sandbox.missing_walls
    if not sandbox.walls:
        return f"its isolation is {sandbox.isolation}, which has no walls"
    if not missing:
        return f"its isolation is {sandbox.isolation}, and every wall stands"
    return f"its isolation is {sandbox.isolation}; missing: {', '.join(w.name for w in missing)}"


def _facts(sandbox: SandboxRecord) -> str:
    allowed = f" ({', '.join(sandbox.allow)})" if sandbox.allow else ""
    limits = (f"{name} {value:.15g}" for name, value in sandbox.limits.items())
    facts = {
        "sandbox": sandbox.sandbox_id,
        "state": sandbox.state,
        "isolation": sandbox.isolation,
        "profile": sandbox.profile,
        "limits": ", ".join(limits) or "none",
        "network": sandbox.network + allowed,
        "workspace": sandbox.workspace_id,
        "launch": sandbox.launch_id,
        "host": sandbox.host_id,
        "held": sandbox.expires_at.astimezone().strftime("until %Y-%m-%d %H:%M:%S"),
        "walls": ", ".join(wall.name for wall in sandbox.walls if wall.stands) or "none",
    }
    lines = [f"{name:<10} {value}" for name, value in facts.items() if value]
    lines += [f"{'missing':<10} {wall.name}: {wall.reason}" for wall in sandbox.missing_walls]
    return "\n".join(lines)


def _table(sandboxes: Sequence[SandboxRecord]) -> str:
    now = datetime.now(UTC)
    titles = (
        "SANDBOX",
        "ISOLATION",
        "PROFILE",
        "NETWORK",
        "AGE",
        "HELD FOR",
        "WORKSPACE",
        "LAUNCH",
    )
    rows = [
        Row(
            (
                each.sandbox_id,
                each.isolation,
                each.profile,
                each.network,
                shown_seconds(max(0.0, (now - each.created_at).total_seconds())),
                shown_seconds(max(0.0, (each.expires_at - now).total_seconds())),
                each.workspace_id,
                each.launch_id,
            )
        )
        for each in sandboxes
    ]
    return drawn_table(titles, rows)
