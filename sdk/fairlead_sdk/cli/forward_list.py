"""`fairlead forward --list` and `--stop`: what this user's processes forward here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from datetime import UTC, datetime

from fairlead_sdk.cli.forwards import Forward, Forwards, forwards_of
from fairlead_sdk.cli.running import FAILED, Interrupts, run
from fairlead_sdk.cli.tables import Row, drawn_table
from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.cli.ticks import shown_seconds

_LOOK_SECONDS = 0.05
_LOOKS = 100


def ls(*, is_json: bool) -> int:
    """List them."""

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        found = forwards_of(os.environ).all()
        if terminal.is_json:
            await terminal.document({"forwards": [each.document for each in found]})
        elif found:
            await terminal.text(_table(found))
        else:
            terminal.say("nothing is forwarded here.")
        return 0

    return run(work, is_json=is_json)


def stop(what: str, *, every: bool, is_json: bool) -> int:
    """End those that are meant, which are several only with `every`."""

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        forwards = forwards_of(os.environ)
        status = 0
        for each in forwards.meant(what, every=every):
            has_ended = await _ended(forwards, each)
            if terminal.is_json:
                await terminal.document({**each.document, "ended": has_ended})
            now = "is not forwarded any more" if has_ended else "does not end"
            terminal.say(f"{each.address} {now} (process {each.pid}).")
            status = status if has_ended else FAILED
        return status

    return run(work, is_json=is_json)


async def _ended(forwards: Forwards, forward: Forward) -> bool:
    """Ask its process to end, and again a little later: it leaves at once then."""
    for _ in range(2):
        # Its lock is held, so the process is there; it may end just now.
        with contextlib.suppress(ProcessLookupError):
            os.kill(forward.pid, signal.SIGTERM)
        for _ in range(_LOOKS):
            if not forwards.is_there(forward):
                return True
            await asyncio.sleep(_LOOK_SECONDS)
    return False


def _table(forwards: Sequence[Forward]) -> str:
    now = datetime.now(UTC)
    rows = [
        Row(
            (
                each.address,
                "socks" if each.is_socks else f"{each.remote_host}:{each.remote_port}".lstrip(":"),
                each.target,
                each.session_id,
                str(each.pid),
                shown_seconds(max(0.0, (now - each.started_at).total_seconds())),
            )
        )
        for each in forwards
    ]
    return drawn_table(("LOCAL", "PORT", "REACHES", "SESSION", "PID", "AGE"), rows)
