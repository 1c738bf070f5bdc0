"""Workspaces that are laid over templates: clean at once, equal bit for bit, and apart from each
other whatever is done in them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fakes.git_client import GitClient, listing
from tests.fakes.mounted_layers import (
    change_everything,
    copy_out,
    files_of,
    odd_repository,
    run_inside,
    statuses_inside,
)
from tests.fakes.provisioner_room import ProvisionerRoom, open_layered_room, open_room
from workspace_provisioner.trees.layer_files import read_layer
from workspace_provisioner.workspaces import MissReason, Rung

pytestmark = pytest.mark.asyncio
BRANCH = ".git/refs/heads/b"


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    return odd_repository(tmp_path / "laptop")


@pytest_asyncio.fixture
async def room(tmp_path: Path) -> AsyncIterator[ProvisionerRoom]:
    async with open_layered_room(tmp_path / "host") as opened:
        yield opened


def snapshot_of(path: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Everything below a directory: mode, inode, change time and content."""
    found = {}
    for each in sorted(path.rglob("*")):
        seen = each.lstat()
        content = each.read_bytes() if each.is_file() and not each.is_symlink() else b""
        found[str(each)] = (seen.st_mode, seen.st_ino, seen.st_ctime_ns, content)
    return found


async def test_a_taken_workspace_is_clean(room: ProvisionerRoom, client: GitClient) -> None:
    await room.upload(client)
    made, path = await room.make("k", client.source(), "fix/login", overlay=True)
    again, _ = await room.make("k2", client.source(branch=""), overlay=True)
    assert (made.rung, again.rung) == (Rung.OVERLAY, Rung.OVERLAY)
    assert list(path.iterdir()) == []
    layout, workspace_id = room.layout, made.workspace_id
    assert statuses_inside(layout, workspace_id) == []
    assert listing(copy_out(layout, workspace_id, path.with_name("copy"))) == files_of(client)
    assert run_inside(layout, workspace_id, "git symbolic-ref HEAD") == b"refs/heads/fix/login\n"
    assert run_inside(layout, workspace_id, "git rev-parse HEAD").decode().strip() == client.head()
    assert run_inside(layout, workspace_id, "git for-each-ref --format='%(refname)'") == (
        b"refs/heads/fix/login\n"
    )
    detached = run_inside(layout, again.workspace_id, "git rev-parse --abbrev-ref HEAD HEAD~0")
    assert detached.splitlines()[0] == b"HEAD"
    assert await room.provisioner.count_changes(made) == 0
    assert not room.reasons


