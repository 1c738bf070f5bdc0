"""Following one launch: what each event means for the terminal and for the exit status."""

from __future__ import annotations

import asyncio
import contextlib
import json
from contextlib import aclosing
from typing import TYPE_CHECKING

from fairlead_sdk.cli.endings import ending_of, explained, gap_of
from fairlead_sdk.cli.running import Interrupts, stop_command
from fairlead_sdk.cli.standard_input import has_standard_input, read_standard_input
from fairlead_sdk.cli.terminal import STDERR, STDOUT, Terminal
from fairlead_sdk.cli.ticks import Ticks, left_changes
from fairlead_sdk.client import make_idempotency_key
from fairlead_sdk.errors import FairleadError, MeshUnavailable
from fairlead_sdk.events import (
    LaunchEvent,
    LaunchExited,
    LaunchProvisioned,
    LaunchSnapshot,
    LaunchStopped,
    LaunchWithdrawn,
    SnapshotMissed,
    StepChanged,
)
from fairlead_sdk.fairlead import AsyncFairlead, launch_cancelled, launch_failed
from fairlead_sdk.json_form import JsonObject, parse_object
from fairlead_sdk.launches import Command, LaunchRequest
from fairlead_sdk.records import LaunchRecord, OutputGap, OutputRecord
from fairlead_sdk.repository import Repository

if TYPE_CHECKING:
    from fairlead_sdk.agent_client import Takeover
    from fairlead_sdk.cli.launch import LaunchChoices

CANCEL_SECONDS = 5.0


