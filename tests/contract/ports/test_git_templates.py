"""Templates and pool entries: prepared aside, taken by one, kept while they are needed, and put
right after a process was killed at any moment.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fakes.git_client import GitClient, listing, run_git
from tests.fakes.mounted_layers import is_layered, run_inside, statuses_inside
from tests.fakes.provisioner_room import ProvisionerRoom, chunked, open_layered_room, open_room
from workspace_provisioner.sources import ObjectFormat, ProjectKey
from workspace_provisioner.templates import Template, template_id
from workspace_provisioner.trees import template_files
from workspace_provisioner.trees.git_trees import GitTrees
from workspace_provisioner.trees.template_files import USED
from workspace_provisioner.trees.template_records import READY, read_ready
from workspace_provisioner.workspaces import Miss, MissReason, Rung

pytestmark = pytest.mark.asyncio

LONG = 30 * 24 * 3600


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    for number in range(40):
        found.write(f"d{number % 4}/f{number}", f"line {number}\n".encode() * 20)
    found.commit()
    return found


@pytest_asyncio.fixture
async def room(tmp_path: Path) -> AsyncIterator[ProvisionerRoom]:
    async with open_layered_room(tmp_path / "host") as opened:
        yield opened


def templates(room: ProvisionerRoom) -> dict[str, Template]:
    """The ready templates, by commit."""
    found = [read_ready(path) for path in room.layout.templates.iterdir()]
    return {each[0].commit: each[0] for each in found if each is not None}


def far_commit(client: GitClient, text: str) -> str:
    """Make a commit that no delta can hold."""
    for number in range(40):
        client.write(f"d{number % 4}/f{number}", f"{text} {number}\n".encode())
    client.commit()
    return client.head()


def long_ago(room: ProvisionerRoom, commit: str) -> None:
    """Let a template be unused for a month."""
    path = room.layout.templates / template_id(_key(), commit) / USED
    os.utime(path, (time.time() - LONG, time.time() - LONG))


def _key() -> ProjectKey:
    return ProjectKey("ada", "project", ObjectFormat.SHA1)


async def test_an_upload_prepares_what_the_launch_takes(
    room: ProvisionerRoom, client: GitClient
) -> None:
    await room.upload(client)
    await room.preparations.finished()
    found = templates(room)[client.head()]
    assert found.base == ""
    assert found.files == 40
    again = read_ready(room.layout.templates / found.template_id)
    assert again == (found, "")  # it outlives a power cut
    assert not room.leftovers()


async def test_a_template_is_kept_while_a_workspace_is_laid_over_it(
    room: ProvisionerRoom, client: GitClient
) -> None:
    await room.upload(client)
    old = client.head()
    made, _ = await room.make("k", client.source(), overlay=True)
    long_ago(room, old)
    await room.trees.collect()
    assert old in templates(room)
    assert statuses_inside(room.layout, made.workspace_id) == []
    await room.provisioner.release("ada", workspace_id=made.workspace_id)
    await room.preparations.finished()
    long_ago(room, old)
    await room.trees.collect()
    assert old not in templates(room)
    # And it is made again when somebody asks for it.
    again, _ = await room.make("again", client.source(), overlay=True)
    assert statuses_inside(room.layout, again.workspace_id) == []


async def test_the_base_of_a_delta_is_kept_with_it(
    room: ProvisionerRoom, client: GitClient
) -> None:
    await room.upload(client)
    old = client.head()
    await room.preparations.finished()
    client.write("d0/f0", b"changed\n")
    client.commit()
    await room.upload(client)
    made, _ = await room.make("k", client.source(), overlay=True)
    assert made.rung is Rung.OVERLAY_DELTA
    await room.preparations.finished()
    await room.provisioner.release("ada", workspace_id=made.workspace_id)
    long_ago(room, old)
    await room.trees.collect()
    assert set(templates(room)) == {old, client.head()}
    long_ago(room, old)
    long_ago(room, client.head())
    await room.trees.collect()
    await room.trees.collect()
    assert templates(room) == {}


async def test_the_newest_are_kept_for_a_while(room: ProvisionerRoom, client: GitClient) -> None:
    commits = []
    for number in range(template_files.KEPT_TEMPLATES + 2):
        commits.append(far_commit(client, f"text {number}"))
        await room.upload(client)
        await room.preparations.finished()
    two_hours = time.time() - 2 * 3600
    for commit in commits:
        path = room.layout.templates / template_id(_key(), commit) / USED
        os.utime(path, (two_hours, two_hours))
    await room.trees.collect()
    assert set(templates(room)) == set(commits[-template_files.KEPT_TEMPLATES :])


async def test_a_store_that_drifts_during_a_take_is_noticed_after_the_rename(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upkeep moves the epoch on between the look at READY and the rename, twice: the warm path
    gives up, and then the ladder looks whether the store is right.
    """
    await room.upload(client)
    await room.preparations.finished()
    drifted = MissReason.MISSING_OBJECTS
    answers: list[MissReason | None] = [None, drifted, None, drifted, None, None]

    def verify(*_: object) -> MissReason | None:
        return answers.pop(0)

    with monkeypatch.context() as patch:
        patch.setattr(room.stores, "verify", verify)
        patch.setattr(template_files.TemplateFiles, "restamp", _nothing)
        made, _ = await room.make("k", client.source(), overlay=True)
    assert answers == []
    assert await room.trees.strays() == {made.workspace_id}
    assert statuses_inside(room.layout, made.workspace_id) == []
    assert not room.leftovers()


