"""`fairlead forward`: a local port that leads into a launch's sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead_sdk.cli.running import INTERRUPTED, Interrupts, run
from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.errors import InvalidArgument

if TYPE_CHECKING:
    from fairlead_sdk.forwarding import Forwarder, LocalPort


def forward(launch: str, ports: str, *, is_json: bool) -> int:
    """Forward until Ctrl-C."""

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        from fairlead_sdk.cli.connection import find_launch, find_sandbox
        from fairlead_sdk.fairlead import AsyncFairlead
        from fairlead_sdk.forwarding import open_tunnel
        from fairlead_sdk.session_errors import SessionEnded

        local_port, remote_port = parse_ports(ports)
        async with AsyncFairlead() as client:
            target = (
                await find_sandbox(client, launch)
                if launch.startswith("sbx_")
                else (await find_launch(client, launch)).launch_id
            )
            async with open_tunnel(client.sessions, target) as forwarder:
                local = await _listening(forwarder, remote_port, local_port, terminal)
                address = f"{local.host}:{local.port}"
                if terminal.is_json:
                    await terminal.document(
                        {"host": local.host, "port": local.port, "remote_port": remote_port}
                    )
                    await terminal.raw.drain()
                terminal.say(f"{address} leads to port {remote_port} of {target}; Ctrl-C ends it.")
                try:
                    await local.wait_lost()
                except SessionEnded as error:
                    if error.reason == "admin_closed" or not error.closed.user_initiated:
                        raise
                    terminal.say(f"the session was closed: {error.reason}.")
        return 0

    status = run(work, is_json=is_json)
    return 0 if status == INTERRUPTED else status


async def _listening(
    forwarder: Forwarder, remote_port: int, local_port: int | None, terminal: Terminal
) -> LocalPort:
    """Listen where it was asked for; else on the same port as over there, else on a free one."""
    from fairlead_sdk.forwarding import LocalPortUnusable

    def refused(reason: str, message: str) -> None:
        terminal.warn(f"a connection was refused: {message or reason}")

    if local_port is not None:
        return await forwarder.listen(remote_port, local_port, on_refusal=refused)
    try:
        return await forwarder.listen(remote_port, remote_port, on_refusal=refused)
    except LocalPortUnusable:
        return await forwarder.listen(remote_port, 0, on_refusal=refused)


def parse_ports(text: str) -> tuple[int | None, int]:
    """Read `[LOCAL:]PORT`."""
    local, colon, remote = text.rpartition(":")
    try:
        numbers = (int(local) if colon else None, int(remote))
    except ValueError:
        numbers = (None, 0)
    if not 1 <= numbers[1] <= 65535 or (numbers[0] is not None and not 0 <= numbers[0] <= 65535):
        raise InvalidArgument(
            f"{text!r} names no port.",
            reason="port_invalid",
            remedy="Give PORT or LOCAL:PORT, such as 8080 or 9000:8080.",
        )
    return numbers
