"""What is prepared belongs to one tenant, project, commit, umask and way of checking out."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fakes.git_client import GitClient, listing
from tests.fakes.mounted_layers import copy_out
from tests.fakes.provisioner_room import ProvisionerRoom, open_room
from workspace_provisioner import templates
from workspace_provisioner.sources import ObjectFormat, ProjectKey
from workspace_provisioner.templates import family, template_id
from workspace_provisioner.workspaces import Rung

COMMIT = "a" * 40
KEY = ProjectKey("ada", "project", ObjectFormat.SHA1)


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    for number in range(20):
        found.write(f"f{number}", b"one\ntwo\n", executable=number == 0)
    found.commit()
    return found


@pytest_asyncio.fixture
async def room(tmp_path: Path) -> AsyncIterator[ProvisionerRoom]:
    async with open_room(tmp_path / "host") as opened:
        yield opened


@pytest.mark.parametrize(
    ("key", "commit"),
    [
        (ProjectKey("bob", "project", ObjectFormat.SHA1), COMMIT),
        (ProjectKey("ada", "other", ObjectFormat.SHA1), COMMIT),
        (ProjectKey("ada", "project", ObjectFormat.SHA256), COMMIT),
        (ProjectKey("adap", "roject", ObjectFormat.SHA1), COMMIT),
        (KEY, "b" * 40),
    ],
)
def test_each_part_of_the_key_makes_another_id(key: ProjectKey, commit: str) -> None:
    assert template_id(key, commit) != template_id(KEY, COMMIT)
    assert (family(key) == family(KEY)) is (key == KEY)


@pytest.mark.parametrize(("name", "value"), [("UMASK", 0o077), ("CHECKOUT_VERSION", 2)])
def test_another_way_of_checking_out_makes_another_id(
    monkeypatch: pytest.MonkeyPatch, name: str, value: int
) -> None:
    before = template_id(KEY, COMMIT)
    assert getattr(templates, name) != value
    monkeypatch.setattr(templates, name, value)
    assert template_id(KEY, COMMIT) != before


@pytest.mark.asyncio
async def test_tenants_share_no_entry_of_the_pool(room: ProvisionerRoom, client: GitClient) -> None:
    """Two tenants have one commit: neither takes, or advances, what was prepared for the other."""
    entries: dict[str, set[int]] = {}
    for tenant in ("ada", "bob"):
        source = client.source(tenant=tenant)
        await room.upload(client, source)
        made, _ = await room.make("first", source)
        assert made.rung is Rung.CHECKOUT, "there is nothing of this tenant's yet"
        await room.preparations.finished()
        place = room.layout.pool / template_id(source.key, source.commit)
        entries[tenant] = {each.stat().st_ino for each in place.iterdir()}
        assert entries[tenant]
    assert not entries["ada"] & entries["bob"]
    for tenant in ("ada", "bob"):
        made, path = await room.make("second", client.source(tenant=tenant))
        assert made.rung is Rung.POOL
        alternates = (path / ".git/objects/info/alternates").read_text()
        assert alternates.startswith(str(room.layout.root / tenant))


@pytest.mark.asyncio
@pytest.mark.parametrize("overlay", [True, False])
async def test_the_umask_of_the_process_is_not_that_of_the_files(
    room: ProvisionerRoom, client: GitClient, tmp_path: Path, overlay: bool
) -> None:
    if overlay and not room.trees.can_overlay:
        pytest.skip("overlays cannot be mounted here")
    await room.upload(client)
    before = os.umask(0o077)
    try:
        made, path = await room.make("a", client.source(), overlay=overlay)
    finally:
        os.umask(before)
    if overlay:
        path = copy_out(room.layout, made.workspace_id, tmp_path / "seen")
    assert (path / "f1").stat().st_mode & 0o777 == 0o666 & ~templates.UMASK
    assert (path / "f0").stat().st_mode & 0o777 == 0o777 & ~templates.UMASK


@pytest.mark.asyncio
@pytest.mark.parametrize("overlay", [True, False])
async def test_filters_and_attributes_are_those_of_the_commit(
    room: ProvisionerRoom,
    client: GitClient,
    tmp_path: Path,
    overlay: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Attributes apply from the commit on that has them, to files that it left alone too; of the
    host's own configuration no filter is run and no attributes are read.
    """
    if overlay and not room.trees.can_overlay:
        pytest.skip("overlays cannot be mounted here")
    home = tmp_path / "home"
    home.mkdir()
    (home / "attributes").write_text("* filter=shout\n")
    (home / ".gitconfig").write_text(
        f'[core]\nattributesFile = {home}/attributes\n[filter "shout"]\nsmudge = tr a-z A-Z\n'
    )
    monkeypatch.setenv("HOME", str(home))
    contents = []
    for number, attributes in enumerate(("", "*3 text eol=crlf\nf4 filter=shout\n", "# none\n")):
        if attributes:
            client.write(".gitattributes", attributes.encode())
            client.commit()
        await room.upload(client)
        await room.preparations.finished()
        made, path = await room.make(str(number), client.source(), overlay=overlay)
        if overlay:
            path = copy_out(room.layout, made.workspace_id, tmp_path / f"seen{number}")
        contents.append({name: found[1] for name, found in listing(path).items()})
    assert [each[b"f3"] for each in contents] == [
        b"one\ntwo\n",
        b"one\r\ntwo\r\n",
        b"one\ntwo\n",
    ]
    assert {each[b"f4"] for each in contents} == {b"one\ntwo\n"}
