"""Repositories of any size, made quickly and the same for the same seed."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.local_stack import GIT, Repository
from fairlead.snapshot.v1 import snapshot_pb2

FILES_PER_DIRECTORY = 12
_LINE = 49
CHUNK = 1 << 20


def make_large_repository(path: Path, *, files: int, seed: int, size: int = 4000) -> Repository:
    """Commit `files` text files of about `size` bytes through git-fast-import(1)."""
    numbers = random.Random(seed)  # noqa: S311 - reproducible content, not a secret
    subprocess.run([*GIT, "init", "-q", "-b", "main", str(path)], check=True)
    with subprocess.Popen(
        [*GIT, "-C", str(path), "fast-import", "--quiet"], stdin=subprocess.PIPE
    ) as git:
        assert git.stdin is not None
        git.stdin.writelines(_stream(numbers, files, size))
    assert git.returncode == 0
    subprocess.run([*GIT, "-C", str(path), "reset", "-q", "--hard", "main"], check=True)
    commit = head(path)
    return Repository(path=path, commit=commit, project=commit)


def _stream(numbers: random.Random, files: int, size: int) -> Iterator[bytes]:
    yield b"commit refs/heads/main\ncommitter Bench <bench@example.org> 1700000000 +0000\n"
    yield b"data 4\nseed\n"
    for index in range(files):
        lines = max(1, round(numbers.lognormvariate(0, 0.5) * size / _LINE))
        content = b"".join(b"%048x\n" % numbers.getrandbits(192) for _ in range(lines))
        yield b"M 100644 inline %b\ndata %d\n" % (name(index).encode(), len(content))
        yield content + b"\n"


def name(index: int) -> str:
    """Return the path of a file by its number."""
    return f"d{index // FILES_PER_DIRECTORY:05}/f{index:06}.txt"


def head(path: Path) -> str:
    """Return the commit that is checked out."""
    answer = subprocess.run(
        [*GIT, "-C", str(path), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    return answer.stdout.strip()


def commit_changes(repository: Repository, *, commits: int, seed: int) -> Repository:
    """Change ten files in each of so many new commits."""
    numbers = random.Random(seed)  # noqa: S311
    for number in range(commits):
        for _ in range(10):
            file = repository.path / name(numbers.randrange(500))
            file.write_text(f"{numbers.getrandbits(192):048x}\n" * 40)
        arguments = ["-C", str(repository.path), "commit", "-qam", f"change {seed} {number}"]
        subprocess.run([*GIT, *arguments], check=True)
    return Repository(repository.path, head(repository.path), repository.project)


def thin_pack(repository: Repository, *, against: str = "") -> bytes:
    """Return a pack of what the commit reaches, without what `against` reaches."""
    lines = f"{repository.commit}\n" + (f"^{against}\n" if against else "")
    packed = subprocess.run(
        [*GIT, "-C", str(repository.path), "pack-objects", "--revs", "--thin", "--stdout", "-q"],
        input=lines.encode(),
        capture_output=True,
        check=True,
    )
    return packed.stdout


def source_of(repository: Repository) -> snapshot_pb2.Source:
    """Return what a client says of the repository's clean checkout."""
    return snapshot_pb2.Source(project=repository.project, commit=repository.commit, branch="main")


@dataclass(frozen=True)
class WorktreePeer:
    """The peer: `git worktree add` of a settled repository on the same disk."""

    repository: Repository

    def add(self, place: Path) -> None:
        """Make a worktree with a new branch."""
        arguments = ["worktree", "add", "-q", "-b", place.name, str(place)]
        subprocess.run([*GIT, "-C", str(self.repository.path), *arguments], check=True)

    def remove(self, place: Path) -> None:
        """Take it away with its branch."""
        inside = [*GIT, "-C", str(self.repository.path)]
        subprocess.run([*inside, "worktree", "remove", "--force", str(place)], check=True)
        subprocess.run([*inside, "branch", "-q", "-D", place.name], check=True)
