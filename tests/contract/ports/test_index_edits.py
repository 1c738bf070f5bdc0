"""An index that is edited here is the one that git would have written."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from workspace_provisioner.git.index import IndexUnreadable
from workspace_provisioner.git.index_edits import FileEntry, edited
from workspace_provisioner.sources import ObjectFormat

Files = Mapping[str, bytes]


class Checkout:
    """A repository with an index of version 2, as the host has them."""

    def __init__(self, path: Path, object_format: str = "sha1") -> None:
        self.path = path
        self.git("init", "-q", "--object-format", object_format, str(path), at=path.parent)
        for setting in ("index.version=2", "user.name=A", "user.email=a@example.org"):
            self.git("config", *setting.split("="))

    def git(self, *arguments: str, at: Path | None = None) -> str:
        environment = os.environ | {
            "GIT_TEST_CHECK_CACHE_TREE": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
        }
        ended = subprocess.run(
            ["git", "-C", str(at or self.path), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return ended.stdout

    def commit(self, files: Files) -> str:
        self.git("rm", "-rqf", "--ignore-unmatch", ".")
        for name, content in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self.git("add", "-A")
        self.git("commit", "-qm", "files", "--allow-empty")
        return self.git("rev-parse", "HEAD").strip()

    def edit(self, gone: set[str], written: Files) -> tuple[int, int]:
        """Change files and edit the index alone; returns what it says of their number and size."""
        for name in sorted(gone | written.keys()):
            subprocess.run(["rm", "-rf", str(self.path / name)], check=True)
        entries = []
        for name, content in written.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            oid = bytes.fromhex(self.git("hash-object", "-w", name).strip())
            entries.append(FileEntry(name.encode(), 0o100644, oid, path.lstat()))
        index = self.path / ".git/index"
        object_format = ObjectFormat(self.git("rev-parse", "--show-object-format").strip())
        found = edited(
            index.read_bytes(),
            object_format,
            gone=[name.encode() for name in gone],
            written=entries,
        )
        index.write_bytes(found.content)
        return found.files, found.growth


def contents(checkout: Checkout) -> dict[str, bytes]:
    names = checkout.git("ls-files", "-z").split("\0")[:-1]
    return {name: (checkout.path / name).read_bytes() for name in names}


def check(checkout: Checkout, after: Files, said: tuple[int, int], before: Files) -> None:
    """Compare with what git makes of the same files, and let git use what it was given."""
    assert said == (len(after), size_of(after) - size_of(before))
    assert contents(checkout) == after
    assert checkout.git("diff-files", "--name-only") == ""
    listed = checkout.git("ls-files", "--stage", "--debug")
    tree = checkout.git("write-tree")
    checkout.git("add", "-A")
    assert checkout.git("ls-files", "--stage", "--debug") == listed
    checkout.git("read-tree", "HEAD")
    checkout.git("add", "-A")
    assert checkout.git("write-tree") == tree


def size_of(files: Files) -> int:
    return sum(map(len, files.values()))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
def test_random_edits(tmp_path: Path, seed: int, object_format: str) -> None:
    numbers = random.Random(seed)  # noqa: S311
    checkout = Checkout(tmp_path / "checkout", object_format)
    before = {
        f"{numbers.choice('abc')}/{numbers.choice('defg')}/{number}x{'y' * number}": b"%d" % number
        for number in range(40)
    }
    checkout.commit(before)
    gone = set(numbers.sample(sorted(before), 5)) | {"b"}
    left = {
        name: content
        for name, content in before.items()
        if not any(name == each or name.startswith(f"{each}/") for each in gone)
    }
    changed = numbers.sample(sorted(left), 5)
    added = [f"{numbers.choice(['a', 'c/d', 'n/e/w', '.'])}/n{number}" for number in range(5)]
    written = {os.path.normpath(name): os.urandom(9) for name in [*changed, *added]}
    said = checkout.edit(gone, written)
    check(checkout, {**left, **written}, said, before)


def test_a_file_and_a_directory_take_each_others_place(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "checkout")
    before = {"a": b"1", "b/c/d": b"2", "b/e": b"3", "b.": b"4", "b0": b"5"}
    checkout.commit(before)
    said = checkout.edit({"a", "b"}, {"a/b/c": b"6", "b": b"7"})
    check(checkout, {"a/b/c": b"6", "b": b"7", "b.": b"4", "b0": b"5"}, said, before)


def test_what_did_not_change_is_not_read_again_by_git(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "checkout")
    before = {"a/b/c": b"1", "a/d": b"2", "e/f": b"3", "e/g/h": b"4"}
    checkout.commit(before)
    checkout.edit({"e/g"}, {"e/f": b"5"})
    index = (checkout.path / ".git/index").read_bytes()
    trees = index[index.index(b"TREE") + 8 : -20]
    assert b"\0-1 2\n" in trees  # the root
    assert b"a\x002 1\n" in trees
    assert b"e\0-1 1\n" in trees
    assert b"g\0-1 0\n" in trees


@pytest.mark.parametrize("damage", ["version", "short", "conflict", "link"])
def test_an_unusual_index_is_left_to_git(tmp_path: Path, damage: str) -> None:
    checkout = Checkout(tmp_path / "checkout")
    checkout.commit({"a": b"1", "b": b"2"})
    index = bytearray((checkout.path / ".git/index").read_bytes())
    match damage:
        case "version":
            index[7] = 4
        case "short":
            del index[60:]
        case "conflict":
            index[12 + 60] |= 0x10
        case "link":
            index[index.index(b"TREE") : index.index(b"TREE") + 4] = b"link"
    with pytest.raises(IndexUnreadable):
        edited(bytes(index), ObjectFormat.SHA1, gone=[b"a"], written=[])
