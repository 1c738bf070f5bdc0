"""The client of one command, and launches and sandboxes by the beginning of their id."""

from __future__ import annotations

import asyncio
import re

from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.discovery import find_mesh
from fairlead_sdk.errors import InvalidArgument, LaunchNotFound, LaunchNotHeld, SandboxNotFound
from fairlead_sdk.fairlead import AsyncFairlead
from fairlead_sdk.records import LaunchRecord

_WHOLE_SANDBOX_ID = re.compile(r"sbx_[a-z2-7]{26}")
_WHOLE_ID = re.compile(r"lch_[a-z2-7]{26}")
_SEARCHED = 1000


def connect(terminal: Terminal) -> AsyncFairlead:
    """Return a client of the mesh that is meant here; say which where that is not obvious."""
    mesh = find_mesh()
    if mesh.notice:
        terminal.say(mesh.notice)
    return AsyncFairlead(url=mesh.url, api_key=mesh.api_key)


async def find_launch(client: AsyncFairlead, text: str) -> LaunchRecord:
    """Find the launch whose id is `text` or begins with it, with or without `lch_`."""
    if _WHOLE_ID.fullmatch(text):
        return await client.launches.get(text)
    prefix = text if text.startswith("lch_") else f"lch_{text}"
    launches = await client.launches.list(limit=_SEARCHED) if text else ()
    found = [launch for launch in launches if launch.launch_id.startswith(prefix)]
    if len(found) > 1:
        raise InvalidArgument(
            f"{len(found)} launches begin with {text}.",
            reason="launch_ambiguous",
            remedy="Give more of the id: fairlead ps --all",
        )
    if not found:
        raise LaunchNotFound(
            f"No launch begins with {text!r}.",
            reason="launch_not_found",
            remedy="fairlead ps --all",
        )
    return found[0]


async def find_sandbox(client: AsyncFairlead, text: str) -> str:
    """Find the id of the sandbox that is `text` or begins with it, with or without `sbx_`."""
    if _WHOLE_SANDBOX_ID.fullmatch(text):
        return text
    prefix = text if text.startswith("sbx_") else f"sbx_{text}"
    listed = await client.sandboxes.list(limit=_SEARCHED) if text else ()
    found = [each.sandbox_id for each in listed if each.sandbox_id.startswith(prefix)]
    if len(found) > 1:
        raise InvalidArgument(
            f"{len(found)} sandboxes begin with {text}.",
            reason="sandbox_ambiguous",
            remedy="Give more of the id: fairlead sandbox ls",
        )
    if not found:
        raise SandboxNotFound(
            f"No sandbox begins with {text!r}.",
            reason="sandbox_not_found",
            remedy="fairlead sandbox ls",
        )
    return found[0]


async def find_sandbox_of(client: AsyncFairlead, text: str) -> str:
    """Find the id of the sandbox of a launch that is held, or of one that is named itself."""
    if text.startswith("sbx_"):
        return await find_sandbox(client, text)
    record = await find_launch(client, text)
    if not record.is_held:
        # After a lost host it names the way back to a workspace that is kept.
        remedy = record.failure.remedy if record.failure is not None else ""
        raise LaunchNotHeld(
            f"{record.launch_id} holds no sandbox (any more): it is {record.state}.",
            reason="launch_not_held",
            remedy=remedy or "Launch with --keep, or without a command, and use that one.",
        )
    return record.sandbox_id


async def find_newest(client: AsyncFairlead) -> LaunchRecord:
    """Find the newest launch of this directory's repository that holds a sandbox."""
    from fairlead_sdk.repository import read_repository

    repository = await asyncio.to_thread(read_repository, ".", clean=True)
    try:
        project = repository.project
    finally:
        repository.close()
    for record in await client.launches.list():
        if record.is_held and record.project == project:
            return record
    raise LaunchNotFound(
        "No launch of this directory's repository holds a sandbox.",
        reason="launch_not_found",
        remedy="`fairlead launch --keep` makes one; any other one can be named.",
    )


async def find_target(client: AsyncFairlead, text: str) -> str:
    """Find the id of what a session leads to: a launch, the newest from here where `text` is
    empty, or a sandbox of its own, sbx_….
    """
    if not text:
        return (await find_newest(client)).launch_id
    if text.startswith("sbx_"):
        return await find_sandbox(client, text)
    return (await find_launch(client, text)).launch_id
