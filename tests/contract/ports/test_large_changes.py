"""Large uncommitted files: written once on a host, and shown in every workspace that has them."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

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
from tests.fakes.provisioner_room import ProvisionerRoom, open_layered_room
from workspace_provisioner.errors import StorageUnavailable
from workspace_provisioner.git.checkout import GitCheckouts
from workspace_provisioner.templates import template_id
from workspace_provisioner.trees import take
from workspace_provisioner.trees.change_files import SHARED_BYTES
from workspace_provisioner.trees.layer_files import read_layer
from workspace_provisioner.trees.template_files import RETIRED, USED, TemplateFiles
from workspace_provisioner.trees.template_records import READY, read_ready
from workspace_provisioner.workspace_errors import WorkspaceDirty
from workspace_provisioner.workspaces import Rung, Workspace

pytestmark = pytest.mark.asyncio

LARGE = random.Random(7).randbytes(SHARED_BYTES + 1)  # noqa: S311 - a content, no secret


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    return odd_repository(tmp_path / "laptop")


@pytest_asyncio.fixture
async def room(tmp_path: Path) -> AsyncIterator[ProvisionerRoom]:
    async with open_layered_room(tmp_path / "host") as opened:
        yield opened


async def launch(room: ProvisionerRoom, client: GitClient, key: str) -> tuple[Workspace, Path]:
    """Take a workspace with the working directory's changes, which were uploaded before."""
    source = client.source(changes=client.dirty(inline=False))
    if not await room.stores.knows_tree(source.key, source.changes.tree if source.changes else ""):
        await room.upload(client, source)
    return await room.make(key, source, overlay=True)


def upper(room: ProvisionerRoom, made: Workspace) -> list[str]:
    return sorted(os.listdir(room.layout.layers / made.workspace_id / "upper"))


def shown(room: ProvisionerRoom, made: Workspace, name: str) -> os.stat_result:
    """Say what of the layers below has a file."""
    layer = read_layer(room.layout.layers / made.workspace_id)
    assert layer is not None
    return next((each / name).stat() for each in layer.lower if (each / name).exists())


