"""What reaches the host after a workspace was prepared or made: the history of its commit, and
tags.
"""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import pytest_asyncio

from tests.contract.ports.test_store_history import trees_only
from tests.fakes.git_client import GitClient, run_git
from tests.fakes.mounted_layers import run_inside
from tests.fakes.provisioner_room import ProvisionerRoom, chunked, open_room
from workspace_provisioner.disk.layout import Layout, shallow_mark
from workspace_provisioner.sources import Tip
from workspace_provisioner.trees.layer_files import read_layer
from workspace_provisioner.workspaces import Rung, Workspace

pytestmark = pytest.mark.asyncio


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    for number in range(5):
        found.write(f"f{number}", f"line {number}\n".encode() * 50)
        found.commit()
    return found


@pytest_asyncio.fixture
async def room(tmp_path: Path) -> AsyncIterator[ProvisionerRoom]:
    async with open_room(tmp_path / "host") as opened:
        yield opened


async def sync_tips(room: ProvisionerRoom, client: GitClient) -> None:
    pack = trees_only(client, client.head())
    await room.importer.receive(client.source(), (), chunked(pack), tips_only=True)


async def sync_history(room: ProvisionerRoom, client: GitClient, *tips: Tip) -> None:
    pack = client.pack(
        [client.head(), *(tip.commit for tip in tips)], [f"{client.head()}^{{tree}}"]
    )
    await room.importer.receive(client.source(), tips, chunked(pack))


async def send_tag(room: ProvisionerRoom, client: GitClient, name: str) -> None:
    client.git("tag", "-a", "-m", name, name)
    oid = client.git("rev-parse", name).decode().strip()
    pack = client.pack([oid], [client.head()])
    await room.importer.receive(client.source(), (Tip(f"refs/tags/{name}", oid),), chunked(pack))


def count(log: bytes) -> int:
    return len(log.splitlines())


class Mounted:
    """A shell in a workspace that stays mounted."""

    def __init__(self, shell: subprocess.Popen[bytes]) -> None:
        self._shell = shell

    def lines(self, command: str) -> list[str]:
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{command}\necho end of it\n".encode())
        self._shell.stdin.flush()
        return [line.decode().strip() for line in iter(self._shell.stdout.readline, b"end of it\n")]


@contextmanager
def mounted(layout: Layout, made: Workspace) -> Iterator[Mounted]:
    layer = read_layer(layout.layers / made.workspace_id)
    assert layer is not None
    target = layout.trees / made.workspace_id
    options = (
        f"lowerdir={':'.join(str(path) for path in layer.lower)},"
        f"upperdir={layer.upper},workdir={layer.path / 'work'},userxattr"
    )
    script = f'mount -t overlay overlay -o "{options}" "{target}"; cd "{target}"; exec sh'
    with subprocess.Popen(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/nonexistent"},
    ) as shell:
        try:
            yield Mounted(shell)
        finally:
            assert shell.stdin is not None
            shell.stdin.close()


async def test_a_workspace_of_tips_alone_shows_the_history_once_it_is_there(
    room: ProvisionerRoom, client: GitClient
) -> None:
    await sync_tips(room, client)
    _, path = await room.make("k", client.source(), branch="work")
    assert count(run_git(path, "log", "--oneline")) == 1
    run_git(path, "fsck")
    await sync_history(room, client)
    assert count(run_git(path, "log", "--oneline")) == 5
    assert run_git(path, "rev-parse", "--is-shallow-repository") == b"false\n"
    assert run_git(path, "status", "--porcelain") == b""
    run_git(path, "fsck")


async def test_a_mounted_workspace_shows_the_history_once_it_is_there(
    room: ProvisionerRoom, client: GitClient
) -> None:
    if not room.trees.can_overlay:
        pytest.skip("overlays cannot be mounted here")
    await sync_tips(room, client)
    made, _ = await room.make("k", client.source(), branch="work", overlay=True)
    assert made.rung is Rung.OVERLAY
    with mounted(room.layout, made) as inside:
        assert len(inside.lines("git log --oneline")) == 1
        await sync_history(room, client)
        assert len(inside.lines("git log --oneline")) == 5
        assert inside.lines("git status --porcelain") == []
    later, _ = await room.make("later", client.source(), branch="more", overlay=True)
    assert count(run_inside(room.layout, later.workspace_id, "git log --oneline")) == 5


async def test_what_a_workspace_does_to_its_shallow_mark_is_not_the_others(
    room: ProvisionerRoom, client: GitClient
) -> None:
    await sync_tips(room, client)
    _, path = await room.make("k", client.source(), branch="work")
    _, sibling = await room.make("other", client.source(), branch="other")
    mark = shallow_mark(room.layout.store(client.source().key), client.head())
    before = mark.read_bytes()
    run_git(path, "remote", "add", "origin", f"file://{client.path}")
    for command in (("fetch", "-q", "--unshallow", "origin"), ("gc", "-q"), ("repack", "-adq")):
        with suppress(subprocess.CalledProcessError):
            run_git(path, *command)
        assert mark.read_bytes() == before
        assert [each.name for each in mark.parent.iterdir()] == [mark.name]
        assert count(run_git(sibling, "log", "--oneline")) == 1
    # A mark of its own is.
    (path / ".git/shallow").unlink()
    (path / ".git/shallow").write_bytes(before)
    run_git(path, "fetch", "-q", "--unshallow", "origin")
    assert count(run_git(path, "log", "--oneline")) == 5
    assert mark.read_bytes() == before


async def test_marks_are_dropped_also_when_the_promises_were_taken_back_in_between(
    room: ProvisionerRoom, client: GitClient
) -> None:
    await sync_tips(room, client)
    _, path = await room.make("k", client.source(), branch="work")
    await room.stores._repair.forget(client.source().key)
    assert count(run_git(path, "log", "--oneline")) == 1
    await room.upload(client)
    assert count(run_git(path, "log", "--oneline")) == 5


@pytest.mark.parametrize("overlay", [True, False])
async def test_tags_that_are_sent_later_are_in_what_is_taken_later(
    room: ProvisionerRoom, client: GitClient, overlay: bool
) -> None:
    if overlay and not room.trees.can_overlay:
        pytest.skip("overlays cannot be mounted here")

    async def tags(key: str) -> bytes:
        made, path = await room.make(key, client.source(), branch=key, overlay=overlay)
        await room.preparations.finished()
        if overlay:
            assert made.rung is Rung.OVERLAY
            return run_inside(room.layout, made.workspace_id, "git tag -n; git status --porcelain")
        return run_git(path, "tag", "-n") + run_git(path, "status", "--porcelain")

    await room.upload(client)
    await room.preparations.finished()
    assert await tags("a") == b""
    await send_tag(room, client, "v1")
    assert await tags("b") == b"v1              v1\n"
    await send_tag(room, client, "v2")
    assert await tags("c") == b"v1              v1\nv2              v2\n"
    await room.preparations.finished()
    assert await tags("d") == b"v1              v1\nv2              v2\n"
