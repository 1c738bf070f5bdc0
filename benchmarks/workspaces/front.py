"""Workspaces over a wide-area link: gRPC to the front door on one kept channel, with the API key,
the claim of a new branch and the durable record in the loop.
"""

from __future__ import annotations

import itertools
import subprocess
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import grpc

from benchmarks.local_stack import GIT, Repository, Stack
from benchmarks.recording import QUICK
from benchmarks.workspaces.repositories import (
    CHUNK,
    commit_changes,
    make_large_repository,
    source_of,
    thin_pack,
)
from fairlead.snapshot.v1 import snapshot_pb2
from fairlead.workspace.v1 import workspace_pb2, workspace_pb2_grpc

RUNS = 5 if QUICK else 20
COLD_RUNS = 2 if QUICK else 7


class FrontDoor:
    """WorkspaceService of the front door on one channel."""

    def __init__(self, stack: Stack, channel: grpc.aio.Channel) -> None:
        self._metadata = (("authorization", f"Bearer {stack.api_key}"),)
        self._stub = workspace_pb2_grpc.WorkspaceServiceStub(channel)
        self._branches = itertools.count()

    def _request(self, source: snapshot_pb2.Source) -> workspace_pb2.MaterializeWorkspaceRequest:
        return workspace_pb2.MaterializeWorkspaceRequest(
            idempotency_key=uuid.uuid4().hex,
            source=source,
            branch=f"bench-{next(self._branches)}",
            claim_branch=True,
        )

    async def materialize(
        self, source: snapshot_pb2.Source
    ) -> workspace_pb2.MaterializeWorkspaceResponse:
        """Ask for a workspace on a branch of its own."""
        answer: workspace_pb2.MaterializeWorkspaceResponse = await self._stub.MaterializeWorkspace(
            self._request(source), metadata=self._metadata
        )
        return answer

    async def upload(
        self, repository: Repository, pack: bytes, against: str = ""
    ) -> workspace_pb2.Workspace:
        """Stream what a miss lacked, and have the workspace made in the same call."""
        source = source_of(repository)
        asked = self._request(source)

        async def frames() -> AsyncIterator[workspace_pb2.ImportSnapshotRequest]:
            tips = [snapshot_pb2.Tip(ref="refs/heads/main", commit=repository.commit)]
            yield workspace_pb2.ImportSnapshotRequest(
                open=workspace_pb2.OpenImport(source=source, tips=tips, materialize=asked)
            )
            for offset in range(0, len(pack), CHUNK):
                yield workspace_pb2.ImportSnapshotRequest(chunk=pack[offset : offset + CHUNK])

        answer = await self._stub.ImportSnapshot(frames(), metadata=self._metadata)
        made: workspace_pb2.Workspace = answer.materialized.workspace
        assert made.commit == repository.commit, answer
        return made

    async def release(self, workspace: workspace_pb2.Workspace) -> None:
        """Give a workspace back."""
        await self._stub.ReleaseWorkspace(
            workspace_pb2.ReleaseWorkspaceRequest(workspace_id=workspace.workspace_id),
            metadata=self._metadata,
        )


async def warm(door: FrontDoor, repository: Repository) -> tuple[list[float], set[str]]:
    """Time takes of a prepared repository; returns the seconds, and the rungs that were used."""
    source = source_of(repository)
    seconds, rungs = [], set()
    for _ in range(RUNS):
        start = time.perf_counter()
        answer = await door.materialize(source)
        seconds.append(time.perf_counter() - start)
        assert answer.workspace.commit == repository.commit, answer
        rungs.add(workspace_pb2.Rung.Name(answer.workspace.rung))
        await door.release(answer.workspace)
    return seconds, rungs


async def cold(door: FrontDoor, directory: Path) -> list[float]:
    """Time first launches of projects of 4 MB: the miss, then the upload with the workspace."""
    seconds = []
    for number in range(COLD_RUNS):
        repository = make_large_repository(
            directory / f"cold-{number}", files=1000, seed=1000 + number, size=7200
        )
        pack = thin_pack(repository)
        start = time.perf_counter()
        answer = await door.materialize(source_of(repository))
        assert answer.WhichOneof("outcome") == "miss", answer
        made = await door.upload(repository, pack)
        seconds.append(time.perf_counter() - start)
        await door.release(made)
    return seconds


async def resync(door: FrontDoor, repository: Repository) -> list[float]:
    """Time a launch after five new commits, which travel with the request; packing included."""
    seconds = []
    for number in range(COLD_RUNS):
        before = repository.commit
        repository = commit_changes(repository, commits=5, seed=number)
        start = time.perf_counter()
        source = source_of(repository)
        pack = thin_pack(repository, against=before)
        source.commits.CopyFrom(snapshot_pb2.Commits(against=[before], pack=pack))
        answer = await door.materialize(source)
        seconds.append(time.perf_counter() - start)
        assert answer.workspace.commit == repository.commit, answer
        await door.release(answer.workspace)
    return seconds


LARGE = "large.bin"
"""An untracked file that stays."""


def dirty(repository: Repository) -> None:
    """Change two files of a checkout and add one."""
    for name in ("d00000/f000001.txt", "d00001/f000013.txt", "made.txt"):
        (repository.path / name).write_text(f"{name} {time.time()}\n")
    status = subprocess.run(
        [*GIT, "-C", str(repository.path), "status", "--porcelain"],
        capture_output=True,
        text=True,
        check=True,
    )
    names = {line[3:] for line in status.stdout.splitlines()} - {LARGE}
    assert len(names) == 3, status.stdout
