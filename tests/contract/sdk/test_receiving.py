"""What a hostile sandbox gets when its files are copied to this machine: no program of its own."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from fairlead_sdk.file_records import TreeCopied
from fairlead_sdk.packing import Packer
from fairlead_sdk.receiving import (
    GitDirectoryRefused,
    History,
    HistoryBroken,
    NotNew,
    TreeRefused,
    receive_file,
    receive_tree,
)
from tests.contract.wire.file_room import member, tar_of
from tests.fakes.git_client import GitClient, run_git


class Tripwire:
    """A program that leaves a mark when it runs."""

    def __init__(self, directory: Path) -> None:
        self.program = directory / "tripwire"
        self._mark = directory / "tripped"
        self.program.write_text(f"#!/bin/sh\ntouch {self._mark}\n")
        self.program.chmod(0o755)

    def is_tripped(self, place: Path) -> bool:
        """Use git in a directory and every one below, as a person's prompt and editor do."""
        self._mark.unlink(missing_ok=True)
        for top, below, _ in os.walk(place):
            below[:] = [name for name in below if name not in ("objects", "refs", "logs", "hooks")]
            for arguments in (("status",), ("commit", "-qm", "x")):
                subprocess.run(
                    ["git", *arguments],
                    cwd=top,
                    env={**os.environ, "GIT_CEILING_DIRECTORIES": str(place.parent)},
                    capture_output=True,
                    check=False,
                    timeout=60,
                )
        return self._mark.exists()


@pytest.fixture
def tripwire(tmp_path: Path) -> Tripwire:
    return Tripwire(tmp_path)


@pytest.fixture
def hostile(tmp_path: Path, tripwire: Tripwire) -> GitClient:
    """A repository whose configuration and hooks start a program in every way that there is."""
    client = GitClient(tmp_path / "hostile")
    client.write("file", b"theirs\n")
    client.commit()
    for name in ("pre-commit", "post-index-change", "reference-transaction"):
        shutil.copy(tripwire.program, client.path / ".git" / "hooks" / name)
    for key in ("core.fsmonitor", "core.pager", "core.sshCommand", "diff.external", "alias.x"):
        client.git("config", key, str(tripwire.program))
    return client


@pytest.fixture
def laptop(tmp_path: Path) -> GitClient:
    client = GitClient(tmp_path / "laptop")
    client.write("file", b"ours\n")
    client.commit()
    client.git("config", "remote.origin.url", "https://example.com/ours.git")
    return client


def contents_of(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def received(stream: bytes, local: Path, history: History | None = None) -> TreeCopied:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(stream), 100_000):
            yield stream[start : start + 100_000]

    return asyncio.run(receive_tree(pieces(), str(local), history=history))


def received_file(content: bytes, local: Path) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield content

    asyncio.run(receive_file(pieces(), str(local), permissions=0o755))


def packed(top: Path) -> bytes:
    return b"".join(Packer(str(top)).pieces())


def as_git_directory(repository: Path, place: Path) -> None:
    """Copy `.git` to another name, so that it is its own working directory."""
    shutil.copytree(repository / ".git", place)
    run_git(place, "config", "core.worktree", ".")


def test_a_copy_into_a_repository_leaves_it_alone(
    laptop: GitClient, hostile: GitClient, tripwire: Tripwire
) -> None:
    assert tripwire.is_tripped(hostile.path)  # it would run
    before = contents_of(laptop.path / ".git")
    for name in ("modules/.git", "a/gitfile/.git"):
        hostile.write(name, b"gitdir: ../../.git\n")
    copied = received(packed(hostile.path), laptop.path)
    assert sorted(copied.left_out) == [".git", "a/gitfile/.git", "modules/.git"]
    assert contents_of(laptop.path / ".git") == before
    assert (laptop.path / "file").read_bytes() == b"theirs\n"
    assert laptop.git("status", "--porcelain", "-uall") == b" M file\n"
    assert not tripwire.is_tripped(laptop.path)


def test_no_spelling_of_it_is_written(tmp_path: Path) -> None:
    spellings = [".GIT", "git~1", ".git. ", ".git::$INDEX_ALLOCATION", ".g\u200cit", "x\\.git"]
    stream = tar_of(
        *((member(f"d/{name}/config"), b"[core]\n") for name in spellings),
        *((member(f"e/{name}", kind=tarfile.SYMTYPE, target="../d"), b"") for name in spellings),
        (member("link", kind=tarfile.SYMTYPE, target="d/.git/config"), b""),
        (member("fine"), b""),
    )
    copied = received(stream, tmp_path / "new")
    assert set(copied.left_out) == {f"{above}/{name}" for above in "de" for name in spellings} | {
        "link"
    }
    assert sorted(os.listdir(tmp_path / "new")) == ["fine"]


