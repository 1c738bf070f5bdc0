"""Workspaces over SSH: the resident program on one kept connection of the system's own ssh, with
the claim of a new branch and the durable record in the loop.
"""

from __future__ import annotations

import asyncio
import getpass
import itertools
import time
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.local_stack import Repository
from benchmarks.recording import QUICK
from benchmarks.workspaces.link import delayed
from fairlead_sdk.json_form import JsonObject, child, text
from fairlead_sdk.repository import read_repository
from fairlead_sdk.source import source_document
from fairlead_sdk.ssh_address import SshAddress
from fairlead_sdk.ssh_channel import HostChannel
from fairlead_sdk.ssh_connection import connected
from fairlead_sdk.ssh_host import AsyncSshHost
from fairlead_sdk.ssh_kept import KeptSsh
from tests.openssh import openssh_server, sshd_program

RUNS = 5 if QUICK else 20
_MOST_TRIES = 200
Measured = tuple[list[float], set[str], int]


async def warm(directory: Path, repository: Repository) -> Measured | None:
    """Time takes of a prepared repository; returns the seconds, the rungs and how many takes there
    were, None without sshd.

    Each take is timed when the host has an entry ready, as on a machine with time between launches;
    those that came too early for that are not counted.
    """
    sshd = sshd_program()
    if sshd is None:
        return None
    with (
        openssh_server(sshd, directory / "sshd") as server,
        delayed(f"127.0.0.1:{server.port}") as link,
    ):
        program = (*server.program, "-o", f"HostKeyAlias=[127.0.0.1]:{server.port}")
        text_ = f"ssh://{getpass.getuser()}@{link.host}:{link.port}{directory / 'ssh-host'}"
        address = SshAddress.read(text_)
        kept = KeptSsh(address=address, connect=partial(connected, program=program))
        async with kept, AsyncSshHost(text_, connections=kept) as host:
            read = read_repository(repository.path)
            first = await host.materialize(read)
            await host.release(first.workspace_id)
            source = source_document(read, url=str(address))
            return await _timed(await kept.channel(), source)


async def _timed(channel: HostChannel, source: JsonObject) -> Measured:
    seconds: list[float] = []
    rungs: set[str] = set()
    branches = itertools.count()
    tries = 0
    for _ in range(_MOST_TRIES):
        start = time.perf_counter()
        answer = await channel.ask(
            "materialize",
            source=source,
            idempotency_key=uuid.uuid4().hex,
            branch=f"bench-{next(branches)}",
            claim_branch=True,
        )
        took = time.perf_counter() - start
        made = child(answer, "workspace")
        assert made is not None, answer
        await channel.ask("release", workspace_id=text(made, "workspace_id"))
        rung = text(made, "rung")
        if rung == "checkout":
            await asyncio.sleep(0.5)
        else:
            seconds.append(took)
            rungs.add(rung)
        tries += 1
        if len(seconds) == RUNS:
            break
    assert seconds, f"none of {tries} takes found an entry ready: is a tenth of the disk free?"
    return seconds, rungs, tries


def uncounted(seconds: Sequence[float], tries: int) -> str:
    """Say how many takes came before an entry was ready."""
    return f"{len(seconds)} of {tries} takes over SSH found a pool entry ready; only these count"