async def test_a_large_tree_is_written_once(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.write("data/large", LARGE)
    change_everything(client)
    expected = files_of(client)
    first, path = await launch(room, client, "first")

    async def nothing(*_: object, **__: object) -> None:
        raise AssertionError("the files were written again")

    monkeypatch.setattr(GitCheckouts, "apply", nothing)
    second, _ = await launch(room, client, "second")
    for number, made in enumerate((first, second)):
        assert made.rung is Rung.OVERLAY_DELTA
        assert upper(room, made) == [".git"]
        copy = copy_out(room.layout, made.workspace_id, path.with_name(f"copy{number}"))
        assert listing(copy) == expected
        assert await room.provisioner.count_changes(made) == 0
    assert statuses_inside(room.layout, first.workspace_id) == statuses_inside(
        room.layout, second.workspace_id
    )
    run_inside(
        room.layout,
        first.workspace_id,
        "rm data/large; echo x >> d0/f0; echo x > new; chmod +x d7/f7",
    )
    assert await room.provisioner.count_changes(first) == 4
    assert await room.provisioner.count_changes(second) == 0
    copy = copy_out(room.layout, second.workspace_id, path.with_name("later"))
    assert listing(copy) == expected


async def test_a_small_tree_is_each_workspaces_own(
    room: ProvisionerRoom, client: GitClient
) -> None:
    client.write("data/small", LARGE[: SHARED_BYTES // 2])
    made, _ = await launch(room, client, "first")
    assert made.rung is Rung.OVERLAY
    assert upper(room, made) == [".git", "data"]


async def test_a_small_change_beside_a_large_file_costs_that_change(
    room: ProvisionerRoom, client: GitClient
) -> None:
    client.write("data/large", LARGE)
    client.write("data/tool", LARGE[1:], executable=True)
    first, path = await launch(room, client, "first")
    for number, change in enumerate((b"changed", b"changed again")):
        client.write("d0/f0", change)
        made, _ = await launch(room, client, f"then{number}")
        for name in ("data/large", "data/tool"):
            assert shown(room, made, name).st_ino == shown(room, first, name).st_ino
        copy = copy_out(room.layout, made.workspace_id, path.with_name(f"copy{number}"))
        assert listing(copy) == files_of(client)
        assert await room.provisioner.count_changes(made) == 0
        assert await room.provisioner.count_changes(first) == 0
    client.write("data/large", LARGE[::-1])
    client.write("data/tool", LARGE[1:])
    made, _ = await launch(room, client, "other")
    assert shown(room, made, "data/large").st_ino != shown(room, first, "data/large").st_ino
    assert statuses_inside(room.layout, made.workspace_id) == [
        b" M d0/f0",
        b"?? data/large",
        b"?? data/tool",
    ]
    copy = copy_out(room.layout, made.workspace_id, path.with_name("copy"))
    assert listing(copy) == files_of(client)
    copy = copy_out(room.layout, first.workspace_id, path.with_name("early"))
    assert (copy / "data/large").read_bytes() == LARGE


async def test_a_large_file_stays_as_a_commit_is_made(
    room: ProvisionerRoom, client: GitClient
) -> None:
    client.write(".git/info/exclude", b"large\n")
    client.write("d0/f0", b"changed")
    client.commit()
    client.write(".git/info/exclude", b"")
    client.write("large", LARGE)
    first, path = await launch(room, client, "first")
    client.write(".git/info/exclude", b"large\n")
    client.write("d0/f0", b"changed again")
    client.commit()
    client.write(".git/info/exclude", b"")
    made, _ = await launch(room, client, "second")
    assert shown(room, made, "large").st_ino == shown(room, first, "large").st_ino
    copy = copy_out(room.layout, made.workspace_id, path.with_name("copy"))
    assert listing(copy) == files_of(client)
    assert await room.provisioner.count_changes(made) == 0


@pytest.mark.parametrize("turned", [True, False])
async def test_a_large_file_below_what_was_a_file(
    room: ProvisionerRoom, client: GitClient, *, turned: bool
) -> None:
    client.write("missing", b"a word that git complains with")
    client.commit()
    client.write("other/large", LARGE)
    await launch(room, client, "first")
    (client.path / "other/large").unlink()
    if turned:
        (client.path / "missing").unlink()
        client.write("missing/large", LARGE)
    else:
        for each in (client.path / "d0").iterdir():
            each.unlink()
        (client.path / "d0").rmdir()
        client.write("d0", LARGE)
    made, path = await launch(room, client, "second")
    copy = copy_out(room.layout, made.workspace_id, path.with_name("copy"))
    assert listing(copy) == files_of(client)
    assert await room.provisioner.count_changes(made) == 0


async def test_large_files_arrive_as_they_are_where_git_converts(
    room: ProvisionerRoom, client: GitClient
) -> None:
    client.write(".gitattributes", b"*.bat text eol=crlf\n")
    client.write("a.bat", b"one\r\n")
    client.commit()
    client.write("b.bat", b"two\r\nthree\n" + LARGE)
    first, path = await launch(room, client, "first")
    client.write("a.bat", b"one\n")
    second, _ = await launch(room, client, "second")
    for number, made in enumerate((first, second)):
        found = listing(copy_out(room.layout, made.workspace_id, path.with_name(f"copy{number}")))
        assert found[b"b.bat"] == files_of(client)[b"b.bat"]
        assert found[b"a.bat"][1] == (b"one\n" if number else b"one\r\n")
        assert await room.provisioner.count_changes(made) == 0


async def test_a_file_that_looks_like_the_one_in_its_place_is_written(
    room: ProvisionerRoom, client: GitClient
) -> None:
    """Git takes a file of the same size and second for the one that it knows."""
    client.write("large", LARGE)
    client.commit()
    client.write("large", LARGE[::-1])
    first, _ = await launch(room, client, "first")
    layer = read_layer(room.layout.layers / first.workspace_id)
    assert layer is not None
    moment = (layer.lower[-1] / "large").stat().st_mtime_ns
    os.utime(layer.lower[0] / "large", ns=(moment, moment))
    client.write("d0/f0", b"changed")
    made, _ = await launch(room, client, "second")
    assert shown(room, made, "large").st_ino != shown(room, first, "large").st_ino
    assert statuses_inside(room.layout, made.workspace_id) == [b" M d0/f0", b" M large"]


async def test_launches_at_one_time_write_once(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.write("large", LARGE)
    source = client.source(changes=client.dirty(inline=False))
    await room.upload(client, source)
    apply, applied = GitCheckouts.apply, []

    async def counted(self: GitCheckouts, *arguments: Any, **more: Any) -> None:
        applied.append(arguments)
        await apply(self, *arguments, **more)

    monkeypatch.setattr(GitCheckouts, "apply", counted)
    found = await asyncio.gather(
        *(room.make(f"k{each}", source, overlay=True) for each in range(5))
    )
    assert len(applied) == 1
    assert {made.rung for made, _ in found} == {Rung.OVERLAY_DELTA}
    assert len({made.workspace_id for made, _ in found}) == 5


async def test_a_tenant_shares_with_nobody(room: ProvisionerRoom, client: GitClient) -> None:
    client.write("large", LARGE)
    first, _ = await launch(room, client, "first")
    changes = client.dirty(inline=False)
    for source in (
        client.source(tenant="eve", changes=changes),
        client.source(project="other", changes=changes),
    ):
        await room.upload(client, source)
        made, _ = await room.make(f"k-{source.key.tenant}", source, overlay=True)
        assert shown(room, made, "large").st_ino != shown(room, first, "large").st_ino


async def test_files_that_nobody_uses_go_and_others_stay(
    room: ProvisionerRoom, client: GitClient
) -> None:
    client.write("large", LARGE)
    first, path = await launch(room, client, "first")
    source = client.source(changes=client.dirty(inline=False))
    assert source.changes is not None
    (key, commit, tree) = source.key, source.commit, source.changes.tree
    places = [room.layout.templates / template_id(key, commit, each) for each in (tree, "")]

    async def collect() -> None:
        for each in places:
            if each.exists():
                os.utime(each / USED, (time.time() - 2 * 3600,) * 2)
        await room.trees.collect()

    await collect()
    assert all(each.exists() for each in places)
    copy = copy_out(room.layout, first.workspace_id, path.with_name("copy"))
    assert (copy / "large").read_bytes() == LARGE
    await room.trees.discard(first.workspace_id)
    await collect()
    assert [each.exists() for each in places] == [False, True]
    made, _ = await launch(room, client, "second")
    assert shown(room, made, "large").st_size == len(LARGE)


@pytest.mark.parametrize("step", ["changed_files", "apply"])
async def test_what_they_lie_over_is_dropped_meanwhile(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The launch goes another way, and leaves nothing behind."""
    await room.upload(client)
    await room.preparations.finished()
    client.write("large", LARGE)
    does = getattr(GitCheckouts, step)

    async def dropped(self: GitCheckouts, *arguments: Any, **more: Any) -> object:
        found = await does(self, *arguments, **more)
        monkeypatch.undo()
        base = template_id(client.source().key, client.head())
        await room.trees._files.run(room.trees._templates._drop, base)
        return found

    monkeypatch.setattr(GitCheckouts, step, dropped)
    made, path = await launch(room, client, "first")
    assert made.rung is Rung.CHECKOUT
    assert (path / "large").read_bytes() == LARGE
    await room.preparations.finished()
    assert not room.leftovers()


async def test_they_are_dropped_as_a_launch_takes_them(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.write("large", LARGE)
    first, _ = await launch(room, client, "first")
    await room.trees.discard(first.workspace_id)
    copy_baseline = take._copy_baseline

    def dropped(template: Path, baseline: Path) -> None:
        room.trees._templates._drop(template.name)
        copy_baseline(template, baseline)

    monkeypatch.setattr(take, "_copy_baseline", dropped)
    made, path = await launch(room, client, "second")
    assert made.rung is Rung.CHECKOUT
    assert (path / "large").read_bytes() == LARGE
    await room.preparations.finished()
    assert not room.leftovers()


async def test_they_lie_over_all_that_is_below_while_it_is_looked_through(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who drops a template takes its record away first, and then looks who uses it."""
    await room.upload(client)
    await room.make("without", client.source(), overlay=True)
    await room.preparations.finished()
    client.write("d0/f0", b"of the next commit")
    client.commit()
    client.write("large", LARGE)
    (client.path / "d1/f1").unlink()
    source = client.source(changes=client.dirty(inline=False))
    await room.upload(client, source)
    await room.preparations.finished()
    below = read_ready(room.layout.templates / template_id(source.key, client.head()))
    assert below is not None
    base = room.layout.templates / below[0].base
    changed_files, apply = GitCheckouts.changed_files, GitCheckouts.apply

    async def retired(self: GitCheckouts, *arguments: Any) -> object:
        (base / READY).rename(base / RETIRED)
        return await changed_files(self, *arguments)

    async def ready(self: GitCheckouts, *arguments: Any, **more: Any) -> None:
        await apply(self, *arguments, **more)
        (base / RETIRED).rename(base / READY)

    monkeypatch.setattr(GitCheckouts, "changed_files", retired)
    monkeypatch.setattr(GitCheckouts, "apply", ready)
    made, path = await room.make("first", source, overlay=True)
    layer = read_layer(room.layout.layers / made.workspace_id)
    assert layer is not None
    assert [each.name for each in layer.lower] == ["layer", "layer", "tree"]
    copy = copy_out(room.layout, made.workspace_id, path.with_name("copy"))
    assert listing(copy) == files_of(client)
    assert await room.provisioner.count_changes(made) == 0


async def test_what_lies_over_nothing_goes_at_the_start(tmp_path: Path, client: GitClient) -> None:
    async with open_layered_room(tmp_path / "host") as room:
        client.write("large", LARGE)
        made, _ = await launch(room, client, "first")
        layer = read_layer(room.layout.layers / made.workspace_id)
        assert layer is not None
        await room.trees.discard(made.workspace_id)
        (layer.lower[-1].parent / READY).unlink()
    async with open_layered_room(tmp_path / "host") as room:
        assert not layer.template.exists()
        made, path = await launch(room, client, "second")
        copy = copy_out(room.layout, made.workspace_id, path.with_name("copy"))
        assert listing(copy) == files_of(client)


async def test_equal_files_are_two(room: ProvisionerRoom, client: GitClient) -> None:
    client.write("one", LARGE)
    first, _ = await launch(room, client, "first")
    client.write("two", LARGE)
    made, _ = await launch(room, client, "second")
    assert shown(room, made, "one").st_ino != shown(room, made, "two").st_ino
    run_inside(room.layout, made.workspace_id, "cp one two; echo x >> two; ! cmp -s one two")
    assert await room.provisioner.count_changes(first) == 0


async def test_work_in_large_changes_is_not_lost(room: ProvisionerRoom, client: GitClient) -> None:
    client.write("work", LARGE)
    client.write("d0/f0", b"changed")

    async def release(made: Workspace) -> bool:
        return await room.provisioner.release(
            made.tenant, workspace_id=made.workspace_id, checked=True
        )

    for number, script in enumerate(("true", "git checkout -q -- .", "touch x; rm x")):
        made, _ = await launch(room, client, f"k{number}")
        run_inside(room.layout, made.workspace_id, script)
        with pytest.raises(WorkspaceDirty):
            await release(made)
        run_inside(room.layout, made.workspace_id, "git checkout -q -- .; rm work")
        assert await room.provisioner.count_changes(made) == 2
        assert await release(made)


async def test_overtaken_changes_go_sooner(room: ProvisionerRoom, client: GitClient) -> None:
    client.write("large", LARGE)
    places = []
    for number in range(2):
        client.write("d0/f0", b"%d" % number)
        made, _ = await launch(room, client, f"k{number}")
        layer = read_layer(room.layout.layers / made.workspace_id)
        assert layer is not None
        places.append(layer.template)
        await room.trees.discard(made.workspace_id)
    for each in places:
        os.utime(each / USED, (time.time() - 1200,) * 2)
    await room.trees.collect()
    assert [each.exists() for each in places] == [False, True]


async def test_files_that_cannot_be_written_leave_nothing(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.upload(client)
    await room.make("without", client.source(), overlay=True)
    await room.preparations.finished()
    client.write("large", LARGE)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(TemplateFiles, "_publish", full)
        with pytest.raises(StorageUnavailable):
            await launch(room, client, "first")
    await room.preparations.finished()
    assert not room.leftovers()
    made, _ = await launch(room, client, "first")
    assert shown(room, made, "large").st_size == len(LARGE)
