"""`fairlead launch`: the repository around a path to running code, in one round trip."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from fairlead_sdk.cli.running import Interrupts, run
from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.repository import read_repository
from fairlead_sdk.scratch import Scratch


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


def launch(choices: LaunchChoices, *, is_json: bool) -> int:
    """Launch, follow and give the exit status."""

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        scratch = Scratch()
        interrupts.at_once = scratch.close
        try:
            reading = asyncio.ensure_future(
                asyncio.to_thread(
                    read_repository, choices.path, clean=choices.clean, scratch=scratch
                )
            )
            # git runs in the meantime, on another core.
            from fairlead_sdk.cli.following import Following
            from fairlead_sdk.fairlead import AsyncFairlead

            repository = await reading
            for warning in repository.warnings:
                terminal.warn(warning)
            async with AsyncFairlead() as client:
                following = Following(
                    client=client, terminal=terminal, repository=repository, choices=choices
                )
                return await following.to_the_end()
        finally:
            scratch.close()

    return run(work, is_json=is_json)
