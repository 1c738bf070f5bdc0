"""`fairlead ps`, `logs`, `trace`, `renew` and `kill`: launches, their output and their time."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime

from fairlead_sdk.cli.running import Interrupts, run
from fairlead_sdk.cli.tables import Row, drawn_table
from fairlead_sdk.cli.terminal import STDERR, STDOUT, Terminal, colours_on
from fairlead_sdk.cli.ticks import shown_seconds
from fairlead_sdk.records import LaunchRecord

_QUIET_SECONDS = 0.5
_MOST_KILLED = 100_000
_KILLED_AT_ONCE = 8
_ENDED = frozenset({"exited", "failed", "cancelled"})


def ps(*, everything: bool, states: Sequence[str], project: str, limit: int, is_json: bool) -> int:
    """List the newest launches: of the given states and the project that begins with `project`.

    Without states, those that run or hold something; with `everything` all.
    """

    def is_wanted(launch: LaunchRecord) -> bool:
        if not launch.project.startswith(project):
            return False
        return launch.state in states if states else everything or _is_live(launch)

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        from fairlead_sdk.cli.connection import connect

        async with connect(terminal) as client:
            found = await client.launches.list(limit=limit + 1, where=is_wanted)
        shown = found[:limit]
        if terminal.is_json:
            listed = [launch.document for launch in shown]
            await terminal.document({"launches": listed, "more": len(found) > limit})
        elif shown:
            await terminal.text(_table(shown))
        elif states or project or everything:
            terminal.say("there is no such launch.")
        else:
            terminal.say("nothing runs; `fairlead ps --all` lists what ended.")
        if len(found) > limit:
            terminal.say(f"there are more than {limit}; --limit N shows N.")
        return 0

    return run(work, is_json=is_json)


def _is_live(launch: LaunchRecord) -> bool:
    """Whether it runs, or holds something."""
    return launch.is_held or launch.state not in _ENDED


def _table(launches: Sequence[LaunchRecord]) -> str:
    now = datetime.now(UTC)
    rows = []
    for launch in launches:
        held = launch.expires_at - now if launch.expires_at and launch.is_held else None
        cells = (
            launch.launch_id,
            _state(launch),
            shown_seconds(max(0.0, (now - launch.created_at).total_seconds())),
            shown_seconds(max(0.0, held.total_seconds())) if held is not None else "",
            launch.branch,
            " ".join(launch.arguments),
        )
        rows.append(Row(cells, is_dim=launch.state in _ENDED))
    return drawn_table(("LAUNCH", "STATE", "AGE", "HELD FOR", "BRANCH", "COMMAND"), rows)


def _state(launch: LaunchRecord) -> str:
    if launch.exit is not None:
        return f"{launch.state} {launch.exit.exit_code}"
    if launch.failure is not None:
        return f"{launch.state} {launch.failure.reason}"
    return launch.state


def logs(launch: str, *, follow: bool, cursor: str, is_json: bool) -> int:
    """Replay a launch's output, or an execution's; with `follow` until it ends, else as far as it
    is there.
    """

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        from fairlead_sdk.cli.connection import connect, find_launch
        from fairlead_sdk.cli.detached import is_execution, replay
        from fairlead_sdk.records import OutputRecord

        reached = cursor
        async with connect(terminal) as client:
            if is_execution(launch):
                await replay(client, launch, follow=follow, cursor=cursor, terminal=terminal)
                return 0
            record = await find_launch(client, launch)
            patience = None if follow or record.state in _ENDED else _QUIET_SECONDS
            events = client.launches.events(record.launch_id, cursor=cursor)
            try:
                async with aclosing(events):
                    while True:
                        async with asyncio.timeout(patience):
                            event = await anext(events, None)
                        if event is None:
                            return 0
                        reached = event.cursor or reached
                        if terminal.is_json:
                            await terminal.document(event.document)
                        elif isinstance(event.happening, OutputRecord):
                            piece = event.happening
                            stream = STDERR if piece.stream == "stderr" else STDOUT
                            await terminal.output(stream, piece.content)
            except TimeoutError:
                await terminal.raw.drain()
                terminal.say(f"it goes on: fairlead logs {record.launch_id} -f --cursor {reached}")
                return 0
            except asyncio.CancelledError:
                terminal.say(f"go on with: fairlead logs {record.launch_id} -f --cursor {reached}")
                raise

    return run(work, is_json=is_json)


def trace(launch: str, *, is_json: bool) -> int:
    """Draw where a launch's time went."""

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        from fairlead_sdk.cli.connection import connect, find_launch
        from fairlead_sdk.cli.waterfall import waterfall, whole_trace

        async with connect(terminal) as client:
            record = await find_launch(client, launch)
            found = await whole_trace(lambda: client.launches.trace(record.launch_id))
        if terminal.is_json:
            await terminal.document(found.document)
            return 0
        columns = shutil.get_terminal_size((120, 24)).columns
        await terminal.text(waterfall(found, columns=columns, coloured=colours_on(sys.stdout)))
        return 0

    return run(work, is_json=is_json)


def renew(launches: Sequence[str], *, lease: float | None, is_json: bool) -> int:
    """Hold what launches have for longer: workspace and sandbox."""

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        from fairlead_sdk.cli.connection import connect, find_launch

        async with connect(terminal) as client:
            for text in launches:
                found = await find_launch(client, text)
                renewed = await client.launches.renew(found.launch_id, lease=lease)
                if terminal.is_json:
                    await terminal.document(renewed.document)
                if renewed.expires_at is not None:
                    until = renewed.expires_at.astimezone().strftime("%H:%M:%S")
                    terminal.say(f"{renewed.launch_id} is held until {until}.")
        return 0

    return run(work, is_json=is_json)


def kill(launches: Sequence[str], *, everything: bool, is_json: bool) -> int:
    """Cancel launches and release what they hold; end executions. `everything`: all that live."""

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        from fairlead_sdk.cli.connection import connect, find_launch
        from fairlead_sdk.cli.detached import end, is_execution

        executions = [text for text in launches if is_execution(text)]
        async with connect(terminal) as client:
            if everything:
                found = list(await client.launches.list(limit=_MOST_KILLED, where=_is_live))
            else:
                named = [text for text in launches if not is_execution(text)]
                found = [await find_launch(client, text) for text in named]
            held = {record.launch_id for record in found if record.is_held}
            killed = [await end(client, text) for text in executions]
            at_once = asyncio.Semaphore(_KILLED_AT_ONCE)

            async def cancel(launch_id: str) -> LaunchRecord:
                async with at_once:
                    return await client.launches.cancel(launch_id)

            ended = await asyncio.gather(*(cancel(record.launch_id) for record in found))
        if terminal.is_json:
            listed = {"executions": [one.document for one, _ in killed]} if killed else {}
            await terminal.document({"launches": [one.document for one in ended], **listed})
        for execution, ran in killed:
            now = "has ended" if execution.exit else "does not end"
            terminal.say(f"{execution.execution_id} {now if ran else 'had ended already'}.")
        for record in ended:
            given_back = "and holds nothing"
            if record.launch_id in held:
                given_back = "now; what it held is given back"
            terminal.say(f"{record.launch_id} is {record.state} {given_back}.")
        if everything and not ended:
            terminal.say("nothing runs.")
        return 0

    return run(work, is_json=is_json)
