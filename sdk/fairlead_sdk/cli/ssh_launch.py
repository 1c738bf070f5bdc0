"""`fairlead launch --host`: the same over SSH, on a machine that has only sshd, git and Python."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
from collections.abc import Mapping

from fairlead_sdk.agent_start import start_agent
from fairlead_sdk.cli.endings import ending_of, explained
from fairlead_sdk.cli.launch import LaunchChoices
from fairlead_sdk.cli.running import Interrupts, run, stop_command
from fairlead_sdk.cli.standard_input import has_standard_input, read_standard_input
from fairlead_sdk.cli.terminal import STDERR, STDOUT, Terminal
from fairlead_sdk.cli.ticks import Ticks, left_changes, reading
from fairlead_sdk.errors import FairleadError, InvalidArgument
from fairlead_sdk.launches import Command
from fairlead_sdk.records import Exit, Failure
from fairlead_sdk.repository import Repository, read_repository
from fairlead_sdk.scratch import Scratch
from fairlead_sdk.ssh_address import SshAddress
from fairlead_sdk.ssh_agent import AgentConnections
from fairlead_sdk.ssh_host import AsyncSshHost, HostExecution, HostWorkspace, make_host_key


def ssh_launch(choices: LaunchChoices, *, host: str, is_json: bool) -> int:
    """Launch on a host, follow and give the exit status."""

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        scratch = Scratch()
        interrupts.at_once = scratch.close
        try:
            address = SshAddress.read(host)
            # The connection is there, or is made while git runs.
            async with (
                AgentConnections(address=address) as connections,
                AsyncSshHost(host, connections=connections) as opened,
            ):
                repository = await asyncio.to_thread(
                    read_repository,
                    choices.path,
                    clean=choices.leaves_changes,
                    submodules=choices.submodules,
                    scratch=scratch,
                    on_read=reading(terminal),
                )
                for warning in repository.warnings:
                    terminal.warn(warning)
                launch = _HostLaunch(
                    host=opened,
                    terminal=terminal,
                    interrupts=interrupts,
                    repository=repository,
                    choices=choices,
                )
                return await launch.to_the_end()
        finally:
            scratch.close()

    status = run(work, is_json=is_json)
    start_agent(os.environ)
    return status


class _HostLaunch:
    """One launch on a host, from the request to its exit status."""

    def __init__(
        self,
        *,
        host: AsyncSshHost,
        terminal: Terminal,
        interrupts: Interrupts,
        repository: Repository,
        choices: LaunchChoices,
    ) -> None:
        self._host = host
        self._terminal = terminal
        self._interrupts = interrupts
        self._repository = repository
        self._choices = choices
        self._ticks = Ticks(terminal=terminal)
        self._key = make_host_key()
        self._sent = 0

    async def to_the_end(self) -> int:
        """Launch and give the exit status; when it is left early, nothing is kept."""
        keeps = False
        try:
            workspace = await self._host.materialize(
                self._repository,
                key=self._key,
                branch=self._choices.branch,
                from_=self._choices.from_,
                submodules=self._choices.submodules,
                on_miss=self._ticks.lacks,
                on_upload=self._took_upload,
            )
            if self._sent:
                self._ticks.uploaded(self._sent)
            if workspace.freshness is not None:
                left = await left_changes(
                    self._repository, workspace.freshness, clean=self._choices.clean
                )
                self._ticks.fresh(workspace.freshness, left_changes=left)
            self._ticks.pointers(workspace.lfs_pointers)
            await self._tell("provisioned", {"workspace": workspace.document})
            if not self._choices.command:
                keeps = True
                if not self._terminal.is_json:
                    await self._terminal.text(workspace.workspace_id)
                self._say_held(workspace)
                await self._settle(wait=True)
                return 0
            try:
                exit_ = await self._run(workspace)
            except InvalidArgument as error:
                raise self._explained(error) from None
            keeps = self._choices.keep
            await self._ended(exit_, workspace)
            await self._settle(wait=keeps)
            return exit_.exit_code
        finally:
            if not keeps:
                await asyncio.shield(self._host.give_up(self._key))

    def _explained(self, error: InvalidArgument) -> InvalidArgument:
        failure = Failure(step="", reason=error.reason, message=error.message, remedy=error.remedy)
        told = explained(failure, self._repository, from_=self._choices.from_)
        return InvalidArgument(
            told.message, reason=told.reason, remedy=told.remedy, fields=error.fields
        )

    async def _settle(self, *, wait: bool) -> None:
        """Wait for the history of what is kept; otherwise the next launch goes on with it."""
        if await self._host.settle(wait=wait) and wait:
            self._terminal.say("the history was not sent whole; the next upload brings it.")

    def _took_upload(self, sent: int, written: int | None) -> None:
        self._sent = sent
        self._ticks.upload(sent, written)

    async def _run(self, workspace: HostWorkspace) -> Exit:
        command = Command(
            arguments=self._choices.command,
            directory=self._repository.directory,
            stdin=not self._choices.no_stdin and has_standard_input(),
            timeout=self._choices.timeout,
        )
        return await run_on_host(
            self._host,
            workspace.workspace_id,
            command,
            terminal=self._terminal,
            interrupts=self._interrupts,
            stays=self._choices.keep,
        )

    async def _ended(self, exit_: Exit, workspace: HostWorkspace) -> None:
        await self._terminal.raw.drain()
        sentence = ending_of(exit_)
        if sentence:
            self._terminal.say(sentence)
        count = await self._count_changes(workspace)
        kept = self._choices.keep
        is_lost = not kept and bool(count)
        ending = {"reason": exit_.reason, "code": exit_.code, "signal": exit_.signal}
        told = {"exit": ending, "changed_files": count, "discarded": is_lost}
        await self._tell("exited", told)
        if kept:
            self._say_held(await self._host.workspace(workspace.workspace_id))
        elif is_lost:
            files = "1 changed file was" if count == 1 else f"{count} changed files were"
            self._terminal.warn(f"{files} discarded with the workspace; --keep keeps it.")

    async def _count_changes(self, workspace: HostWorkspace) -> int | None:
        with contextlib.suppress(FairleadError):
            found = await self._host.workspace(workspace.workspace_id, count_changes=True)
            count = found.document.get("changed_files")
            return count if isinstance(count, int) else None
        return None

    def _say_held(self, workspace: HostWorkspace) -> None:
        until = workspace.expires_at
        if until is None:
            return
        self._terminal.say(
            f"{self._host.address.destination}:{workspace.path} is held until"
            f" {until.astimezone():%H:%M:%S}; next:"
        )
        if not self._terminal.is_json:
            host, name = f"--host {self._host.address}", workspace.workspace_id
            self._terminal.line(f"  fairlead exec {host} {name} -- COMMAND")
            self._terminal.line(f"  fairlead cp {host} {name}:PATH .")
            self._terminal.line(f"  fairlead kill {host} {name}")

    async def _tell(self, name: str, fields: Mapping[str, object]) -> None:
        if self._terminal.is_json:
            await self._terminal.document({"type": name, name: fields})


async def run_on_host(
    host: AsyncSshHost,
    workspace_id: str,
    command: Command,
    *,
    terminal: Terminal,
    interrupts: Interrupts,
    stays: bool,
) -> Exit:
    """Run a command, pass its streams through and return how it ended.

    The first Ctrl-C stops it (see `stop_command`), the second one leaves, which kills it.
    """
    stopping: asyncio.Task[None] | None = None

    def interrupt() -> bool:
        nonlocal stopping
        if stopping is not None:
            return False
        stopping = asyncio.create_task(stop_command(execution.signal))
        return True

    async with host.run(workspace_id, command, stays=stays) as execution:
        interrupts.instead = interrupt
        feeding = asyncio.create_task(_feed(execution)) if command.stdin else None
        try:
            async for stream, content in execution.output():
                if terminal.is_json:
                    text = base64.b64encode(content).decode("ascii")
                    output = {"stream": stream, "content": text}
                    await terminal.document({"type": "output", "output": output})
                else:
                    await terminal.output(STDERR if stream == "stderr" else STDOUT, content)
        finally:
            interrupts.instead = None
            tasks = [task for task in (feeding, stopping) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    if execution.exit is None:
        raise AssertionError("an output ends with its exit, or raises")
    await terminal.raw.drain()
    return execution.exit


async def _feed(execution: HostExecution) -> None:
    with contextlib.suppress(FairleadError):
        async for piece in read_standard_input():
            await execution.feed(piece)
        await execution.feed_end()
