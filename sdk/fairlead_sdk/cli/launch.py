"""`fairlead launch`: the repository around a path to running code, in one round trip."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairlead_sdk.agent_start import start_agent
from fairlead_sdk.cli.running import Interrupts, Work, run
from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.discovery import find_mesh
from fairlead_sdk.errors import FairleadError
from fairlead_sdk.repository import read_repository
from fairlead_sdk.scratch import Scratch

if TYPE_CHECKING:
    from fairlead_sdk.agent_client import Takeover
    from fairlead_sdk.client import FrontDoor
    from fairlead_sdk.repository import Repository
    from fairlead_sdk.sandbox_records import SandboxRequest
    from fairlead_sdk.uploads import Histories


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchChoices:
    """What the user asked for."""

    path: str
    command: Sequence[str]
    branch: str
    clean: bool
    keep: bool
    timing: bool
    isolation: str
    timeout: float | None
    from_: str = ""
    submodules: bool = False
    sandbox: SandboxRequest | None = None
    workspace: str = ""
    no_stdin: bool = False

    @property
    def leaves_changes(self) -> bool:
        """Say whether uncommitted changes stay at home; they belong to the local commit."""
        return self.clean or bool(self.from_)


def launch(choices: LaunchChoices, *, is_json: bool, takeover: Takeover | None = None) -> int:
    """Launch, follow and give the exit status; or go on with what an agent began."""
    status = run(launching(choices, takeover=takeover), is_json=is_json)
    start_agent(os.environ)
    return status


def launching(
    choices: LaunchChoices,
    *,
    door: FrontDoor | None = None,
    histories: Histories | None = None,
    takeover: Takeover | None = None,
) -> Work:
    """Give the work of one launch, by a front door that is open already where there is one."""

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        scratch = Scratch()
        interrupts.at_once = scratch.close
        try:
            reading = asyncio.ensure_future(_repository(choices, scratch, terminal))
            # git runs in the meantime, on another core, and the connection is made.
            async with AsyncExitStack() as stack:
                opened = door or await _connecting(stack, terminal)
                from fairlead_sdk.cli.following import Following
                from fairlead_sdk.fairlead import AsyncFairlead

                repository = await reading
                if repository is not None and takeover is None:
                    for warning in repository.warnings:
                        terminal.warn(warning)
                client = await stack.enter_async_context(
                    AsyncFairlead(door=opened, histories=histories)
                )
                following = Following(
                    client=client,
                    terminal=terminal,
                    interrupts=interrupts,
                    repository=repository,
                    choices=choices,
                    takeover=takeover,
                )
                return await following.to_the_end()
        finally:
            scratch.close()

    return work


async def _repository(
    choices: LaunchChoices, scratch: Scratch, terminal: Terminal
) -> Repository | None:
    """Read the repository; none where the launch works in a workspace that is there."""
    if choices.workspace:
        return None
    from fairlead_sdk.cli.ticks import reading

    return await asyncio.to_thread(
        read_repository,
        choices.path,
        clean=choices.leaves_changes,
        submodules=choices.submodules,
        scratch=scratch,
        on_read=reading(terminal),
    )


async def _connecting(stack: AsyncExitStack, terminal: Terminal) -> FrontDoor | None:
    """Open the front door ahead of time, and leave it to later to complain."""
    from fairlead_sdk.client import FrontDoor

    try:
        mesh = find_mesh()
        if mesh.notice:
            terminal.say(mesh.notice)
        door = await stack.enter_async_context(FrontDoor(url=mesh.url, api_key=mesh.api_key))
    except FairleadError:
        return None
    door.connect_ahead()
    await asyncio.sleep(0)
    return door
