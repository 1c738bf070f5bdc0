"""Tags that are made after the first upload: they come with a launch, and its own workspace shows
them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from tests.contract.ports.test_store_gate import fsck, grow, reason_of
from tests.contract.ports.test_store_history import trees_only
from tests.fakes.git_client import GitClient, run_git
from tests.fakes.mounted_layers import run_inside
from tests.fakes.provisioner_room import open_room as open_whole_room
from tests.fakes.store_room import StoreRoom, chunked, open_store_room
from workspace_provisioner.sources import Commits, Tip
from workspace_provisioner.workspaces import Rung

pytestmark = pytest.mark.asyncio


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    for number in range(10):
        found.write(f"d{number % 3}/f{number}", f"line {number}\n".encode() * 50)
    found.commit()
    return found


@pytest_asyncio.fixture
async def room(tmp_path: Path) -> AsyncIterator[StoreRoom]:
    async with open_store_room(tmp_path / "host") as opened:
        yield opened


async def test_late_tags_come_with_a_launch_and_stay(room: StoreRoom, client: GitClient) -> None:
    """A light one alone, an annotated one with its object, one of a commit that came along."""
    source = client.source()
    old = client.head()
    await room.upload(client)
    light = replace(source, tags=(Tip("refs/tags/light", old),))
    assert room.gate.brings_tags(light)
    assert await reason_of(room, light) is None
    assert not room.gate.brings_tags(light)
    client.git("tag", "-a", "-m", "one", "v1")
    noted = Tip("refs/tags/v1", client.git("rev-parse", "v1").decode().strip())
    commits = Commits((old,), client.pack([old, noted.commit], [old]))
    assert await reason_of(room, replace(source, tags=(noted,), commits=commits)) is None
    head = grow(client)
    newest = Tip("refs/tags/v2", head)
    commits = Commits((old,), client.pack([head], [old]))
    assert await reason_of(room, replace(client.source(), tags=(newest,), commits=commits)) is None
    assert await room.stores.tags(source.key) == (light.tags[0], noted, newest)
    fsck(room, source)


async def test_a_tag_that_leads_out_of_the_tenants_objects_is_left_out(
    room: StoreRoom, client: GitClient
) -> None:
    """It spoils neither the launch nor the commits that travel beside it, and tells nothing."""
    await room.upload(client)
    old = client.head()
    other = client.copied(client.path.with_name("elsewhere"))
    secret = grow(other, b"secret\n")
    await room.upload(other, other.source(tenant="bob"))
    stray = (Tip("refs/tags/stolen", secret), Tip("refs/tags/nothing", "f" * 40))
    for tag in stray:
        assert await reason_of(room, replace(client.source(), tags=(tag,))) is None
    head = grow(client)
    commits = Commits((old,), client.pack([head], [old]))
    source = replace(client.source(), tags=stray, commits=commits)
    assert await reason_of(room, source) is None
    assert await room.stores.tags(source.key) == ()
    fsck(room, source)


async def test_a_workspace_says_that_tags_were_left_out(tmp_path: Path, client: GitClient) -> None:
    """Also when it is asked for again, after a restart; the client is to send them again."""
    source = client.source()
    light = (Tip("refs/tags/light", client.head()),)
    client.git("checkout", "-q", "-b", "aside")
    aside = grow(client)
    client.git("tag", "-a", "-m", "two", "v2")
    noted = (Tip("refs/tags/v2", client.git("rev-parse", "v2").decode().strip()),)
    # Thin against what another host of the front door has.
    commits = Commits((aside,), client.pack([noted[0].commit], [aside]))
    left_out = replace(source, tags=noted, commits=commits)
    async with open_whole_room(tmp_path / "host") as room:
        await room.upload(client, source)
        assert not (await room.make("a", replace(source, tags=light)))[0].tags_left_out
        assert (await room.make("b", left_out))[0].tags_left_out
    async with open_whole_room(tmp_path / "host") as room:
        assert (await room.make("b", left_out))[0].tags_left_out
        assert not (await room.make("a", replace(source, tags=light)))[0].tags_left_out
        await room.upload(client, tips=noted)
        assert not (await room.make("c", left_out))[0].tags_left_out


@pytest.mark.parametrize("overlay", [True, False])
async def test_a_tag_that_comes_with_a_launch_is_in_its_own_workspace(
    tmp_path: Path, client: GitClient, overlay: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next one that names it is warm: no git runs."""
    async with open_whole_room(tmp_path / "host") as room:
        if overlay and not room.trees.can_overlay:
            pytest.skip("overlays cannot be mounted here")

        async def described(key: str) -> bytes:
            made, path = await room.make(key, source, key, overlay=overlay)
            assert made.rung is (Rung.OVERLAY if overlay else Rung.POOL)
            if overlay:
                return run_inside(room.layout, made.workspace_id, "git describe --tags")
            return run_git(path, "describe", "--tags")

        source = client.source()
        await room.upload(client)
        await room.make("first", source, overlay=overlay)  # the pool is as deep as it was wanted
        await room.preparations.finished()
        source = replace(source, tags=(Tip("refs/tags/v4", client.head()),))
        assert await described("a") == b"v4\n"
        await room.preparations.finished()

        async def refuse(*_: object) -> None:
            raise AssertionError("git was started")

        monkeypatch.setattr("workspace_provisioner.wall.git_wall.GitWall.start", refuse)
        assert await described("b") == b"v4\n"


async def test_tags_beside_a_commit_without_its_history_wait_for_it(
    tmp_path: Path, client: GitClient
) -> None:
    old = client.head()
    grow(client)
    async with open_whole_room(tmp_path / "host") as room:
        pack = trees_only(client, client.head())
        await room.importer.receive(client.source(), (), chunked(pack), tips_only=True)
        tag = Tip("refs/tags/old", old)
        await room.make("a", replace(client.source(), tags=(tag,)))
        assert await room.stores.tags(client.source().key) == ()


async def test_tags_are_written_whatever_the_locale_is(
    tmp_path: Path, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a checkout, in a template that is a difference, and in a workspace over one."""
    written = Path.write_text

    def in_ascii(self: Path, text: str, encoding: str | None = None) -> int:
        return written(self, text, encoding=encoding or "ascii")

    monkeypatch.setattr(Path, "write_text", in_ascii)
    async with open_whole_room(tmp_path / "host") as room:
        tags = tuple(Tip(f"refs/tags/{name}", client.head()) for name in ("a\u2028b", "\u00e9"))
        expected = "".join(f"{tag.ref}\n" for tag in tags).encode()
        listed = ["for-each-ref", "--format=%(refname)", "refs/tags"]
        await room.upload(client, tips=tags)
        await room.preparations.finished()
        made, path = await room.make("a", client.source())
        assert run_git(path, *listed) == expected
        if not room.trees.can_overlay:
            return
        old = client.head()
        grow(client)
        await room.upload(client, having=[old])
        await room.preparations.finished()
        made, _ = await room.make("b", client.source(), overlay=True)
        assert made.rung is Rung.OVERLAY_DELTA
        script = "git for-each-ref '--format=%(refname)' refs/tags"
        assert run_inside(room.layout, made.workspace_id, script) == expected
