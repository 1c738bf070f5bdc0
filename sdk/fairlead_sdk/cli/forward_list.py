"""`fairlead forward --list` and `--stop`: what this user's processes forward here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime

from fairlead_sdk.cli.forwards import Flow, Forward, Withdrawal, forwards_of
from fairlead_sdk.cli.running import FAILED, Interrupts, run
from fairlead_sdk.cli.tables import Row, drawn_table
from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.cli.ticks import shown_seconds
from fairlead_sdk.cli.traffic import shown_size

_LOOK_SECONDS = 0.05
_LOOKS = 100


def ls(*, is_json: bool) -> int:
    """List them."""

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        found = forwards_of(os.environ).flowing()
        if terminal.is_json:
            documents = [{**each.document, "flow": asdict(flow)} for each, flow in found]
            await terminal.document({"forwards": documents})
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
        meant = forwards.meant(what, every=every)
        others = [
            each for each in forwards.all() if not any(each.is_same(other) for other in meant)
        ]
        with ExitStack() as stack:
            asked = [(each, stack.enter_context(forwards.withdraw(each))) for each in meant]
            for each, withdrawal in asked:
                # A process with nothing else is ended when it does not listen to that.
                is_alone = all(other.pid != each.pid for other in others)
                has_ended = await _ended(withdrawal, each.pid if is_alone else None)
                if terminal.is_json:
                    await terminal.document({**each.document, "ended": has_ended})
                now = "is not forwarded any more" if has_ended else "does not end"
                terminal.say(f"{each.address} {now} (process {each.pid}).")
                status = status if has_ended else FAILED
        return status

    return run(work, is_json=is_json)


async def _ended(withdrawal: Withdrawal, pid: int | None) -> bool:
    """Wait until a forward has ended; then ask its process to end, twice, if there is a `pid`."""
    for attempt in range(3):
        if attempt and pid is not None:
            # Its lock is held, so the process is there; it may end just now.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        for _ in range(_LOOKS):
            if withdrawal.is_done:
                return True
            await asyncio.sleep(_LOOK_SECONDS)
    return False


def _table(forwards: Sequence[tuple[Forward, Flow]]) -> str:
    now = datetime.now(UTC)
    rows = [
        Row(
            (
                each.address,
                "socks" if each.is_socks else f"{each.remote_host}:{each.remote_port}".lstrip(":"),
                each.target,
                each.session_id,
                flow.carrier,
                f"{shown_size(flow.send_rate)}/s",
                f"{shown_size(flow.receive_rate)}/s",
                str(each.pid),
                shown_seconds(max(0.0, (now - each.started_at).total_seconds())),
            )
        )
        for each, flow in forwards
    ]
    columns = ("LOCAL", "PORT", "REACHES", "SESSION", "CARRIER", "UP", "DOWN", "PID", "AGE")
    return drawn_table(columns, rows)
