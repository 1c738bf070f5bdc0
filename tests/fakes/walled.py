"""Walled sandboxes as the machine of the tests allows them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from chassis.clock import Clock, SystemClock
from chassis.ids import random_id
from fairlead_walls.survey import Survey
from sandbox_worker.isolation.wall_survey import survey_walls
from sandbox_worker.isolation.walled import WalledIsolation
from sandbox_worker.ports import Enclosure, ProgramOrder
from tests.fakes.isolation import no_cgroups

PATH = "/usr/bin:/bin"


def survey(directory: Path) -> Survey:
    """Return what walls there are; skips the test where there are too few."""
    with ThreadPoolExecutor(1) as aside:  # a loop may run in this thread
        found = aside.submit(
            lambda: asyncio.run(
                survey_walls(directory, path=PATH, first_uid=0x7000_0000, uids=65_536)
            )
        ).result()
    if not found.stands:
        pytest.skip(f"no walls on this machine: {found.reason}")
    return found


@asynccontextmanager
async def open_walled(
    found: Survey,
    *,
    pool_size: int = 0,
    clock: Clock | None = None,
    host_network: bool = False,
) -> AsyncIterator[WalledIsolation]:
    """Open the isolation, without cgroups."""
    with ThreadPoolExecutor(2) as executor:
        async with WalledIsolation(
            survey=found,
            path=PATH,
            cgroups=no_cgroups(executor),
            pool_size=pool_size,
            clock=clock or SystemClock(),
            host_id="hst_tests",
            host_network=host_network,
        ) as isolation:
            yield isolation


async def run(enclosure: Enclosure, script: str, directory: str = "") -> str:
    """Run a script of the shell and return what it printed."""
    program = await enclosure.start(
        ProgramOrder(
            execution_id=random_id("exe"),
            arguments=("sh", "-c", f"exec 2>&1; {script}"),
            environment={},
            directory=directory,
            stdin=False,
        )
    )
    content = b""
    while pieces := await program.read():
        content += b"".join(piece.content for piece in pieces)
    program.close()
    return content.decode()
