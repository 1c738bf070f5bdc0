"""Following one launch: what each event means for the terminal and for the exit status."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from contextlib import aclosing
from typing import TYPE_CHECKING

from fairlead_sdk.cli.endings import ending_of
from fairlead_sdk.cli.terminal import STDERR, STDOUT, Terminal
from fairlead_sdk.cli.ticks import Ticks
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
from fairlead_sdk.launches import Command, LaunchRequest
from fairlead_sdk.records import LaunchRecord, OutputRecord
from fairlead_sdk.repository import Repository

if TYPE_CHECKING:
    from fairlead_sdk.cli.launch import LaunchChoices

CANCEL_SECONDS = 5.0


class Following:
    """One launch, from the request to its exit status."""

    def __init__(
        self,
        *,
        client: AsyncFairlead,
        terminal: Terminal,
        repository: Repository,
        choices: LaunchChoices,
    ) -> None:
        self._client = client
        self._terminal = terminal
        self._repository = repository
        self._choices = choices
        self._ticks = Ticks(terminal=terminal)
        self._key = make_idempotency_key()
        self._launch_id = ""
        self._sent = 0

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
        if self._choices.timing:
            await self._show_timing()
        return status

    async def _follow(self) -> int:
        events = self._client.launches.start(
            self._repository, self._request(), key=self._key, on_upload=self._took_upload
        )
        async with aclosing(events):
            async for event in events:
                if self._terminal.is_json:
                    await self._terminal.document(event.document)
                status = await self._take(event)
                if status is not None:
                    return status
        raise AssertionError("the events of a launch end with a terminal one, or raise")

    def _request(self) -> LaunchRequest:
        choices = self._choices
        command = None
        if choices.command:
            command = Command(
                arguments=choices.command,
                directory=self._repository.directory,
                timeout=choices.timeout,
            )
        return LaunchRequest(
            branch=choices.branch, command=command, keep=choices.keep, isolation=choices.isolation
        )

    async def _take(self, event: LaunchEvent) -> int | None:
        """Take an event; gives the exit status with the one that ends the command."""
        if self._sent and not isinstance(event.happening, SnapshotMissed):
            self._ticks.uploaded(self._sent)
            self._sent = 0
        match event.happening:
            case LaunchSnapshot(launch):
                self._launch_id = launch.launch_id
            case StepChanged() as change:
                self._ticks.step(change)
            case SnapshotMissed() as miss:
                self._ticks.miss(miss)
            case OutputRecord(stream=stream, content=content):
                if not self._terminal.is_json:
                    await self._terminal.output(STDERR if stream == "stderr" else STDOUT, content)
            case LaunchProvisioned(launch):
                await self._provisioned(launch)
                return 0
            case LaunchExited() as exited:
                await self._exited(exited)
                return exited.exit.exit_code
            case LaunchStopped(failure):
                raise launch_failed(failure, self._launch_id)
            case LaunchWithdrawn(reason):
                raise launch_cancelled(reason, self._launch_id)
        return None

    def _took_upload(self, sent: int) -> None:
        self._sent = sent
        self._ticks.upload(sent)

    async def _provisioned(self, launch: LaunchRecord) -> None:
        if not self._terminal.is_json:
            await self._terminal.text(launch.launch_id)
        self._say_held(launch)

    async def _exited(self, exited: LaunchExited) -> None:
        await self._terminal.raw.drain()
        sentence = ending_of(exited.exit)
        if sentence:
            self._terminal.say(sentence)
        count = exited.changed_files or 0
        if exited.discarded and count:
            files = "1 changed file was" if count == 1 else f"{count} changed files were"
            self._terminal.warn(f"{files} discarded with the workspace; --keep keeps it.")
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
        columns = shutil.get_terminal_size((100, 24)).columns
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
            else:
                request = self._request()
                await self._client.launches.withdraw(self._repository, request, key=self._key)