def test_git_directories_of_other_names_are_left_out(
    tmp_path: Path, laptop: GitClient, hostile: GitClient, tripwire: Tripwire
) -> None:
    tree = tmp_path / "tree"
    as_git_directory(hostile.path, tree / "a" / "hidden")
    assert tripwire.is_tripped(tree / "a" / "hidden")
    shutil.copytree(tree / "a" / "hidden", tree / "shared")
    os.rename(tree / "shared" / "HEAD", tree / "shared" / "other")
    (tree / "short").mkdir()
    (tree / "short" / "HEAD").write_text("ref: refs/heads/main\n")
    (tree / "short" / "commondir").write_text("../shared\n")
    shutil.copy(tree / "shared" / "index", tree / "short" / "index")
    assert run_git(tree / "short", "rev-parse", "--git-dir") == b".\n"
    (tree / "fine").write_bytes(b"fine")
    for target in (tmp_path / "new", laptop.path):
        copied = received(packed(tree), target)
        assert copied.left_out == ("a/hidden", "short")
        assert (target / "fine").exists()
        assert (target / "shared").exists()
        assert not (target / "a" / "hidden").exists()
        assert not (target / "short").exists()
        assert not tripwire.is_tripped(target)
    with pytest.raises(GitDirectoryRefused):
        received(packed(tree / "a" / "hidden"), tmp_path / "bare")
    assert not (tmp_path / "bare").exists()


@pytest.mark.parametrize("last", ["HEAD", "objects", "refs"])
def test_git_directories_are_not_assembled_of_several_copies(
    tmp_path: Path, hostile: GitClient, tripwire: Tripwire, last: str
) -> None:
    as_git_directory(hostile.path, tmp_path / "in" / "parts")
    as_git_directory(hostile.path, tmp_path / "whole")
    rest = tmp_path / "in" / "parts" / last
    moved = tmp_path / "late" / "parts" / last
    moved.parent.mkdir(parents=True)
    rest.rename(moved)
    out = tmp_path / "out"
    assert received(packed(tmp_path / "in"), out).left_out == ()
    assert received(packed(tmp_path / "late"), out).left_out == ("parts",)
    with pytest.raises(GitDirectoryRefused):
        received(packed(moved.parent), out / "parts")
    if last == "HEAD":
        with pytest.raises(GitDirectoryRefused):
            received_file(b"ref: refs/heads/main\n", out / "parts" / "HEAD")
    assert not (out / "parts" / last).exists()
    assert not tripwire.is_tripped(out)


@pytest.mark.parametrize(
    "target", [".git", ".git/hooks", ".git/new", "to_hooks", "bare/hooks", "bare/new/er"]
)
def test_nothing_is_written_into_a_git_directory(laptop: GitClient, target: str) -> None:
    (laptop.path / "to_hooks").symlink_to(".git/hooks")
    run_git(laptop.path, "init", "-q", "--bare", "bare")
    before = contents_of(laptop.path)
    with pytest.raises(GitDirectoryRefused):
        received(tar_of((member("pre-commit"), b"theirs")), laptop.path / target)
    with pytest.raises(GitDirectoryRefused):
        received_file(b"theirs", laptop.path / target / "pre-commit")
    assert contents_of(laptop.path) == before


def test_an_existing_git_directory_below_the_target_is_left_alone(laptop: GitClient) -> None:
    run_git(laptop.path, "init", "-q", "--bare", "bare")
    (laptop.path / "lead").symlink_to(".git/hooks")
    before = contents_of(laptop.path)
    copied = received(tar_of((member("bare/hooks/update"), b"theirs")), laptop.path)
    assert copied.left_out == ("bare",)
    with pytest.raises(TreeRefused):
        received(tar_of((member("a"), b""), (member("lead/update"), b"theirs")), laptop.path)
    stream = tar_of(
        (member("way", kind=tarfile.SYMTYPE, target="lead/update"), b""),
        (member("a", kind=tarfile.SYMTYPE, target="file"), b""),
    )
    assert received(stream, laptop.path).left_out == ("way",)
    os.unlink(laptop.path / "a")
    assert contents_of(laptop.path) == before
    for name in (".git", ".GIT", "git~1"):
        with pytest.raises(GitDirectoryRefused):
            received_file(b"gitdir: /tmp/theirs\n", laptop.path / "sub" / name)


def test_a_worktree_inside_a_bare_repository_is_no_git_directory(
    tmp_path: Path, laptop: GitClient
) -> None:
    laptop.git("clone", "-q", "--bare", ".", str(tmp_path / "bare.git"))
    run_git(tmp_path / "bare.git", "worktree", "add", "-q", "work", "main")
    received(tar_of((member("new"), b"theirs")), tmp_path / "bare.git" / "work")
    assert (tmp_path / "bare.git" / "work" / "new").read_bytes() == b"theirs"


