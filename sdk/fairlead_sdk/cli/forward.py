"""`fairlead forward`: local ports that lead into a launch's sandbox, or to hosts beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from fairlead_sdk.cli.forward_routes import Route, open_route
from fairlead_sdk.cli.forwards import Forward, LocalPortTaken, forwards_of
from fairlead_sdk.cli.hops import read_hops
from fairlead_sdk.cli.running import INTERRUPTED, Interrupts, run
from fairlead_sdk.cli.seal_secret import seal_secret
from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.cli.tunnelled import listed, tunnel_loop, wait_ended
from fairlead_sdk.cli.ways import Way, parse_way

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardChoices:
    """What the user asked for; `ways` are `[LOCAL:][HOST:]PORT`, `via` `[LABEL=]URL`, the file is
    empty for none.
    """

    launch: str
    ways: Sequence[str]
    seal_secret_file: str = ""
    via: Sequence[str] = ()


def forward(choices: ForwardChoices, *, ready: int = -1, is_json: bool) -> int:
    """Forward until Ctrl-C. With `ready`, a pipe that somebody waits at, nothing is said from then
    on when it listens.
    """

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        from fairlead_sdk.cli.connection import connect, find_target

        ways = [parse_way(each) for each in choices.ways]
        hops = read_hops(choices.via)
        secret = seal_secret(choices.seal_secret_file)
        # The listing is the last to end: until then the ports are held.
        with listed(terminal) as listing:
            async with connect(terminal) as client, AsyncExitStack() as stack:
                target = await find_target(client, choices.launch)
                route = await open_route(
                    client,
                    target,
                    terminal,
                    secret=secret,
                    via=hops,
                    renewed=listing.renew,
                    stack=stack,
                )
                made = [await _made(route, way, target) for way in ways]
                listing.enter(
                    [
                        (each, partial(route.stop, Path(each.path) if each.path else each.port))
                        for each in made
                    ]
                )
                await _tell(made, terminal, ready, route.carrier)
                return await wait_ended(
                    route.wait_lost(),
                    terminal,
                    listing,
                    traffic=route.traffic,
                    carrier=lambda: route.carrier,
                )

    status = run(work, is_json=is_json, loop_factory=tunnel_loop())
    return 0 if status == INTERRUPTED else status


def detach(choices: ForwardChoices, *, is_json: bool) -> int:
    """Forward in a process in the background, and come back when it listens or has failed."""
    reading, writing = os.pipe()
    options = ["--ready", str(writing), "-o", "json" if is_json else "text"]
    if choices.seal_secret_file:
        options += ["--seal-secret-file", choices.seal_secret_file]
    for each in choices.via:
        options += ["--via", each]
    where = (choices.launch, *choices.ways)
    with os.fdopen(reading, "rb") as pipe:
        process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "fairlead_sdk", "forward", *options, "--", *where],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(writing,),
        )
        os.close(writing)
        try:
            is_there = bool(pipe.read())
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            return INTERRUPTED
    if not is_there:
        return process.wait()
    process.returncode = 0  # it is not ours to wait for
    return 0


async def _tell(made: Sequence[Forward], terminal: Terminal, ready: int, carrier: str) -> None:
    """Say that it listens; who waits at `ready` is told last."""
    if terminal.is_json:
        for each in made:
            await terminal.document(each.document)
        await terminal.raw.drain()
    for each in made:
        way_out = (
            "Ctrl-C ends it" if ready < 0 else f"`fairlead forward --stop {each.name}` ends it"
        )
        terminal.say(f"{each.address} leads to {each.there}, over {carrier}; {way_out}.")
    if ready >= 0:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (1, 2):
            os.dup2(nowhere, descriptor)
        os.close(nowhere)
        os.write(ready, b"1")
        os.close(ready)


async def _made(route: Route, way: Way, target: str) -> Forward:
    """Listen where it was asked for, and say where that is."""
    port = 0 if way.path else await _port(route, way)
    if way.path:
        await _listen_at(route, way)
    return Forward(
        pid=os.getpid(),
        host="" if way.path else HOST,
        port=port,
        remote_host=way.host,
        remote_port=way.port,
        target=target,
        session_id=route.session_id,
        started_at=datetime.now(UTC),
        path=str(way.path or ""),
    )


async def _listen_at(route: Route, way: Way) -> None:
    from fairlead_sdk.local_sockets import LocalPathUnusable

    try:
        await route.listen_at(way)
    except LocalPathUnusable as error:
        owner = forwards_of(os.environ).owner_of(str(way.path))
        raise (error if owner is None else LocalPortTaken(owner)) from None


async def _port(route: Route, way: Way) -> int:
    """Listen where it was asked for; else on the same port as over there, else on a free one."""
    from fairlead_sdk.forwarding import LocalPortUnusable

    if way.local_port is not None:
        try:
            return await route.listen(way, HOST, way.local_port)
        except LocalPortUnusable as error:
            owner = forwards_of(os.environ).owner(HOST, way.local_port)
            raise (error if owner is None else LocalPortTaken(owner)) from None
    try:
        return await route.listen(way, HOST, way.port)
    except LocalPortUnusable:
        return await route.listen(way, HOST, 0)
