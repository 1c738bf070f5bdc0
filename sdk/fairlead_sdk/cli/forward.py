"""`fairlead forward`: a local port that leads into a launch's sandbox, or to a host beside it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fairlead_sdk.cli.forwards import Forward, ForwardUnlisted, LocalPortTaken, forwards_of
from fairlead_sdk.cli.running import INTERRUPTED, Interrupts, run
from fairlead_sdk.cli.seal_secret import seal_secret
from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.errors import InvalidArgument

if TYPE_CHECKING:
    from fairlead_sdk.forwarding import Forwarder, LocalPort

_HIGHEST_PORT = 65535
_WAY = re.compile(
    r"(?:(?P<local>[0-9]{1,5}):)?(?:(?P<host>(?![0-9]*:)[A-Za-z0-9_][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]):)?"
    r"(?P<port>[0-9]{1,5})"
)


@dataclass(frozen=True, slots=True)
class Way:
    """From a local port, or any when that is None, to a port of the sandbox, or of `host`."""

    local_port: int | None
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardChoices:
    """What the user asked for; `way` is `[LOCAL:][HOST:]PORT`, the file is empty for none."""

    launch: str
    way: str
    seal_secret_file: str = ""


def forward(choices: ForwardChoices, *, ready: int = -1, is_json: bool) -> int:
    """Forward until Ctrl-C. With `ready`, a pipe that somebody waits at, nothing is said from then
    on when it listens.
    """

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        from fairlead_sdk.cli.connection import find_launch, find_sandbox
        from fairlead_sdk.fairlead import AsyncFairlead
        from fairlead_sdk.forwarding import open_tunnel

        launch = choices.launch
        way = parse_way(choices.way)
        secret = seal_secret(choices.seal_secret_file)
        with contextlib.ExitStack() as listing:  # the last to end: until then the port is held
            async with AsyncFairlead() as client:
                target = (
                    await find_sandbox(client, launch)
                    if launch.startswith("sbx_")
                    else (await find_launch(client, launch)).launch_id
                )
                tunnel = open_tunnel(client.sessions, target, seal_secret=secret)
                async with tunnel as forwarder:
                    local = await _listening(forwarder, way, terminal)
                    made = Forward(
                        pid=os.getpid(),
                        host=local.host,
                        port=local.port,
                        remote_host=way.host,
                        remote_port=way.port,
                        target=target,
                        session_id=forwarder.session_id,
                        started_at=datetime.now(UTC),
                    )
                    try:
                        listing.enter_context(forwards_of(os.environ).entered(made))
                    except ForwardUnlisted as error:
                        terminal.warn(error.message)
                    await _tell(made, terminal, ready)
                    await _wait_ended(local, terminal)
        return 0

    status = run(work, is_json=is_json)
    return 0 if status == INTERRUPTED else status


def detach(choices: ForwardChoices, *, is_json: bool) -> int:
    """Forward in a process in the background, and come back when it listens or has failed."""
    reading, writing = os.pipe()
    options = ["--ready", str(writing), "-o", "json" if is_json else "text"]
    if choices.seal_secret_file:
        options += ["--seal-secret-file", choices.seal_secret_file]
    where = (choices.launch, choices.way)
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


async def _tell(made: Forward, terminal: Terminal, ready: int) -> None:
    """Say that it listens; who waits at `ready` is told last."""
    if terminal.is_json:
        await terminal.document(made.document)
        await terminal.raw.drain()
    way_out = "Ctrl-C ends it" if ready < 0 else f"`fairlead forward --stop {made.port}` ends it"
    terminal.say(f"{made.address} leads to {made.there}; {way_out}.")
    if ready >= 0:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (1, 2):
            os.dup2(nowhere, descriptor)
        os.close(nowhere)
        os.write(ready, b"1")
        os.close(ready)


async def _wait_ended(local: LocalPort, terminal: Terminal) -> None:
    """Wait until it is lost, which is no error where somebody wanted it."""
    from fairlead_sdk.session_errors import SessionEnded

    try:
        await local.wait_lost()
    except SessionEnded as error:
        if error.reason == "admin_closed" or not error.closed.user_initiated:
            raise
        terminal.say(f"the session was closed: {error.reason}.")


async def _listening(forwarder: Forwarder, way: Way, terminal: Terminal) -> LocalPort:
    """Listen where it was asked for; else on the same port as over there, else on a free one."""
    from fairlead_sdk.forwarding import LocalPortUnusable

    def refused(reason: str, message: str) -> None:
        terminal.warn(f"a connection was refused: {message or reason}")

    async def listen(port: int) -> LocalPort:
        return await forwarder.listen(way.port, port, on_refusal=refused, remote_host=way.host)

    if way.local_port is not None:
        try:
            return await listen(way.local_port)
        except LocalPortUnusable as error:
            owner = forwards_of(os.environ).owner("127.0.0.1", way.local_port)
            raise (error if owner is None else LocalPortTaken(owner)) from None
    try:
        return await listen(way.port)
    except LocalPortUnusable:
        return await listen(0)


def parse_way(text: str) -> Way:
    """Read `[LOCAL:][HOST:]PORT`; digits alone before a colon are a local port, as no host is."""
    found = _WAY.fullmatch(text)
    way = Way(None, "", 0)
    if found is not None:
        local = found["local"]
        way = Way(int(local) if local else None, found["host"] or "", int(found["port"]))
    if not 1 <= way.port <= _HIGHEST_PORT or (way.local_port or 0) > _HIGHEST_PORT:
        raise InvalidArgument(
            f"{text!r} names no port.",
            reason="port_invalid",
            remedy="Give [LOCAL:][HOST:]PORT, such as 8080, 9000:8080 or 5432:db.internal:5432.",
        )
    return way
