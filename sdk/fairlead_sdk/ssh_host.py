"""Launches on a host over SSH: a workspace below the address's directory, commands in it.

There is no mesh and no sandbox in between: a command may do there what the account may do.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Protocol

from fairlead_sdk import json_form as form
from fairlead_sdk.commands import CommandResult
from fairlead_sdk.errors import CommandFailed, FairleadError
from fairlead_sdk.json_form import JsonObject
from fairlead_sdk.launches import Command
from fairlead_sdk.records import Exit
from fairlead_sdk.repository import Repository, read_repository
from fairlead_sdk.scratch import Scratch
from fairlead_sdk.ssh_address import SshAddress
from fairlead_sdk.ssh_channel import Answer, HostCall, HostChannel
from fairlead_sdk.ssh_errors import ConnectionLost
from fairlead_sdk.ssh_kept import KeptSsh
from fairlead_sdk.ssh_upload import (
    MissListener,
    UploadListener,
    WorkspaceRequest,
    materialized,
)
from fairlead_sdk.workspace_records import Freshness

_ATTEMPTS = 3
_PATIENCE_SECONDS = 30.0
_RELEASE_SECONDS = 5.0


def make_host_key() -> str:
    """Make an idempotency key for one launch; use it for every attempt."""
    return secrets.token_urlsafe(18)


class Connections(Protocol):
    """Where the channel to a host comes from: a connection of one's own, or the agent's."""

    async def channel(self, *, patience: float = 0.0) -> HostChannel:
        """Give the open channel, or connect; see `KeptSsh.channel`."""
        ...


@dataclass(frozen=True, slots=True)
class HostWorkspace:
    """A workspace on a host; `path` is where its files are there."""

    workspace_id: str
    path: str
    commit: str
    branch: str
    has_submodules: bool
    lfs_pointers: int
    expires_at: datetime | None
    freshness: Freshness | None
    document: JsonObject

    @classmethod
    def read(cls, document: JsonObject) -> HostWorkspace:
        """Read the JSON form."""
        freshness = form.child(document, "freshness")
        return cls(
            workspace_id=form.text(document, "workspace_id"),
            path=form.text(document, "path"),
            commit=form.text(document, "commit"),
            branch=form.text(document, "branch"),
            has_submodules=form.flag(document, "has_submodules"),
            lfs_pointers=form.number(document, "lfs_pointers"),
            expires_at=form.time(document, "expires_at"),
            freshness=Freshness.read(freshness) if freshness else None,
            document=document,
        )


class HostExecution:
    """A command that runs in a workspace; `exit` is there when its output has ended."""

    def __init__(self, *, call: HostCall) -> None:
        self._call = call
        self.exit: Exit | None = None

    async def output(self) -> AsyncIterator[tuple[str, bytes]]:
        """Give the output with the name of its stream. Raises `ConnectionLost` when the connection
        breaks, which ends the command too.
        """
        async for stream, content in self._call.outputs():
            yield stream, content
        answer = self._call.answer or {}
        self.exit = Exit(
            reason=form.text(answer, "reason"),
            code=form.optional_number(answer, "code"),
            signal=form.optional_number(answer, "signal"),
            last_sequence=0,
            ended_at=None,
        )

    async def feed(self, chunk: bytes) -> None:
        """Write to its standard input."""
        await self._call.send(chunk)

    async def feed_end(self) -> None:
        """End its standard input."""
        await self._call.end()

    async def signal(self, number: int) -> None:
        """Signal the command and all of its group."""
        await self._call.signal(number)


class AsyncSshHost:
    """One host over SSH; use as `async with`.

    `connections` takes the place of a connection of one's own.
    """

    def __init__(self, address: str, *, connections: Connections | None = None) -> None:
        self.address = SshAddress.read(address)
        self._kept = None if connections else KeptSsh(address=self.address)
        self._connections: Connections = connections or self._own()
        self._stack = AsyncExitStack()
        self._asked: set[str] = set()
        self._histories: set[asyncio.Future[bool]] = set()

    def _own(self) -> KeptSsh:
        if self._kept is None:
            raise ValueError("there are connections already")
        return self._kept

    async def __aenter__(self) -> AsyncSshHost:
        if self._kept is not None:
            await self._stack.enter_async_context(self._kept)
            self._kept.begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.settle(wait=False)
        await self._stack.__aexit__(kind, error, traceback)

    async def settle(self, *, wait: bool) -> bool:
        """Wait for the histories whose files were sent first, or give them up: the next upload
        brings them. Says whether one is not there.
        """
        histories, self._histories = self._histories, set()
        if not histories:
            return False
        if not wait:
            for each in histories:
                each.cancel()
        await asyncio.wait(histories)
        return any(each.cancelled() or not each.result() for each in histories)

    async def materialize(
        self,
        repository: Repository,
        *,
        key: str = "",
        branch: str = "",
        from_: str = "",
        submodules: bool = False,
        on_miss: MissListener | None = None,
        on_upload: UploadListener | None = None,
    ) -> HostWorkspace:
        """Make a workspace of a repository; what the host lacks is sent.

        When the connection breaks it is made again, and the same `key` gives the same workspace.
        Of a large repository that the host has nothing of, the files are sent first and the history
        in the background; see `settle`. With `from_` = "trunk" the workspace is made of
        the tip of the origin's default branch, with `submodules` they are checked out too; see
        `origin_fields`.
        """
        key = key or make_host_key()
        request = WorkspaceRequest(
            repository=repository,
            url=str(self.address),
            fields={
                "idempotency_key": key,
                "branch": branch,
                "claim_branch": bool(branch),
            },
            from_=from_,
            submodules=submodules,
            on_miss=on_miss,
            on_upload=on_upload,
        )
        for attempt in range(_ATTEMPTS):
            channel = await self._connections.channel(patience=_PATIENCE_SECONDS if attempt else 0)
            self._asked.add(key)
            try:
                made = await materialized(channel, request)
                if made.history is not None:
                    self._histories.add(asyncio.ensure_future(made.history()))
                return HostWorkspace.read(made.workspace)
            except ConnectionLost:
                if attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def run(
        self, workspace_id: str, command: Command, *, stays: bool = False
    ) -> AsyncIterator[HostExecution]:
        """Run a command; leaving the block kills it with its group, unless it `stays`: then what it
        leaves in the background goes on, also when the connection ends.
        """
        channel = await self._connections.channel()
        fields: dict[str, object] = {
            "workspace_id": workspace_id,
            "arguments": list(command.arguments),
            "environment": dict(command.environment),
            "directory": command.directory,
            "stdin": command.stdin,
            "stays": stays,
        }
        if command.timeout is not None:
            fields["timeout"] = command.timeout
        call = await channel.start("run", **fields)
        try:
            yield HostExecution(call=call)
        finally:
            await call.close()

    async def workspace(self, workspace_id: str, *, count_changes: bool = False) -> HostWorkspace:
        """Read a workspace; with `count_changes` its document has `changed_files`."""
        answer = await self._ask("get", workspace_id=workspace_id, count_changes=count_changes)
        return HostWorkspace.read(form.child(answer, "workspace") or {})

    async def workspaces(self) -> tuple[HostWorkspace, ...]:
        """List the workspaces on the host."""
        found: list[HostWorkspace] = []
        token = ""
        while True:
            answer = await self._ask("list", page_size=1000, page_token=token)
            found += [HostWorkspace.read(each) for each in form.children(answer, "workspaces")]
            token = form.text(answer, "next_page_token")
            if not token:
                return tuple(found)

    async def renew(self, workspace_id: str, *, lease: float | None = None) -> HostWorkspace:
        """Hold a workspace for `lease` seconds from now, 30 minutes when absent."""
        fields = {} if lease is None else {"lease": lease}
        answer = await self._ask("renew", workspace_id=workspace_id, **fields)
        return HostWorkspace.read(form.child(answer, "workspace") or {})

    async def release(self, workspace_id: str, *, checked: bool = False) -> bool:
        """Give a workspace back; says whether there was one. With `checked` it refuses to lose
        work.
        """
        answer = await self._ask("release", workspace_id=workspace_id, checked=checked)
        return form.flag(answer, "released")

    async def withdraw(self, key: str) -> bool:
        """Give back what a key has made, or keep it from making anything."""
        return form.flag(await self._ask("release", idempotency_key=key), "released")

    async def _ask(self, verb: str, **fields: object) -> Answer:
        """Ask once, and once more where the connection broke; every verb asked here may repeat."""
        try:
            return await (await self._connections.channel()).ask(verb, **fields)
        except ConnectionLost:
            channel = await self._connections.channel(patience=_PATIENCE_SECONDS)
            return await channel.ask(verb, **fields)

    @asynccontextmanager
    async def launch(
        self,
        path: str | os.PathLike[str] = ".",
        *,
        branch: str = "",
        clean: bool = False,
        from_: str = "",
        submodules: bool = False,
        keep: bool = False,
    ) -> AsyncIterator[AsyncSshLaunch]:
        """Launch the repository around `path`; leaving the block gives the workspace back, unless
        `keep`: then the host holds it for 30 minutes.
        """
        scratch = Scratch()
        key = make_host_key()
        try:
            repository = await asyncio.to_thread(
                read_repository,
                path,
                clean=clean or bool(from_),
                submodules=submodules,
                scratch=scratch,
            )
            workspace = await self.materialize(
                repository, key=key, branch=branch, from_=from_, submodules=submodules
            )
        except BaseException:
            await self.give_up(key)
            raise
        finally:
            scratch.close()
        launch = AsyncSshLaunch(host=self, workspace=workspace, directory=repository.directory)
        try:
            yield launch
        finally:
            if not keep:
                await self.give_up(key)

    async def give_up(self, key: str) -> None:
        """Give back what a key has made, for a bounded time; afterwards its lease does. A key that
        the host never heard of costs no connection.
        """
        if key not in self._asked:
            return
        self._asked.discard(key)
        with suppress(FairleadError, TimeoutError):
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self.withdraw(key)


class AsyncSshLaunch:
    """A workspace on a host over SSH, and commands in it."""

    def __init__(self, *, host: AsyncSshHost, workspace: HostWorkspace, directory: str) -> None:
        self.workspace = workspace
        self._host = host
        self._directory = directory

    async def run(
        self,
        command: str | Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        directory: str | None = None,
        stdin: bytes | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the host keeps the time
        check: bool = False,
    ) -> CommandResult:
        """Run a command to its end; see `AsyncCommands.run`."""
        arguments = ["sh", "-c", command] if isinstance(command, str) else list(command)
        request = Command(
            arguments=arguments,
            environment=dict(environment or {}),
            directory=self._directory if directory is None else directory,
            stdin=stdin is not None,
            timeout=timeout,
        )
        parts = {"stdout": bytearray(), "stderr": bytearray()}
        async with self._host.run(self.workspace.workspace_id, request) as execution:
            feeding = asyncio.ensure_future(_feed(execution, stdin))
            try:
                async for stream, content in execution.output():
                    parts[stream] += content
            finally:
                feeding.cancel()
                await asyncio.wait((feeding,))
        if execution.exit is None:
            raise AssertionError("an output ends with its exit, or raises")
        result = CommandResult(bytes(parts["stdout"]), bytes(parts["stderr"]), execution.exit)
        if check and result.exit_code != 0:
            raise CommandFailed(
                f"{arguments[0]} ended with exit code {result.exit_code}.",
                reason="command_failed",
                fields={"exit_code": str(result.exit_code), "stderr": result.stderr_text[-2000:]},
            )
        return result


async def _feed(execution: HostExecution, stdin: bytes | None) -> None:
    if stdin is not None:
        with suppress(ConnectionLost):
            await execution.feed(stdin)
            await execution.feed_end()