@pytest.mark.parametrize(
    "members",
    [
        [(member("/abs"), b"x")],
        [(member("../x"), b"x")],
        [(member("dev", kind=tarfile.CHRTYPE), b"")],
        [(member("hard", kind=tarfile.LNKTYPE, target="../x"), b"")],
        [(member("big", kind=tarfile.XHDTYPE), bytes(300_000))],
        [(member("/".join("d" * 1000)), b"x")],
        [(member("a"), b"x"), (member("a/b"), b"x")],
        [(member("a", kind=tarfile.SYMTYPE, target="there"), b""), (member("a/b"), b"x")],
        [(member("there/b", kind=tarfile.SYMTYPE, target="c"), b""), (member("there"), b"x")],
    ],
)
def test_a_hostile_tree_is_refused_whole(
    tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    (tmp_path / "in" / "there").mkdir(parents=True)
    with pytest.raises(TreeRefused):
        received(tar_of((member("first"), b"x"), *members), tmp_path / "in")
    assert os.listdir(tmp_path / "in") == ["there"]
    assert os.listdir(tmp_path) == ["in"]


def test_nothing_is_written_through_a_link_and_none_leads_out(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "other").mkdir()
    stream = tar_of(
        (member("p/q", kind=b"5"), b""),
        (member("p/q/s", kind=b"2", target="../.."), b""),
        (member("p/q/t", kind=b"2", target="s/.."), b""),
        (member("fine", kind=b"2", target="p"), b""),
    )
    assert received(stream, tmp_path / "in").left_out == ("p/q/t",)
    assert sorted(os.listdir(tmp_path / "in")) == ["fine", "p"]
    (tmp_path / "in" / "lead").symlink_to(tmp_path / "other")
    with pytest.raises(TreeRefused):
        received(tar_of((member("lead/x"), b"1")), tmp_path / "in")
    assert os.listdir(tmp_path / "other") == []


def test_a_tree_that_breaks_off_leaves_nothing(tmp_path: Path, hostile: GitClient) -> None:
    (tmp_path / "in").mkdir()

    async def pieces() -> AsyncIterator[bytes]:
        yield packed(hostile.path)[:5000]
        raise ConnectionError

    for place in ("in", "new"):
        with pytest.raises(ConnectionError):
            asyncio.run(receive_tree(pieces(), str(tmp_path / place)))
    assert os.listdir(tmp_path / "in") == []
    assert not (tmp_path / "new").exists()


def bundle_of(client: GitClient, place: Path) -> str:
    client.git("bundle", "create", "-q", str(place), "--all", env={"GIT_CONFIG_COUNT": "0"})
    return str(place)


def test_a_history_comes_without_configuration(
    tmp_path: Path, hostile: GitClient, tripwire: Tripwire
) -> None:
    hostile.git("tag", "v1")
    hostile.git("branch", "other")
    hostile.write("new", b"new\n")
    history = History(bundle=bundle_of(hostile, tmp_path / "b"), head="refs/heads/main")
    out = tmp_path / "out"
    assert received(packed(hostile.path), out, history).left_out == ()
    assert sorted(os.listdir(out)) == [".git", "file", "new"]
    there = GitClient.git(hostile, "for-each-ref")
    assert run_git(out, "for-each-ref") == there
    assert run_git(out, "symbolic-ref", "HEAD") == b"refs/heads/main\n"
    assert run_git(out, "status", "--porcelain") == b"?? new\n"
    assert {
        line.split(b"=")[0] for line in run_git(out, "config", "--local", "--list").split()
    } <= {
        b"core.repositoryformatversion",
        b"core.filemode",
        b"core.bare",
        b"core.logallrefupdates",
    }
    assert not list((out / ".git").glob("hooks/*"))
    assert not tripwire.is_tripped(out)


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
def test_histories_without_a_branch_or_a_commit(tmp_path: Path, object_format: str) -> None:
    client = GitClient(tmp_path / "client", object_format=object_format)
    empty = History(bundle=str(tmp_path / "none"), head="refs/heads/main")
    received(packed(client.path), tmp_path / "empty", empty)
    assert run_git(tmp_path / "empty", "symbolic-ref", "HEAD") == b"refs/heads/main\n"
    client.write("file", b"")
    commit = client.commit()
    client.git("checkout", "-q", "--detach")
    detached = History(bundle=bundle_of(client, tmp_path / "b"), head="")
    received(packed(client.path), tmp_path / "detached", detached)
    assert run_git(tmp_path / "detached", "rev-parse", "HEAD").decode().strip() == commit
    assert run_git(tmp_path / "detached", "status", "--porcelain") == b""


def _cut(bundle: Path) -> str:
    bundle.write_bytes(bundle.read_bytes()[:-30])
    return "refs/heads/main"


def _lead_out(bundle: Path) -> str:
    return "refs/heads/../../../config"


@pytest.mark.parametrize("spoil", [_cut, _lead_out])
def test_a_history_that_is_broken_leaves_nothing(
    tmp_path: Path, hostile: GitClient, spoil: Callable[[Path], str]
) -> None:
    bundle = Path(bundle_of(hostile, tmp_path / "b"))
    with pytest.raises(HistoryBroken):
        received(
            packed(hostile.path), tmp_path / "out", History(bundle=str(bundle), head=spoil(bundle))
        )
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    with pytest.raises(NotNew):
        received(b"", tmp_path / "out", History(bundle=str(bundle), head=""))
