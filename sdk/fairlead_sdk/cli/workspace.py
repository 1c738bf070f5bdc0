"""`fairlead workspace`: git checkouts on a host, made of the repository here."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fairlead_sdk.cli.running import Interrupts, exit_status_of, run
from fairlead_sdk.cli.tables import Row, drawn_table
from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.cli.ticks import Ticks, left_changes, reading, shown_seconds
from fairlead_sdk.cli.workspace_places import Place, opened_place
from fairlead_sdk.errors import (
    FailedPrecondition,
    FairleadError,
    InvalidArgument,
    Unavailable,
    WorkspaceNotFound,
)
from fairlead_sdk.repository import read_repository
from fairlead_sdk.scratch import Scratch
from fairlead_sdk.workspace_records import WorkspaceRecord

if TYPE_CHECKING:
    from fairlead_sdk.fairlead import AsyncFairlead
    from fairlead_sdk.records import LaunchRecord
    from fairlead_sdk.workspaces import WorkspaceRequest

_WHOLE_ID = re.compile(r"wsp_[a-z2-7]{26}")
_LISTED = 1000


def create(path: str, request: WorkspaceRequest, *, clean: bool, is_json: bool) -> int:
    """Make a workspace of the repository around `path`."""

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        from fairlead_sdk.cli.connection import connect

        scratch = Scratch()
        interrupts.at_once = scratch.close
        ticks = Ticks(terminal=terminal)
        try:
            # Uncommitted changes belong to the commit here, not to another's tip.
            repository = await asyncio.to_thread(
                read_repository,
                path,
                clean=clean or bool(request.from_),
                submodules=request.submodules,
                scratch=scratch,
                on_read=reading(terminal),
            )
            for warning in repository.warnings:
                terminal.warn(warning)
            async with connect(terminal) as client:
                made = await client.workspaces.materialize(
                    repository, request, on_miss=ticks.lacks, on_upload=ticks.upload
                )
        finally:
            scratch.close()
        if made.freshness is not None:
            left = await left_changes(repository, made.freshness, clean=clean)
            ticks.fresh(made.freshness, left_changes=left)
        ticks.pointers(made.lfs_pointers)
        await _tell(terminal, made)
        return 0

    return run(work, is_json=is_json)


def ls(*, host: str, is_json: bool) -> int:
    """List workspaces."""

    async def work(client: Place, terminal: Terminal) -> None:
        def warn(host_id: str) -> None:
            terminal.warn(f"{host_id} does not answer; what it holds is not listed.")

        listing = client.workspaces.list(limit=_LISTED, on_unanswered=warn)
        if terminal.is_json:
            found = await listing
            await terminal.document({"workspaces": [each.document for each in found]})
            return
        found, launches = await asyncio.gather(listing, client.launches.list(limit=_LISTED))
        if found:
            await terminal.text(_table(found, launches))
        else:
            terminal.say("there are no workspaces; `fairlead workspace create` makes one.")

    return _run_at(host, work, is_json=is_json)


def show(workspace: str, *, host: str, is_json: bool) -> int:
    """Show one workspace."""

    async def work(client: Place, terminal: Terminal) -> None:
        found = await find_workspace(client, workspace)
        shown = await client.workspaces.get(found.workspace_id, count_changes=True)
        if terminal.is_json:
            await terminal.document(shown.document)
        else:
            await terminal.text(_facts(shown))

    return _run_at(host, work, is_json=is_json)


def fork(workspace: str, *, name: str, branch: str, lease: float | None, is_json: bool) -> int:
    """Copy a workspace."""

    async def work(client: AsyncFairlead, terminal: Terminal) -> None:
        found = await find_workspace(client, workspace)
        made = await client.workspaces.fork(
            found.workspace_id, name=name, branch=branch, lease=lease
        )
        await _tell(terminal, made)

    return _run(work, is_json=is_json)


def rename(workspace: str, name: str, *, is_json: bool) -> int:
    """Give a workspace another name."""

    async def work(client: AsyncFairlead, terminal: Terminal) -> None:
        found = await find_workspace(client, workspace)
        renamed = await client.workspaces.rename(found.workspace_id, name)
        if terminal.is_json:
            await terminal.document(renamed.document)
        named = f"is called {renamed.name}" if renamed.name else "has no name"
        terminal.say(f"{renamed.workspace_id} {named}.")

    return _run(work, is_json=is_json)


def renew(workspace: str, *, lease: float | None, host: str, is_json: bool) -> int:
    """Hold a workspace for longer."""

    async def work(client: Place, terminal: Terminal) -> None:
        found = await find_workspace(client, workspace)
        renewed = await client.workspaces.renew(found.workspace_id, lease=lease)
        if terminal.is_json:
            await terminal.document(renewed.document)
        terminal.say(_held(renewed))
        if not host:
            await _say_which_sandboxes_end_before(client, renewed, terminal)

    return _run_at(host, work, is_json=is_json)


async def _say_which_sandboxes_end_before(
    client: Place, workspace: WorkspaceRecord, terminal: Terminal
) -> None:
    """Name the sandboxes in a workspace that was renewed whose own lease ends before its."""
    from fairlead_sdk.fairlead import AsyncFairlead

    if not isinstance(client, AsyncFairlead):
        return
    try:
        sandboxes = await client.sandboxes.list(limit=_LISTED)
    except FairleadError:
        return  # the workspace is renewed all the same
    for sandbox in sandboxes:
        if sandbox.workspace_id != workspace.workspace_id:
            continue
        if sandbox.expires_at >= workspace.expires_at:
            continue
        until = sandbox.expires_at.astimezone().strftime("%H:%M:%S")
        renewing = f"fairlead sandbox renew {sandbox.sandbox_id}"
        if sandbox.launch_id:
            renewing = f"fairlead launch renew {sandbox.launch_id}"
        terminal.warn(f"its sandbox {sandbox.sandbox_id} is held until {until} only: {renewing}")


def rm(workspaces: Sequence[str] | None, *, force: bool, host: str, is_json: bool) -> int:
    """Give workspaces back; None for all but those that launches hold.

    Of all, each that is refused is reported, the others go, and the status is that of the first
    refusal.
    """

    async def work(client: Place, terminal: Terminal) -> int:
        if workspaces is not None:
            found = [await find_workspace(client, text) for text in workspaces]
        else:
            found = await _of_no_launch(client, terminal)
        status = 0
        for each in found:
            try:
                released = await client.workspaces.delete(each.workspace_id, force=force)
            except FailedPrecondition as error:
                if workspaces is not None:
                    raise
                terminal.error(error)
                status = status or exit_status_of(error)
                continue
            if terminal.is_json:
                await terminal.document({"workspace_id": each.workspace_id, "released": released})
            again = "" if released else " already"
            terminal.say(f"{each.workspace_id} is given back{again}.")
        if not found:
            terminal.say("there are none.")
        return status

    return _run_at(host, work, is_json=is_json)


_END_PROGRAMS = r"""
import os, signal, sys, time