async def test_no_git_process_makes_a_warm_workspace(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.upload(client)
    await room.preparations.finished()

    async def refuse(*_: object) -> None:
        raise AssertionError("git was started")

    monkeypatch.setattr("workspace_provisioner.wall.git_wall.GitWall.start", refuse)
    for number in range(3):
        made, _ = await room.make(f"k{number}", client.source(), f"b{number}", overlay=True)
        assert made.rung is Rung.OVERLAY
        layer = read_layer(room.layout.layers / made.workspace_id)
        assert layer is not None
        written = {str(each.relative_to(layer.upper)) for each in layer.upper.rglob("*")}
        # No configuration, index or packed refs: what is not here is the template's.
        assert written == {".git", ".git/HEAD", ".git/refs", ".git/refs/heads", f"{BRANCH}{number}"}


async def test_the_first_status_hashes_nothing(room: ProvisionerRoom, client: GitClient) -> None:
    """All that an index entry says of its file is right, and older than the index: so git neither
    hashes nor has to look twice.
    """
    await room.upload(client)
    for overlay in (True, False):
        made, _ = await room.make(f"k{overlay}", client.source(), overlay=overlay)
        script = (
            "git ls-files --debug | sed -n 's/^  mtime: \\([0-9]*\\):\\([0-9]*\\)$/\\1 \\2/p'"
            " | sort -u; stat -c %Y .git/index"
        )
        if overlay:
            output = run_inside(room.layout, made.workspace_id, script)
            hashed = run_inside(
                room.layout, made.workspace_id, "git diff-files --raw; git status --porcelain"
            )
        else:
            path = room.layout.trees / made.workspace_id
            output = await _shell(path, script)
            hashed = await _shell(path, "git diff-files --raw; git status --porcelain")
        (moment,), (index_moment,) = (
            {line for line in output.splitlines() if b" " in line},
            {line for line in output.splitlines() if b" " not in line},
        )
        seconds, nanoseconds = moment.split()
        assert nanoseconds == b"0"
        assert int(seconds) < int(index_moment)
        assert hashed == b""


async def _shell(path: Path, script: str) -> bytes:
    process = await asyncio.create_subprocess_exec(
        "sh", "-ec", script, cwd=path, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return output


async def test_a_write_of_the_same_size_right_after_the_take_is_noticed(
    room: ProvisionerRoom, client: GitClient
) -> None:
    await room.upload(client)
    made, _ = await room.make("k", client.source(), overlay=True)
    run_inside(room.layout, made.workspace_id, "printf 'LINE' | dd of=d0/f0 conv=notrunc 2>&1")
    assert statuses_inside(room.layout, made.workspace_id) == [b" M d0/f0"]
    assert await room.provisioner.count_changes(made) == 1


async def test_a_delta_over_a_template_equals_a_checkout(
    room: ProvisionerRoom, client: GitClient
) -> None:
    for number in range(200):
        client.write(f"more/{number}", b"unchanged\n")
    client.commit()
    await room.upload(client)
    first, path = await room.make("first", client.source(), overlay=True)
    old = client.head()
    change_everything(client)
    client.write("d6/new", b"new\n")
    client.commit()
    await room.upload(client, having=[old])
    for key in ("cold", "warm"):
        made, _ = await room.make(key, client.source(), overlay=True)
        assert made.rung is Rung.OVERLAY_DELTA
        layer = read_layer(room.layout.layers / made.workspace_id)
        assert layer is not None
        assert len(layer.lower) == 2
        assert statuses_inside(room.layout, made.workspace_id) == []
        copy = copy_out(room.layout, made.workspace_id, path.with_name(f"copy-{key}"))
        assert listing(copy) == files_of(client)
        assert run_inside(room.layout, made.workspace_id, "git rev-parse HEAD").decode() == (
            f"{client.head()}\n"
        )
        assert await room.provisioner.count_changes(made) == 0
    # Never a delta over a delta.
    client.write("d7/f7", b"third\n")
    client.commit()
    await room.upload(client, having=[old])
    made, _ = await room.make("third", client.source(), overlay=True)
    layer = read_layer(room.layout.layers / made.workspace_id)
    assert layer is not None
    assert len(layer.lower) == 2
    assert statuses_inside(room.layout, made.workspace_id) == []
    # What was made before is as it was.
    assert statuses_inside(room.layout, first.workspace_id) == []
    assert await room.provisioner.count_changes(first) == 0


async def test_a_commit_far_away_gets_a_template_of_its_own(
    room: ProvisionerRoom, client: GitClient
) -> None:
    await room.upload(client)
    await room.make("first", client.source(), overlay=True)
    for number in range(60):
        client.write(f"d{number % 10}/f{number}", b"other\n")
    client.commit()
    await room.upload(client)
    made, _ = await room.make("k", client.source(), overlay=True)
    assert made.rung is Rung.OVERLAY
    assert statuses_inside(room.layout, made.workspace_id) == []


async def test_fifty_takes_at_once(room: ProvisionerRoom, client: GitClient) -> None:
    await room.upload(client)
    source = client.source()
    made = await asyncio.gather(
        *(room.make(f"k{n}", source, f"b{n}", overlay=True) for n in range(50))
    )
    assert len({each.workspace_id for each, _ in made}) == 50
    assert {each.rung for each, _ in made} == {Rung.OVERLAY}
    assert len(os.listdir(room.layout.templates)) <= 2  # one, and the lock
    for each, _ in made[::10]:
        assert statuses_inside(room.layout, each.workspace_id) == []


async def test_a_hostile_workspace_harms_neither_sibling_nor_template(
    room: ProvisionerRoom, client: GitClient, tmp_path: Path
) -> None:
    await room.upload(client)
    evil, _ = await room.make("evil", client.source(), overlay=True)
    good, _ = await room.make("good", client.source(), overlay=True)
    layer = read_layer(room.layout.layers / evil.workspace_id)
    assert layer is not None
    before = snapshot_of(layer.lower[0])
    store = snapshot_of(room.layout.store(client.source().key))
    proof = tmp_path / "ran"
    run_inside(
        room.layout,
        evil.workspace_id,
        f"""
        mkdir -p .git/hooks .git/refs/heads
        for hook in post-checkout post-index-change pre-commit fsmonitor; do
            printf '#!/bin/sh\\ntouch {proof}\\n' > .git/hooks/$hook; chmod 755 .git/hooks/$hook
        done
        printf '[core]\\n fsmonitor = touch {proof}\\n hooksPath = .git/hooks\\n worktree = /\\n' \\
            > .git/config
        printf 'garbage' | dd of=.git/index conv=notrunc bs=1 seek=4 2>/dev/null
        echo /nonexistent > .git/objects/info/alternates
        echo 'ref: refs/heads/../../../escape' > .git/HEAD
        chmod -R u+w . && find . -path ./.git -prune -o -type f -exec sh -c ': > "$0"' {{}} \\;
        rm -rf d1 d2; mv d3 d33 2>/dev/null || cp -r d3 d33; ln -s /etc d1
        """,
    )
    assert await room.provisioner.count_changes(evil) is not None
    assert not proof.exists()
    assert snapshot_of(layer.lower[0]) == before
    assert snapshot_of(room.layout.store(client.source().key)) == store
    assert statuses_inside(room.layout, good.workspace_id) == []
    assert await room.provisioner.count_changes(good) == 0
    later, path = await room.make("later", client.source(), overlay=True)
    assert statuses_inside(room.layout, later.workspace_id) == []
    assert listing(copy_out(room.layout, later.workspace_id, path.with_name("copy"))) == files_of(
        client
    )


async def test_a_delete_takes_everything_away(room: ProvisionerRoom, client: GitClient) -> None:
    await room.upload(client)
    client.write("d0/f0", b"x")
    made, path = await room.make("k", client.source(changes=client.dirty()), overlay=True)
    assert await room.provisioner.release("ada", workspace_id=made.workspace_id)
    assert not path.exists()
    assert not (room.layout.layers / made.workspace_id).exists()
    assert not (room.layout.baselines / made.workspace_id).exists()
    assert not await room.trees.strays()


async def test_tenants_share_no_template(room: ProvisionerRoom, client: GitClient) -> None:
    lowers: set[Path] = set()
    for tenant in ("ada", "bob"):
        source = client.source(tenant=tenant)
        await room.upload(client, source)
        made, _ = await room.make("k", source, overlay=True)
        layer = read_layer(room.layout.layers / made.workspace_id)
        assert layer is not None
        lowers.update(layer.lower)
    assert len(lowers) == 2


async def test_where_overlays_cannot_be_mounted_the_reason_is_counted(
    tmp_path: Path, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fault(*_: object) -> str:
        return "no such file system"

    monkeypatch.setattr("workspace_provisioner.core.overlay_fault", fault)
    async with open_room(tmp_path / "plain") as room:
        await room.upload(client)
        await room.preparations.finished()
        made, path = await room.make("k", client.source(), overlay=True)
        assert made.rung is Rung.POOL
        assert room.reasons == [MissReason.FS_UNSUPPORTED]
        assert listing(path) == files_of(client)
        await room.make("k2", client.source())
        assert room.reasons == [MissReason.FS_UNSUPPORTED]
