"""A stack of its own for a benchmark, and repositories to launch on it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

GIT = ["git", "-c", "user.name=Bench", "-c", "user.email=bench@example.org"]


@dataclass(frozen=True)
class Stack:
    """A running stack: the two addresses of its front door, its key, and its processes' ids."""

    url: str
    grpc: str
    api_key: str
    pids: Mapping[str, int]


@contextmanager
def local_stack(**settings: str) -> Iterator[Stack]:
    """Start a stack in a throw-away state directory on free ports, and stop it."""
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as directory:
        state = Path(directory) / "state"
        environment = os.environ | {"FAIRLEAD_STATE": str(state)} | settings
        devstack = [sys.executable, "-m", "devstack"]
        subprocess.run([*devstack, "up", "--detach"], env=environment, check=True)
        try:
            facts = json.loads((state / "stack.json").read_text())
            key = (state / "api-key").read_text().strip()
            pids = {part["name"]: part["pid"] for part in facts["parts"]}
            yield Stack(url=facts["url"], grpc=facts["grpc"], api_key=key, pids=pids)
        finally:
            subprocess.run([*devstack, "down"], env=environment, check=True)


@dataclass(frozen=True)
class Repository:
    """A repository on disk with what a launch says about it."""

    path: Path
    commit: str
    project: str

    def pack(self) -> bytes:
        """Return a pack of everything that the commit reaches."""
        packed = subprocess.run(
            [*GIT, "-C", str(self.path), "pack-objects", "--revs", "--stdout", "-q"],
            input=f"{self.commit}\n".encode(),
            capture_output=True,
            check=True,
        )
        return packed.stdout


def make_repository(path: Path, *, files: int, seed: int) -> Repository:
    """Commit `files` text files of 4 kB, twelve to a directory, the same for the same seed."""
    numbers = random.Random(seed)  # noqa: S311 - reproducible content, not a secret
    subprocess.run([*GIT, "init", "-q", "-b", "main", str(path)], check=True)
    for index in range(files):
        file = path / f"d{index // 12:04}" / f"f{index:06}.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"{numbers.getrandbits(192):048x}\n" for _ in range(80)))
    subprocess.run([*GIT, "-C", str(path), "add", "-A"], check=True)
    subprocess.run([*GIT, "-C", str(path), "commit", "-qm", f"seed {seed}"], check=True)
    head = subprocess.run(
        [*GIT, "-C", str(path), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    commit = head.stdout.strip()
    return Repository(path=path, commit=commit, project=commit)