def running():
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and int(name) not in (os.getpid(), os.getppid()):
                directory = os.readlink(f"/proc/{name}/cwd")
                with open(f"/proc/{name}/environ", "rb") as file:
                    stays = b"FAIRLEAD_STAYS=1" in file.read().split(b"\0")
                if stays and (directory + "/").startswith(os.getcwd() + "/"):
                    yield int(name)
        except OSError:
            continue

for number, seconds in ((signal.SIGTERM, 2), (signal.SIGKILL, 2)):
    for pid in running():
        try:
            os.kill(pid, number)
        except OSError:
            continue
    ends = time.monotonic() + seconds
    while any(running()) and time.monotonic() < ends:
        time.sleep(0.02)
"""
"""Ends what `--keep` left running in a workspace of an SSH host, which is its directory."""


def kill_on_host(workspaces: Sequence[str] | None, *, host: str, is_json: bool) -> int:
    """End what runs in workspaces of an SSH host and give them back; None for all of them."""

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        from fairlead_sdk.cli.workspace_places import opened_host
        from fairlead_sdk.launches import Command

        async with opened_host(host) as place:
            if workspaces is None:
                found = list(await place.workspaces.list(limit=_LISTED))
            else:
                found = [await find_workspace(place, text) for text in workspaces]
            for each in found:
                command = Command(arguments=["python3", "-c", _END_PROGRAMS])
                async with place.host.run(each.workspace_id, command) as execution:
                    async for _ in execution.output():
                        continue
                released = await place.host.release(each.workspace_id)
                if terminal.is_json:
                    document = {"workspace_id": each.workspace_id, "released": released}
                    await terminal.document(document)
                terminal.say(f"{each.workspace_id} has ended and is given back.")
            if not found:
                terminal.say("nothing is held there.")
        return 0

    return run(work, is_json=is_json)


async def _of_no_launch(client: Place, terminal: Terminal) -> list[WorkspaceRecord]:
    """List the workspaces that no live launch holds."""

    def warn(host_id: str) -> None:
        terminal.warn(f"{host_id} does not answer; what it holds is left alone.")

    listed, launches = await asyncio.gather(
        client.workspaces.list(limit=_LISTED, on_unanswered=warn),
        client.launches.list(limit=_LISTED),
    )
    held = {launch.workspace_id for launch in launches if launch.released_at is None}
    return [each for each in listed if each.workspace_id not in held]


async def find_workspace(client: Place, text: str) -> WorkspaceRecord:
    """Find the workspace of that id or name, or whose id begins with `text`, with or without
    `wsp_`.
    """
    if _WHOLE_ID.fullmatch(text):
        return await client.workspaces.get(text)
    silent: list[str] = []
    listed: Sequence[WorkspaceRecord] = ()
    if text:
        listed = await client.workspaces.list(limit=_LISTED, on_unanswered=silent.append)
    prefix = text if text.startswith("wsp_") else f"wsp_{text}"
    named = [each for each in listed if each.name == text]
    found = named or [each for each in listed if each.workspace_id.startswith(prefix)]
    if len(found) > 1:
        meant = "are called" if named else "begin with"
        raise InvalidArgument(
            f"{len(found)} workspaces {meant} {text}.",
            reason="workspace_ambiguous",
            remedy="Give the id: fairlead workspace ls",
        )
    if not found and silent:
        raise Unavailable(
            f"No host that answered has a workspace {text!r}; no answer from {', '.join(silent)}.",
            reason="host_away",
            remedy="Try again, or give the whole id.",
        )
    if not found:
        raise WorkspaceNotFound(
            f"No workspace is called {text!r} or begins with it.",
            reason="workspace_not_found",
            remedy="fairlead workspace ls",
        )
    return found[0]


def _run_at(
    host: str, work: Callable[[Place, Terminal], Awaitable[int | None]], *, is_json: bool
) -> int:
    async def connected(terminal: Terminal, interrupts: Interrupts) -> int:
        async with opened_place(host, terminal) as place:
            return await work(place, terminal) or 0

    return run(connected, is_json=is_json)


def _run(work: Callable[[AsyncFairlead, Terminal], Awaitable[None]], *, is_json: bool) -> int:
    async def connected(terminal: Terminal, interrupts: Interrupts) -> int:
        from fairlead_sdk.cli.connection import connect

        async with connect(terminal) as client:
            await work(client, terminal)
        return 0

    return run(connected, is_json=is_json)


async def _tell(terminal: Terminal, made: WorkspaceRecord) -> None:
    if terminal.is_json:
        await terminal.document(made.document)
        return
    await terminal.text(made.workspace_id)
    terminal.say(_held(made))


def _held(workspace: WorkspaceRecord) -> str:
    until = workspace.expires_at.astimezone().strftime("%H:%M:%S")
    return f"{workspace.name or workspace.workspace_id} is held until {until}."


def _facts(workspace: WorkspaceRecord) -> str:
    changed = workspace.changed_files
    facts = {
        "workspace": workspace.workspace_id,
        "name": workspace.name,
        "state": workspace.state,
        "project": workspace.project,
        "branch": workspace.branch or "none: HEAD is detached",
        "commit": workspace.commit,
        "changed": "" if changed is None else f"{changed} file{'' if changed == 1 else 's'}",
        "made by": workspace.rung,
        "host": workspace.host_id,
        "held": workspace.expires_at.astimezone().strftime("until %Y-%m-%d %H:%M:%S"),
    }
    return "\n".join(f"{name:<10} {value}" for name, value in facts.items() if value)


def _table(workspaces: Sequence[WorkspaceRecord], launches: Sequence[LaunchRecord]) -> str:
    now = datetime.now(UTC)
    owners = {each.workspace_id: each.launch_id for each in launches}
    titles = ("WORKSPACE", "NAME", "PROJECT", "BRANCH", "COMMIT", "AGE", "HELD FOR", "LAUNCH")
    rows = [
        Row(
            (
                each.workspace_id,
                each.name,
                each.project[:12],
                each.branch,
                each.commit[:12],
                shown_seconds(max(0.0, (now - each.created_at).total_seconds())),
                shown_seconds(max(0.0, (each.expires_at - now).total_seconds())),
                owners.get(each.workspace_id, ""),
            )
        )
        for each in workspaces
    ]
    return drawn_table(titles, rows)
