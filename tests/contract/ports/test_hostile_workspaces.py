"""Workspaces whose content, or whose own git directory, is made to run or reach something when the
service looks at them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fakes.git_client import GitClient, listing, run_git
from tests.fakes.provisioner_room import ProvisionerRoom, open_room

pytestmark = pytest.mark.asyncio


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    for number in range(5):
        found.write(f"d/f{number}", b"line\n" * (number + 1))
    found.commit()
    return found


@pytest_asyncio.fixture
async def room(tmp_path: Path) -> AsyncIterator[ProvisionerRoom]:
    async with open_room(tmp_path / "host") as opened:
        yield opened


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A program that leaves a mark when anybody runs it."""
    found = tmp_path / "trap"
    found.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\ncat\n")
    found.chmod(0o755)
    return found


def script(trap: Path) -> bytes:
    return trap.read_bytes()


def has_sprung(trap: Path) -> bool:
    return (trap.parent / "sprung").exists()


async def test_attributes_filters_and_hooks_of_the_content_do_not_run(
    room: ProvisionerRoom, client: GitClient, trap: Path
) -> None:
    client.write(".gitattributes", b"* filter=trap diff=trap merge=trap\n")
    client.write(".gitconfig", f"[core]\n\tfsmonitor = {trap}\n".encode())
    client.write("hooks/post-checkout", script(trap), executable=True)
    client.commit()
    await room.upload(client)
    client.write("d/f0", b"changed\n")
    made, path = await room.make("k", client.source(changes=client.dirty()))
    assert await room.provisioner.count_changes(made) == 0
    assert (path / "hooks/post-checkout").read_bytes() == script(trap)
    assert not has_sprung(trap)


async def test_a_git_directory_that_was_rewritten_has_no_effect_on_the_count(
    room: ProvisionerRoom, client: GitClient, trap: Path, tmp_path: Path
) -> None:
    await room.upload(client)
    made, path = await room.make("k", client.source())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    own = path / ".git"
    (tmp_path / "included").write_text(f"[core]\n\tfsmonitor = {trap}\n")
    (own / "config").write_text(
        f"""[core]
	repositoryformatversion = 0
	fsmonitor = {trap}
	sshCommand = {trap}
	worktree = {elsewhere}
	hooksPath = {own}/hooks
	attributesFile = {own}/attributes
	pager = {trap}
	editor = {trap}
[diff]
	external = {trap}
[filter "trap"]
	clean = {trap}
	smudge = {trap}
	process = {trap}
	required = true
[diff "trap"]
	textconv = {trap}
	command = {trap}
[include]
	path = {tmp_path}/included
[alias]
	status = !{trap}
"""
    )
    (own / "attributes").write_text("* filter=trap\n")
    (own / "info").mkdir(exist_ok=True)
    (own / "info/attributes").write_text("* filter=trap diff=trap\n")
    (path / ".gitattributes").write_text("* filter=trap diff=trap\n")
    (own / "hooks").mkdir(exist_ok=True)
    for name in ("post-checkout", "post-index-change", "pre-auto-gc", "fsmonitor-watchman"):
        (own / "hooks" / name).write_bytes(script(trap))
        (own / "hooks" / name).chmod(0o755)
    (own / "objects/info/alternates").write_text(f"{elsewhere}\n")
    (own / "index").write_bytes(b"not an index")
    (own / "HEAD").write_text("ref: refs/heads/../../../etc/passwd\n")
    (path / "d/f1").write_bytes(b"changed\n")
    assert await room.provisioner.count_changes(made) == 2
    assert not has_sprung(trap)
    assert list(elsewhere.iterdir()) == []


async def test_a_git_directory_that_became_a_link_leads_nowhere(
    room: ProvisionerRoom, client: GitClient, tmp_path: Path
) -> None:
    await room.upload(client)
    made, path = await room.make("k", client.source())
    other = GitClient(tmp_path / "other")
    other.write("secret", b"s")
    other.commit()
    before = listing(other.path / ".git")
    (path / ".git").rename(tmp_path / "moved")
    (path / ".git").symlink_to(other.path / ".git")
    assert await room.provisioner.count_changes(made) == 0
    assert listing(other.path / ".git") == before


async def test_one_tenant_cannot_borrow_from_another_ones_store(
    room: ProvisionerRoom, client: GitClient, tmp_path: Path
) -> None:
    await room.upload(client)
    theirs = client.source()
    store = room.layout.store(theirs.key)
    before = listing(store)
    mallory = GitClient(tmp_path / "mallory")
    mallory.write("m", b"m")
    mallory.commit()
    source = mallory.source(tenant="mallory")
    await room.upload(mallory, source)
    _, path = await room.make("k", source)
    (path / ".git/objects/info/alternates").write_text(f"{store}/objects\n")
    wanted = client.head()
    assert run_git(path, "cat-file", "-t", wanted) == b"commit\n"
    # It can be read here, where the test runs without a sandbox; the service still knows nothing.
    assert not await room.stores.knows(source.key, wanted)
    assert listing(store) == before
