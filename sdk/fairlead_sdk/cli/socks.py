"""`fairlead socks`: a SOCKS5 proxy into a launch's sandbox and to hosts beside it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead_sdk.cli.forwards import Forward, LocalPortTaken, forwards_of
from fairlead_sdk.cli.hops import read_hops, watching_hops
from fairlead_sdk.cli.running import INTERRUPTED, Interrupts, run
from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.cli.tunnelled import Notices, listed, tunnel_loop, wait_ended
from fairlead_sdk.errors import InvalidArgument

if TYPE_CHECKING:
    from fairlead_sdk.tunnel_ports import TunnelPorts
    from fairlead_tunnel.socks5 import Credentials

VARIABLE = "FAIRLEAD_SOCKS_CREDENTIALS"


@dataclass(frozen=True, slots=True, kw_only=True)
class SocksChoices:
    """What the user asked for; an empty launch is the newest from here, an empty file is none, and
    `via` are `[LABEL=]URL`.
    """

    launch: str
    host: str
    port: int
    credentials_file: str = ""
    via: Sequence[str] = ()


class CredentialsUnusable(InvalidArgument):
    """A name and a password for clients cannot be read."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"{where} holds no USER:PASSWORD, 1 to 255 bytes each.",
            reason="credentials_invalid",
            remedy="Write a name, a colon and a password into one line.",
        )


def socks(choices: SocksChoices, *, is_json: bool) -> int:
    """Serve until Ctrl-C."""

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        from fairlead_sdk.cli.connection import connect, find_target
        from fairlead_sdk.session_errors import WebrtcMissing

        try:
            from fairlead_sdk.session_meeting import meeting
            from fairlead_sdk.tunnel_drivers import pump_choice
            from fairlead_sdk.tunnel_line import open_line
            from fairlead_sdk.tunnel_ports import open_ports
        except ImportError as error:
            raise WebrtcMissing from error

        refusals = Notices(terminal.warn, clock=time.monotonic)

        def refused(reason: str, message: str) -> None:
            refusals.say(f"a connection was refused: {message or reason}")

        hops = read_hops(choices.via)
        pump = pump_choice(os.environ)
        credentials = credentials_of(choices.credentials_file, os.environ)
        if credentials is None and not _is_loopback(choices.host):
            terminal.warn("whoever reaches this machine can use the proxy: no password is asked.")
        with listed(terminal) as listing:
            async with connect(terminal) as client, AsyncExitStack() as stack:
                target = await find_target(client, choices.launch)
                line = await stack.enter_async_context(
                    open_line(
                        client.sessions,
                        target,
                        say=Notices(terminal.say, clock=time.monotonic).say,
                        renewed=listing.renew,
                        via=hops,
                        meet=meeting(client.sessions),
                        pump=pump,
                    )
                )
                ports = await stack.enter_async_context(open_ports(line, refused))
                port = await _listening(ports, choices, credentials)
                made = Forward(
                    pid=os.getpid(),
                    host=choices.host,
                    port=port,
                    remote_host="",
                    remote_port=0,
                    target=target,
                    session_id=line.session_id,
                    started_at=datetime.now(UTC),
                    is_socks=True,
                )
                listing.enter([(made, lambda: ports.stop(port))])
                await stack.enter_async_context(watching_hops(hops, terminal))
                await _tell(made, terminal, line.carrier)
                return await wait_ended(
                    line.wait_over(),
                    terminal,
                    listing,
                    traffic=ports.traffic,
                    carrier=lambda: line.carrier,
                )

    status = run(work, is_json=is_json, loop_factory=tunnel_loop())
    return 0 if status == INTERRUPTED else status


def credentials_of(path: str, environment: Mapping[str, str]) -> Credentials | None:
    """Return those of a file, those of the environment where none is named, and None where there
    are none either; raises CredentialsUnusable.
    """
    from fairlead_tunnel.socks5 import Credentials

    where = path or VARIABLE
    try:
        text = Path(path).read_bytes() if path else os.fsencode(environment.get(VARIABLE, ""))
    except OSError:
        raise CredentialsUnusable(where) from None
    if not text and not path:
        return None
    user, _, password = text.rstrip(b"\r\n").partition(b":")
    try:
        return Credentials(user, password)
    except ValueError:
        raise CredentialsUnusable(where) from None


async def _tell(made: Forward, terminal: Terminal, carrier: str) -> None:
    host = f"[{made.host}]" if ":" in made.host else made.host
    if terminal.is_json:
        await terminal.document(made.document)
    else:
        await terminal.text(f"socks5h://{host}:{made.port}")
    await terminal.raw.drain()
    terminal.say(f"{made.address} leads to {made.there}, over {carrier}; Ctrl-C ends it.")


async def _listening(
    ports: TunnelPorts, choices: SocksChoices, credentials: Credentials | None
) -> int:
    from fairlead_sdk.forwarding import LocalPortUnusable

    try:
        return await ports.listen_socks(
            host=choices.host, port=choices.port, credentials=credentials
        )
    except LocalPortUnusable as error:
        owner = forwards_of(os.environ).owner(choices.host, choices.port)
        raise (error if owner is None else LocalPortTaken(owner)) from None


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
