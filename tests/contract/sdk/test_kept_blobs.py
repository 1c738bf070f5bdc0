"""Large changed files: read and sent once, however often they are launched."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead_limits.table import CHANGES_BYTES
from fairlead_sdk.git import start_git
from fairlead_sdk.kept_blobs import KeptBlobs
from fairlead_sdk.packs import stream_pack
from fairlead_sdk.repository import Repository, read_repository
from tests.fakes.local_repository import LocalRepository

SIZE = 3 * CHANGES_BYTES.count


class Reading:
    """Reads the repository, and says how many bytes of large changes it read for it."""

    def __init__(self, repository: LocalRepository) -> None:
        self._repository = repository
        self.size = 0

    def __call__(self) -> Repository:
        self.size = 0

        def take(done: int, _total: int) -> None:
            self.size = done

        return read_repository(self._repository.path, on_read=take)

    def settle(self) -> None:
        """Read until no file is of the tick of the clock in which it was read."""
        while True:
            self().close()
            if not self.size:
                return


@pytest.fixture
def reading(repository: LocalRepository) -> Reading:
    repository.write("large", os.urandom(SIZE))
    return Reading(repository)


@pytest.fixture
def host(repository: LocalRepository, tmp_path: Path) -> LocalRepository:
    """What a host has of the repository: its commit."""
    repository.git("clone", "-q", "--bare", "--no-local", ".", str(tmp_path / "host"))
    return LocalRepository(tmp_path / "host")


def tree_of(repository: Repository) -> str:
    assert repository.changes is not None
    return repository.changes.tree


def upload(repository: Repository, *, sent: tuple[str, ...] = ()) -> bytes:
    return b"".join(stream_pack(repository, host_tips=(repository.commit,), sent=sent))


def blobs_of(repository: Repository) -> tuple[str, ...]:
    assert repository.changes is not None
    assert repository.changes.make_objects is not None
    return repository.changes.make_objects().blobs


def test_what_has_not_changed_is_neither_read_nor_sent_again(
    repository: LocalRepository, reading: Reading, host: LocalRepository, tmp_path: Path
) -> None:
    first = reading()
    assert reading.size == SIZE
    host.receive(upload(first))
    sent = blobs_of(first)
    first.close()
    reading.settle()
    again = reading()
    assert (tree_of(again), reading.size) == (tree_of(first), 0)
    again.close()
    repository.write("small", b"new")
    more = reading()
    assert tree_of(more) != tree_of(first)
    assert reading.size <= 3
    pack = upload(more, sent=sent)
    assert len(pack) < 2000
    host.receive(pack)
    assert host.checked_out(tree_of(more), tmp_path / "out") == repository.files()
    whole = upload(more)
    assert len(whole) > SIZE
    more.close()


def rewrite(path: Path) -> None:
    path.write_bytes(os.urandom(SIZE))


def replace(path: Path) -> None:
    path.with_name("other").write_bytes(os.urandom(SIZE))
    path.with_name("other").rename(path)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


@pytest.mark.parametrize("change", [rewrite, replace, grow])
def test_a_change_is_seen_whatever_its_size_and_time(
    repository: LocalRepository,
    reading: Reading,
    host: LocalRepository,
    tmp_path: Path,
    change: Callable[[Path], None],
) -> None:
    reading.settle()
    path = repository.path / "large"
    for number in range(3):
        facts = path.stat()
        change(path)
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        found = reading()
        host.receive(upload(found))
        out = tmp_path / f"out{number}"
        assert host.checked_out(tree_of(found), out) == repository.files()
        found.close()


def test_objects_of_a_known_tree_are_made_when_a_host_lacks_them(
    repository: LocalRepository, reading: Reading, host: LocalRepository, tmp_path: Path
) -> None:
    reading.settle()
    shutil.rmtree(repository.path / ".git/fairlead/blobs")
    found = reading()
    assert reading.size == 0
    host.receive(upload(found))
    assert reading.size == SIZE
    assert host.checked_out(tree_of(found), tmp_path / "out") == repository.files()
    found.close()


def test_where_nothing_can_be_kept_launches_work(
    repository: LocalRepository, reading: Reading, host: LocalRepository, tmp_path: Path
) -> None:
    (repository.path / ".git/fairlead").write_text("in the way")
    for _ in range(2):
        found = reading()
        assert reading.size == SIZE
        host.receive(upload(found))
        found.close()
    assert host.checked_out(tree_of(found), tmp_path / "out") == repository.files()


def test_a_full_disk_is_no_reason_to_fail(
    repository: LocalRepository,
    reading: Reading,
    host: LocalRepository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*arguments: str, **more: object) -> subprocess.Popen[bytes]:
        environment = more.get("environment")
        assert isinstance(environment, dict)
        if "/.git/fairlead/" in environment["GIT_DIR"]:
            limited = ("sh", "-c", 'ulimit -f 1; exec git "$@"', "git", *arguments)
            return subprocess.Popen(
                limited,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **environment},
            )
        return start_git(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("fairlead_sdk.kept_blobs.start_git", full)
    found = reading()
    host.receive(upload(found))
    assert host.checked_out(tree_of(found), tmp_path / "out") == repository.files()
    assert not list((repository.path / ".git/fairlead/blobs").iterdir())
    found.close()


_KILLED = """
import os, signal, sys
from fairlead_sdk.repository import read_repository
read_repository(sys.argv[1], on_read=lambda *_: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_a_client_that_was_killed_leaves_nothing_for_good(
    repository: LocalRepository, reading: Reading, host: LocalRepository
) -> None:
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(repository.path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    blobs = repository.path / ".git/fairlead/blobs"
    (left,) = blobs.iterdir()
    found = reading()
    assert reading.size == SIZE
    host.receive(upload(found))
    found.close()
    os.utime(left, (1, 1))
    repository.write("small", b"new")
    reading().close()
    assert not left.exists()


def test_what_was_sent_is_known_by_front_door(tmp_path: Path) -> None:
    kept = KeptBlobs(git_directory=tmp_path)
    kept.learn_uploaded("one", ["a", "b"])
    kept.learn_uploaded("one", ["c"])
    assert kept.uploaded("one") == {"a", "b", "c"}
    assert kept.uploaded("two") == frozenset()
    kept.forget_uploaded("one")
    assert kept.uploaded("one") == frozenset()
