"""`fairlead sandbox network`: what a sandbox reaches, and what it lately tried to reach."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead_sdk.cli.running import Interrupts, run
from fairlead_sdk.cli.tables import Row, drawn_table
from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.network_records import NetworkRecord


def network(sandbox: str, *, mode: str, allow: Sequence[str], is_json: bool) -> int:
    """Change the policy where a mode is given, and show what holds."""

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        from fairlead_sdk.cli.connection import connect, find_sandbox

        async with connect(terminal) as client:
            sandbox_id = await find_sandbox(client, sandbox)
            if mode:
                await client.sandboxes.set_network(sandbox_id, mode, allow=allow)
            found = await client.sandboxes.network(sandbox_id)
        if terminal.is_json:
            await terminal.document(found.document)
        else:
            await terminal.text(_drawn(found))
        return 0

    return run(work, is_json=is_json)


def _drawn(found: NetworkRecord) -> str:
    lines = [f"network {found.network}", *(f"allows  {entry}" for entry in found.allow)]
    if found.decisions:
        rows = [
            Row(
                (
                    each.at.astimezone().strftime("%H:%M:%S"),
                    f"{each.host}:{each.port}" if each.host else "",
                    each.address,
                    each.reason,
                ),
                is_dim=each.allowed,
            )
            for each in found.decisions
        ]
        lines += ["", drawn_table(("AT", "HOST", "ADDRESS", "DECISION"), rows)]
    return "\n".join(lines)
