"""A repository of a real size: the sources of this machine's Python, hundreds of branches, tags."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sysconfig
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fakes.mounted_layers import copy_out
from tests.fakes.provisioner_room import ProvisionerRoom, open_room
from workspace_provisioner.sources import DEFAULT_LEASE, Source, Tip, checked_source
from workspace_provisioner.workspaces import Miss, Rung, Workspace

pytestmark = pytest.mark.asyncio

_GIT = ["git", "-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "gc.auto=0"]
_FILES = 3000
_COMMITS = 20
_BRANCHES = 300
_TAKES = 20


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository and what a client says of it."""

    path: Path
    tips: tuple[Tip, ...]
    root: str

    def git(self, *arguments: str, given: bytes = b"") -> bytes:
        ran = subprocess.run(
            [*_GIT, "-C", str(self.path), *arguments], input=given, capture_output=True, check=True
        )
        return ran.stdout

    def source(self, commit: str) -> Source:
        return checked_source(
            tenant="acme",
            project=self.root,
            object_format="sha1",
            commit=commit,
            branch="main",
            digest="",
            changes=None,
        )

    async def everything(self) -> AsyncIterator[bytes]:
        wanted = "".join(f"{tip.commit}\n" for tip in self.tips).encode()
        pack = await asyncio.to_thread(
            self.git, "pack-objects", "--revs", "--stdout", "-q", given=wanted
        )
        for offset in range(0, len(pack), 1 << 20):
            yield pack[offset : offset + (1 << 20)]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    path = tmp_path_factory.mktemp("real") / "repository"
    subprocess.run([*_GIT, "init", "-q", "-b", "main", str(path)], check=True)
    made = Repository(path, (), "")
    library = Path(sysconfig.get_path("stdlib"))
    sources = [
        each
        for each in sorted(library.rglob("*.py"))
        if "site-packages" not in each.parts and "test" not in each.parts
    ]
    kept = (sources * (_FILES // len(sources) + 1))[:_FILES]
    for number, each in enumerate(kept):
        target = path / f"copy{number // len(sources)}" / each.relative_to(library)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(each, target)
    made.git("add", "-A")
    made.git("commit", "-qm", "sources")
    numbers = random.Random(7)  # noqa: S311 - reproducible
    for number in range(_COMMITS):
        for each in numbers.sample(sorted(path.rglob("*.py")), 15):
            each.write_bytes(each.read_bytes() + b"# changed %d\n" % number)
        made.git("commit", "-qam", f"change {number}")
        made.git("tag", f"v{number}")
    commits = made.git("rev-list", "main").decode().split()
    made.git(
        "update-ref",
        "--stdin",
        given="".join(
            f"create refs/heads/topic/{number} {numbers.choice(commits)}\n"
            for number in range(_BRANCHES)
        ).encode(),
    )
    made.git("pack-refs", "--all")
    listed = made.git("for-each-ref", "--format=%(objectname) %(refname)").decode().splitlines()
    pairs = (line.split(" ", 1) for line in listed)
    return Repository(path, tuple(Tip(ref, commit) for commit, ref in pairs), commits[-1])


async def take(
    room: ProvisionerRoom, source: Source, name: str, *, overlay: bool = False
) -> Workspace | Miss:
    return await room.provisioner.materialize(
        idempotency_key=name,
        source=source,
        branch=f"work/{name}",
        lease=DEFAULT_LEASE,
        name=name,
        claims_branch=True,
        overlay=overlay,
    )


async def test_it_goes_through_sync_takes_and_deletes(
    repository: Repository, tmp_path: Path
) -> None:
    tip = repository.git("rev-parse", "main").decode().strip()
    older = repository.git("rev-parse", "main~10").decode().strip()
    root = tmp_path / "host"
    async with open_room(root) as room:
        missed = await take(room, repository.source(tip), "early")
        assert isinstance(missed, Miss)
        assert missed.reason == "no_base"
        snapshot = await room.importer.receive(
            repository.source(tip), repository.tips, repository.everything()
        )
        assert len(snapshot.tips) == _BRANCHES + _COMMITS + 1
        for number in range(_TAKES):
            commit = tip if number % 4 else older
            overlay = bool(number % 2) and room.trees.can_overlay
            made = await take(room, repository.source(commit), f"w{number}", overlay=overlay)
            assert isinstance(made, Workspace), made
            assert overlay is (made.rung in (Rung.OVERLAY, Rung.OVERLAY_DELTA))
            tree = seen = root / "trees" / made.workspace_id
            if overlay:
                tree = root / "layers" / made.workspace_id / "upper"
            if number % 5 == 0:
                if overlay:
                    seen = copy_out(room.layout, made.workspace_id, tmp_path / f"seen{number}")
                await asyncio.to_thread(require_same, repository, commit, seen)
            if number % 3 == 0:
                (tree / "unsaved.txt").write_text("x")
            else:
                assert await room.provisioner.release(
                    "acme", workspace_id=made.workspace_id, checked=True
                )
        left = [each async for each in listed(room)]
        assert len(left) == len(range(0, _TAKES, 3))
        for each in left:
            assert await room.provisioner.count_changes(each) == 1
            assert await room.provisioner.release("acme", workspace_id=each.workspace_id)
        assert [each async for each in listed(room)] == []
    await asyncio.to_thread(require_sound, root / "workspaces" / "acme")


def require_sound(stores: Path) -> None:
    found = list(stores.glob("*.git"))
    assert len(found) == 1
    checked = subprocess.run(
        ["git", "-C", str(found[0]), "fsck", "--connectivity-only"],
        capture_output=True,
        check=True,
    )
    assert b"missing" not in checked.stdout


async def listed(room: ProvisionerRoom) -> AsyncIterator[Workspace]:
    page, token = await room.provisioner.list("acme", size=1000, after="")
    assert token == ""
    for each in page:
        yield each


def require_same(repository: Repository, commit: str, tree: Path) -> None:
    """Compare every file with the repository's, byte for byte and bit for bit."""
    inside = ["git", "-c", "safe.directory=*", "-C", str(tree)]
    status = subprocess.run([*inside, "status", "--porcelain"], capture_output=True, check=True)
    assert status.stdout == b""
    hashed = repository.git("ls-tree", "-r", "-z", commit)
    staged = subprocess.run([*inside, "ls-files", "-s", "-z"], capture_output=True, check=True)
    wanted = {entry.split(b"\t")[1]: entry.split()[2] for entry in hashed.split(b"\0") if entry}
    assert {
        entry.split(b"\t")[1]: entry.split()[1] for entry in staged.stdout.split(b"\0") if entry
    } == wanted
    names = [name for name in wanted if (tree / os.fsdecode(name)).is_file()]
    assert len(names) == len(wanted)
    given = b"".join(name + b"\n" for name in names)
    oids = subprocess.run(
        [*inside, "hash-object", "--no-filters", "--stdin-paths"],
        input=given,
        capture_output=True,
        check=True,
    ).stdout.split()
    assert dict(zip(names, oids, strict=True)) == wanted
