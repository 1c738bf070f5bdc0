"""Uncommitted changes over layered workspaces: the client's files bit for bit, whoever writes
them; and what else differs between repositories.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fakes.git_client import GitClient, listing, run_git
from tests.fakes.mounted_layers import (
    change_everything,
    copy_out,
    files_of,
    odd_repository,
    run_inside,
    statuses_inside,
)
from tests.fakes.provisioner_room import ProvisionerRoom, open_layered_room
from workspace_provisioner.git.checkout import GitCheckouts
from workspace_provisioner.origin_errors import SubmodulesInvalid
from workspace_provisioner.sources import Changes
from workspace_provisioner.workspaces import MissReason, Rung

pytestmark = pytest.mark.asyncio


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    return odd_repository(tmp_path / "laptop")


@pytest_asyncio.fixture
async def room(tmp_path: Path) -> AsyncIterator[ProvisionerRoom]:
    async with open_layered_room(tmp_path / "host") as opened:
        yield opened


async def test_dirty_changes_bit_for_bit(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.upload(client)
    await room.make("first", client.source(), overlay=True)
    change_everything(client)
    expected = sorted(
        each
        for each in run_git(
            client.path, "status", "--porcelain", "-z", "--untracked-files=all"
        ).split(b"\0")[:-1]
        if not each.endswith(b".log")
    )
    changes = client.dirty()

    async def without_git(*_: object, **__: object) -> None:
        raise AssertionError("git wrote the changes")

    with monkeypatch.context() as patch:
        patch.setattr(GitCheckouts, "apply", without_git)
        quick, path = await room.make("quick", client.source(changes=changes), overlay=True)
    # A pack of a kind that only git reads makes the same files.
    monkeypatch.setattr("workspace_provisioner.git.pack_objects.MOST_OBJECTS", 0)
    slow, _ = await room.make("slow", client.source(changes=changes), overlay=True)
    for number, made in enumerate((quick, slow)):
        assert made.rung is Rung.OVERLAY
        assert statuses_inside(room.layout, made.workspace_id) == expected
        copy = copy_out(room.layout, made.workspace_id, path.with_name(f"copy{number}"))
        assert listing(copy) == files_of(client)
        assert await room.provisioner.count_changes(made) == 0
        run_inside(room.layout, made.workspace_id, "rm d6/f6; echo x > new; echo y >> d0/f0")
        assert await room.provisioner.count_changes(made) == 3


async def test_changes_that_came_with_an_upload(room: ProvisionerRoom, client: GitClient) -> None:
    change_everything(client)
    source = client.source(changes=client.dirty(inline=False))
    await room.upload(client, source)
    made, path = await room.make("k", source, overlay=True)
    assert listing(copy_out(room.layout, made.workspace_id, path.with_name("copy"))) == files_of(
        client
    )
    assert await room.provisioner.count_changes(made) == 0


async def test_line_ends_are_written_by_git(room: ProvisionerRoom, client: GitClient) -> None:
    client.write(".gitattributes", b"*.bat text eol=crlf\n")
    client.write("a.bat", b"one\r\n")
    client.commit()
    await room.upload(client)
    client.write("b.bat", b"two\r\n")
    client.write("a.bat", b"three\r\n")
    made, path = await room.make("k", client.source(changes=client.dirty()), overlay=True)
    index = room.layout.baselines / made.workspace_id / "index"
    upper = room.layout.layers / made.workspace_id / "upper"
    written = max((upper / name).stat().st_mtime_ns for name in ("a.bat", "b.bat"))
    assert written // 10**9 < index.stat().st_mtime_ns // 10**9, "git would hash them to compare"
    assert listing(copy_out(room.layout, made.workspace_id, path.with_name("copy"))) == files_of(
        client
    )
    assert await room.provisioner.count_changes(made) == 0


async def test_changes_that_lack_a_file_are_a_miss(
    room: ProvisionerRoom, client: GitClient
) -> None:
    await room.upload(client)
    await room.make("first", client.source(), overlay=True)
    client.write("d0/f0", b"changed\n")
    tree = client.changes_tree()
    lone = client.git("pack-objects", "--stdout", "-q", given=f"{tree}\n".encode())
    missed = await room.ask("k", client.source(changes=Changes(tree, lone)), overlay=True)
    assert getattr(missed, "reason", None) is MissReason.UNKNOWN_CHANGES
    await room.preparations.finished()
    assert not room.leftovers()
    assert len(await room.trees.strays()) == 1


async def test_a_repository_of_sha256(room: ProvisionerRoom, tmp_path: Path) -> None:
    client = GitClient(tmp_path / "other", object_format="sha256")
    for number in range(30):
        client.write(f"d{number % 3}/f{number}", f"{number}\n".encode())
    client.commit()
    await room.upload(client)
    client.write("d0/f0", b"changed\n")
    client.write("new", b"new\n")
    made, path = await room.make("k", client.source(changes=client.dirty()), overlay=True)
    assert statuses_inside(room.layout, made.workspace_id) == [b" M d0/f0", b"?? new"]
    assert listing(copy_out(room.layout, made.workspace_id, path.with_name("copy"))) == files_of(
        client
    )
    client.commit()
    await room.upload(client)
    made, _ = await room.make("k2", client.source(), overlay=True)
    assert made.rung is Rung.OVERLAY_DELTA
    assert statuses_inside(room.layout, made.workspace_id) == []


async def test_what_a_template_holds_is_told_with_each_take(
    room: ProvisionerRoom, client: GitClient
) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 12345\n"
    client.write(".gitattributes", b"*.bin filter=lfs diff=lfs merge=lfs -text\n")
    for number in range(3):
        client.write(f"large/{number}.bin", pointer % (b"%064d" % number))
    client.write(".gitmodules", b'[submodule "x"]\n\tpath = x\n\turl = https://example.com/x\n')
    client.commit()
    await room.upload(client)
    for key in ("cold", "warm"):
        made, _ = await room.make(key, client.source(), overlay=True)
        assert (made.lfs_pointers, made.has_submodules) == (3, True)
    client.write(".gitmodules", b"[submodule\n")
    client.git("commit", "-qam", "broken")
    await room.upload(client)
    with pytest.raises(SubmodulesInvalid):
        await room.make("broken", client.source(), overlay=True)
    assert len(await room.trees.strays()) == 2