class Following:
    """One launch, from the request to its exit status."""

    def __init__(
        self,
        *,
        client: AsyncFairlead,
        terminal: Terminal,
        interrupts: Interrupts,
        repository: Repository | None,
        choices: LaunchChoices,
        takeover: Takeover | None = None,
    ) -> None:
        self._client = client
        self._terminal = terminal
        self._interrupts = interrupts
        self._has_stdin = bool(choices.command) and not choices.no_stdin and has_standard_input()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_interrupted = False
        self._repository = repository
        self._choices = choices
        self._ticks = Ticks(terminal=terminal, shows_rung=choices.timing)
        self._key = make_idempotency_key()
        self._launch_id = ""
        self._cursor = ""
        self._body: JsonObject = {}
        if takeover is not None:
            self._key, self._launch_id = takeover.key, takeover.launch_id
            self._cursor = takeover.cursor
            self._body = parse_object(takeover.body)
        self._sent = 0
        self._sending = False

    async def to_the_end(self) -> int:
        """Launch and give the exit status; when it is left early, the launch is cancelled."""
        try:
            status = await self._follow()
        except FairleadError as error:
            # Where the mesh fell silent the launch may be there, and its answer was lost.
            if self._launch_id or isinstance(error, MeshUnavailable):
                await self._cancel()
            raise
        except BaseException:
            await self._cancel()
            raise
        finally:
            self._interrupts.instead = None
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        held = self._choices.keep or not self._choices.command
        if await self._client.launches.histories.settle(wait=held) and held:
            self._terminal.say("the history was not sent whole; the next launch goes on with it.")
        for failure in self._client.launches.histories.take_failures():
            self._terminal.warn(f"the history could not be sent: {failure.message}")
        if self._choices.timing:
            await self._show_timing()
        return status

    async def _follow(self) -> int:
        output = self._terminal.raw
        if not self._body:
            request = self._request(await self._workspace_id())
            self._body = await self._client.launches.describe(self._repository, request)
            await output.began(self._key, json.dumps(self._body).encode())
        events = self._client.launches.start(
            self._repository,
            self._body,
            key=self._key,
            after=(self._launch_id, self._cursor),
            on_upload=self._took_upload,
        )
        async with aclosing(events):
            async for event in events:
                is_repeated = bool(self._cursor) and isinstance(event.happening, LaunchSnapshot)
                if self._terminal.is_json and not is_repeated:
                    await self._terminal.document(event.document)
                status = await self._take(event)
                self._cursor = event.cursor
                await output.mark(self._launch_id, self._cursor)
                if status is not None:
                    return status
        raise AssertionError("the events of a launch end with a terminal one, or raise")

    async def _workspace_id(self) -> str:
        """Find the workspace that was named, if one was."""
        if not self._choices.workspace:
            return ""
        from fairlead_sdk.cli.workspace import find_workspace

        return (await find_workspace(self._client, self._choices.workspace)).workspace_id

    def _request(self, workspace_id: str) -> LaunchRequest:
        choices = self._choices
        command = None
        if choices.command:
            command = Command(
                arguments=choices.command,
                directory="" if self._repository is None else self._repository.directory,
                stdin=self._has_stdin,
                timeout=choices.timeout,
                on_full="block",
            )
        return LaunchRequest(
            branch=choices.branch,
            command=command,
            keep=choices.keep,
            isolation=choices.isolation,
            from_=choices.from_,
            submodules=choices.submodules,
            sandbox=choices.sandbox,
            workspace_id=workspace_id,
        )

    async def _take(self, event: LaunchEvent) -> int | None:
        """Take an event; gives the exit status with the one that ends the command."""
        if self._sending and self._sent and not isinstance(event.happening, SnapshotMissed):
            self._sending = False  # what is sent from now on is history
            self._ticks.uploaded(self._sent)
        match event.happening:
            case LaunchSnapshot(launch):
                self._launch_id = launch.launch_id
                if launch.execution_id and launch.exit is None:
                    self._command_runs()
            case StepChanged() as change:
                left = self._repository is not None and await left_changes(
                    self._repository, change.freshness, clean=self._choices.clean
                )
                self._ticks.step(change, left_changes=left)
                if change.step == "execution" and change.state == "done":
                    self._command_runs()
            case SnapshotMissed() as miss:
                self._sending = True
                self._ticks.miss(miss)
            case OutputRecord(stream=stream, content=content):
                if not self._terminal.is_json:
                    await self._terminal.output(STDERR if stream == "stderr" else STDOUT, content)
            case OutputGap() as gap:
                if not self._terminal.is_json:
                    await self._terminal.raw.drain()
                    self._terminal.say(gap_of(gap))
            case LaunchProvisioned(launch):
                await self._provisioned(launch)
                return 0
            case LaunchExited() as exited:
                await self._exited(exited)
                return exited.exit.exit_code
            case LaunchStopped(failure):
                told = failure
                if self._repository is not None:
                    told = explained(failure, self._repository, from_=self._choices.from_)
                raise launch_failed(told, self._launch_id)
            case LaunchWithdrawn(reason):
                raise launch_cancelled(reason, self._launch_id)
        return None

    def _command_runs(self) -> None:
        """Pass standard input and Ctrl-C on to the command from now on."""
        if self._interrupts.instead is not None:
            return
        self._interrupts.instead = self._interrupt
        if self._has_stdin:
            self._tasks.add(asyncio.create_task(self._feed()))

    async def _feed(self) -> None:
        launch = await self._client.launches.get(self._launch_id)
        await self._client.executions.feed_stdin(launch.execution_id, read_standard_input())

    def _interrupt(self) -> bool:
        """Take the first Ctrl-C; the second one cancels the launch at once."""
        if self._is_interrupted:
            return False
        self._is_interrupted = True
        self._tasks.add(asyncio.create_task(self._stop_command()))
        return True

    async def _stop_command(self) -> None:
        launch = await self._client.launches.get(self._launch_id)
        executions = self._client.executions
        await stop_command(lambda number: executions.signal(launch.execution_id, number))

    def _took_upload(self, sent: int, written: int | None) -> None:
        self._sent = sent
        self._ticks.upload(sent, written)

    async def _provisioned(self, launch: LaunchRecord) -> None:
        if not self._terminal.is_json:
            await self._terminal.text(launch.launch_id)
        self._say_held(launch)

    async def _exited(self, exited: LaunchExited) -> None:
        await self._terminal.raw.drain()
        sentence = ending_of(exited.exit)
        if sentence:
            self._terminal.say(sentence)
        if exited.refused_connections:
            flags = " ".join(f"--allow {entry}" for entry in exited.refused_connections)
            self._terminal.warn(
                f"the sandbox's network refused connections; this would permit them: {flags}"
            )
        count = exited.changed_files
        if exited.discarded and count is None:
            self._terminal.warn(
                "the workspace was discarded before its changed files were counted; --keep keeps"
                " it, for `fairlead exec`."
            )
        elif exited.discarded and count:
            files = "1 changed file was" if count == 1 else f"{count} changed files were"
            self._terminal.warn(
                f"{files} discarded with the workspace; --keep keeps it,"
                " for `fairlead exec` and `fairlead cp`."
            )
        if self._choices.keep:
            with contextlib.suppress(FairleadError):
                self._say_held(await self._client.launches.get(self._launch_id))

    def _say_held(self, launch: LaunchRecord) -> None:
        if launch.expires_at is None:
            return
        until = launch.expires_at.astimezone().strftime("%H:%M:%S")
        name = launch.launch_id
        self._terminal.say(f"{name} is held until {until}; next:")
        if not self._terminal.is_json:
            self._terminal.line(f"  fairlead exec {name} -- COMMAND")
            self._terminal.line(f"  fairlead shell {name}")
            self._terminal.line(f"  fairlead cp {name}:PATH NEW_PATH")
            self._terminal.line(f"  fairlead forward {name} PORT")
            self._terminal.line(f"  fairlead kill {name}")

    async def _show_timing(self) -> None:
        from fairlead_sdk.cli.waterfall import waterfall, whole_trace

        try:
            trace = await whole_trace(lambda: self._client.launches.trace(self._launch_id))
        except FairleadError as error:
            self._terminal.warn(f"there is no waterfall: {error.message}")
            return
        if self._terminal.is_json:
            await self._terminal.document({"type": "trace", "trace": trace.document})
            return
        columns = self._terminal.raw.columns
        drawn = waterfall(trace, columns=columns, coloured=self._terminal.is_live)
        self._terminal.line(drawn)

    async def _cancel(self) -> None:
        """Cancel on the mesh, for a bounded time; afterwards the lease reclaims it."""
        self._terminal.status("  cancelling…")
        with contextlib.suppress(FairleadError, TimeoutError):
            await asyncio.shield(self._cancel_in_time())

    async def _cancel_in_time(self) -> None:
        async with asyncio.timeout(CANCEL_SECONDS):
            if self._launch_id:
                await self._client.launches.cancel(self._launch_id)
            elif self._body:
                await self._client.launches.withdraw(self._body, key=self._key)