async def _nothing(*_: object) -> None:
    return


async def test_a_template_dropped_during_a_warm_take_is_made_again(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.upload(client)
    await room.preparations.finished()
    drop_at_second_look(room, client, monkeypatch)
    made, _ = await room.make("k", client.source(), overlay=True)
    assert made.rung is Rung.OVERLAY
    assert await room.trees.strays() == {made.workspace_id}
    assert statuses_inside(room.layout, made.workspace_id) == []
    assert not room.leftovers()


async def test_a_template_dropped_during_a_take_leads_to_the_next_rung(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.upload(client)
    await room.preparations.finished()
    with monkeypatch.context() as patch:
        patch.setattr(GitTrees, "take_ready", lambda *_: None)
        drop_at_second_look(room, client, patch)
        made, path = await room.make("k", client.source(), overlay=True)
    assert made.rung is Rung.CHECKOUT
    assert listing(path) == listing(client.path)
    assert not is_layered(room.layout, made.workspace_id)


def drop_at_second_look(
    room: ProvisionerRoom, client: GitClient, patch: pytest.MonkeyPatch
) -> None:
    """Drop the template of HEAD between two looks of a take, before and after it is laid over."""
    place = room.layout.templates / template_id(_key(), client.head())
    looks = []

    def verify(*_: object) -> None:
        looks.append(1)
        if len(looks) == 2:
            (place / READY).rename(place / template_files.RETIRED)

    patch.setattr(room.stores, "verify", verify)


async def test_a_lost_pack_under_a_ready_template_is_a_miss(
    room: ProvisionerRoom, client: GitClient
) -> None:
    await room.upload(client)
    await room.make("first", client.source(), overlay=True)
    await room.preparations.finished()
    for path in (room.layout.store(_key()) / "objects/pack").iterdir():
        path.unlink()
    missed = await room.ask("k", client.source(), overlay=True)
    assert isinstance(missed, Miss)
    assert missed.reason is MissReason.MISSING_OBJECTS
    assert len(await room.trees.strays()) == 1
    # The upload that follows makes it good again, and the template is still right.
    await room.upload(client)
    made, _ = await room.make("k", client.source(), overlay=True)
    assert made.rung is Rung.OVERLAY
    assert statuses_inside(room.layout, made.workspace_id) == []


async def test_half_dropped_templates_are_put_right_at_start(
    tmp_path: Path, client: GitClient
) -> None:
    async with open_layered_room(tmp_path / "host") as room:
        await room.upload(client)
        made, _ = await room.make("k", client.source(), overlay=True)
        used = template_id(_key(), client.head())
        far_commit(client, "far")
        await room.upload(client)
        await room.preparations.finished()
        unused = template_id(_key(), client.head())
        for identity in (used, unused):
            path = room.layout.templates / identity
            (path / READY).rename(path / template_files.RETIRED)
        (room.layout.templates / "torn").mkdir()
        (room.layout.templates / "torn" / READY).write_text('{"template')
    async with open_room(tmp_path / "host") as room:
        names = {path.name for path in room.layout.templates.iterdir()} - {".lock"}
        assert names == {used}
        assert statuses_inside(room.layout, made.workspace_id) == []
        assert room.provisioner.held() == 1


async def test_templates_of_a_boot_that_ended_without_a_flush_are_not_trusted(
    tmp_path: Path, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "workspace_provisioner.trees.template_files.TemplateFiles.make_durable", _nothing
    )
    async with open_room(tmp_path / "host") as room:
        await room.upload(client)
        await room.preparations.finished()
    monkeypatch.setattr(
        "workspace_provisioner.trees.template_files.boot_id", lambda: "another boot"
    )
    async with open_room(tmp_path / "host") as room:
        assert templates(room) == {}


async def test_one_pool_entry_one_winner(room: ProvisionerRoom, client: GitClient) -> None:
    await room.upload(client)
    await room.trees.prepare(_key(), client.head(), depth=3)
    made = await asyncio.gather(*(room.make(f"k{n}", client.source(), f"b{n}") for n in range(6)))
    rungs = sorted(each.rung for each, _ in made)
    assert rungs.count(Rung.POOL) == 3
    assert set(rungs) <= {Rung.POOL, Rung.CHECKOUT, Rung.POOL_ADVANCED}
    for number, (each, path) in enumerate(made):
        assert run_git(path, "status", "--porcelain") == b""
        assert run_git(path, "symbolic-ref", "HEAD") == f"refs/heads/b{number}\n".encode()
        assert listing(path) == listing(client.path)
        assert await room.provisioner.count_changes(each) == 0


async def test_the_pool_follows_the_demand(room: ProvisionerRoom, client: GitClient) -> None:
    await room.upload(client)
    first, _ = await room.make("k1", client.source())
    await room.preparations.finished()
    second, _ = await room.make("k2", client.source())
    assert (first.rung, second.rung) == (Rung.CHECKOUT, Rung.POOL)


async def test_an_entry_of_another_commit_is_moved(
    room: ProvisionerRoom, client: GitClient
) -> None:
    await room.upload(client)
    await room.trees.prepare(_key(), client.head(), depth=2)
    client.write("d0/f0", b"changed\n")
    (client.path / "d1/f1").unlink()
    client.commit()
    await room.upload(client)
    made, path = await room.make("k", client.source(branch=""))
    assert made.rung is Rung.POOL_ADVANCED
    assert listing(path) == listing(client.path)
    assert run_git(path, "status", "--porcelain") == b""
    assert run_git(path, "rev-parse", "HEAD").decode().strip() == client.head()
    client.write("d2/f2", b"dirty\n")
    dirty, path = await room.make("k2", client.source(changes=client.dirty()))
    assert listing(path) == listing(client.path)
    assert run_git(path, "status", "--porcelain") == b" M d2/f2\n"
    assert await room.provisioner.count_changes(dirty) == 0


async def test_history_that_comes_after_the_tips_is_seen(
    room: ProvisionerRoom, client: GitClient
) -> None:
    client.write("d0/f0", b"second\n")
    client.commit()
    source = client.source()
    tree = client.git("rev-list", "--objects", "--no-object-names", f"{source.commit}^{{tree}}")
    lone = client.git(
        "pack-objects", "--stdout", "-q", given=f"{source.commit}\n{tree.decode()}".encode()
    )
    await room.importer.receive(source, (), chunked(lone), tips_only=True)
    await room.trees.prepare(_key(), source.commit, depth=1)
    first, _ = await room.make("first", source, overlay=True)
    await room.preparations.finished()
    log = "git log --format=%H"
    assert len(run_inside(room.layout, first.workspace_id, log).split()) == 1
    history = client.pack([source.commit], [f"{source.commit}^{{tree}}"])
    await room.importer.receive(source, (), chunked(history))
    later, _ = await room.make("later", source, overlay=True)
    assert later.rung is Rung.OVERLAY
    assert len(run_inside(room.layout, later.workspace_id, log).split()) == 2
    assert statuses_inside(room.layout, later.workspace_id) == []
    pooled, path = await room.make("pooled", source)
    assert pooled.rung is Rung.POOL
    assert len(run_git(path, *log.split()[1:]).split()) == 2
    assert len(run_inside(room.layout, first.workspace_id, log).split()) == 2
