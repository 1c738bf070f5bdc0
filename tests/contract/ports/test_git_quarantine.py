"""An upload on its way in: what it may take of time and of this machine."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.fakes.hand_made_packs import BLOB, entry, pack
from tests.fakes.provisioner_room import chunked
from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.errors import PackInvalid, PackTooLarge, UploadIdle, UploadSlow
from workspace_provisioner.git.command import Git, GitLimits
from workspace_provisioner.git.content import GitContent
from workspace_provisioner.git.object_readers import ObjectReaders
from workspace_provisioner.git.pack_caps import PackCaps
from workspace_provisioner.sources import ObjectFormat, ProjectKey
from workspace_provisioner.store.grown_trees import GrownTrees
from workspace_provisioner.store.quarantine import GitQuarantine, Intake
from workspace_provisioner.wall.git_wall import GitWall
from workspace_provisioner.workspaces import Snapshot

pytestmark = pytest.mark.asyncio


async def _unused(
    path: Path,
    snapshot: Snapshot,
    known: Mapping[str, str],
    content: Callable[[], Awaitable[None]],
) -> Snapshot:
    raise AssertionError(path)


@asynccontextmanager
async def quarantine(
    tmp_path: Path,
    *,
    limits: GitLimits | None = None,
    intake: Intake | None = None,
    cpu_seconds: float = 60,
) -> AsyncIterator[GitQuarantine]:
    program = shutil.which("git")
    assert program is not None
    layout = Layout(tmp_path / "host")
    layout.make()
    with ThreadPoolExecutor(max_workers=2) as executor:
        async with GitWall(program=program, directory=layout.root) as wall:
            git = Git(wall=wall, seconds=cpu_seconds, limits=limits)
            files = FileWork(executor=executor)
            content = GitContent(git=git, caps=PackCaps(), seconds=60, unpacking=files)
            readers = ObjectReaders(git=git)
            opened = GitQuarantine(
                layout=layout,
                git=git,
                files=files,
                content=content,
                grown=GrownTrees(files=files, content=content, readers=readers),
                intake=intake or Intake(2**31, 30, 60),
                key=ProjectKey("ada", "project", ObjectFormat.SHA1),
                name="upload",
                shallow=(),
                admit=_unused,
            )
            await opened.open()
            yield opened


async def trickle(gap: float) -> AsyncIterator[bytes]:
    while True:
        yield b"P"
        await asyncio.sleep(gap)


async def test_an_upload_that_trickles_ends(tmp_path: Path) -> None:
    # A machine that is busy may well be idle for a moment: not for as long as this.
    async with quarantine(tmp_path, intake=Intake(2**31, 3, 60)) as upload:
        with pytest.raises(UploadSlow):
            await upload.receive(trickle(0.02))


async def test_an_upload_that_stops_ends(tmp_path: Path) -> None:
    async with quarantine(tmp_path, intake=Intake(2**31, 0.3, 60)) as upload:
        with pytest.raises(UploadIdle):
            await upload.receive(trickle(60))


async def test_a_pack_that_needs_more_memory_than_git_has(tmp_path: Path) -> None:
    given = pack([entry(BLOB, bytes(31_000_000)), entry(BLOB, os.urandom(1_100_000))])
    async with quarantine(tmp_path, limits=GitLimits(memory_bytes=30_000_000)) as upload:
        with pytest.raises(PackTooLarge) as caught:
            await upload.receive(chunked(given))
    assert caught.value.fields["limit"] == "30000000"


async def test_a_pack_that_needs_more_processor_time_than_git_has(tmp_path: Path) -> None:
    given = pack([entry(BLOB, bytes(500_000_000)), entry(BLOB, os.urandom(1_100_000))])
    async with quarantine(tmp_path, cpu_seconds=1) as upload:
        with pytest.raises(PackInvalid, match="took too long"):
            await upload.receive(chunked(given))


async def test_a_pack_that_becomes_a_larger_file_than_git_may_write(tmp_path: Path) -> None:
    given = pack([entry(BLOB, os.urandom(3_000_000))])
    async with quarantine(tmp_path, limits=GitLimits(file_bytes=2_000_000)) as upload:
        with pytest.raises(PackTooLarge) as caught:
            await upload.receive(chunked(given))
    assert caught.value.fields["limit"] == "2000000"
