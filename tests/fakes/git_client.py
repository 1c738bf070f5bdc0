"""A client's side of a launch, done with git itself: repositories, thin packs, packs of changes."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from workspace_provisioner.sources import Changes, Source, checked_source

_ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.com",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.com",
}


def run_git(
    cwd: Path, *arguments: str, given: bytes = b"", env: Mapping[str, str] | None = None
) -> bytes:
    """Run git in `cwd` and return its output; a failure raises CalledProcessError."""
    return subprocess.run(
        ["git", *arguments],
        cwd=cwd,
        env={**_ENVIRONMENT, **(env or {})},
        input=given,
        capture_output=True,
        check=True,
    ).stdout


def run_script(cwd: Path, script: str) -> bytes:
    """Run a shell script in `cwd`, whose git knows no other configuration; returns its output."""
    return subprocess.run(
        ["sh", "-ec", script], cwd=cwd, env=_ENVIRONMENT, capture_output=True, check=True
    ).stdout


class GitClient:
    """A repository on a laptop."""

    def __init__(self, path: Path, *, object_format: str = "sha1") -> None:
        self.path = path
        self.object_format = object_format
        path.mkdir(parents=True)
        self._dates = 1_700_000_000
        self.git("init", "-q", "-b", "main", f"--object-format={object_format}")

    def copied(self, path: Path) -> GitClient:
        """Return a copy of the repository at `path`, which goes its own way."""
        shutil.copytree(self.path, path, symlinks=True)
        found = copy.copy(self)
        found.path = path
        return found

    def git(
        self, *arguments: str, given: bytes = b"", env: Mapping[str, str] | None = None
    ) -> bytes:
        """Run git in the repository and return its output."""
        return run_git(self.path, *arguments, given=given, env=env)

    def write(self, name: str | bytes, content: bytes, *, executable: bool = False) -> Path:
        """Write a file of the working directory; `name` may be bytes that are no text."""
        path = Path(os.fsdecode(os.path.join(os.fsencode(self.path), os.fsencode(name))))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755 if executable else 0o644)
        return path

    def commit(self, message: str = "change") -> str:
        """Commit everything and return the commit; each one is a second younger than the last."""
        self._dates += 1
        date = {"GIT_AUTHOR_DATE": f"{self._dates} +0000"}
        date["GIT_COMMITTER_DATE"] = f"{self._dates} +0000"
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message, env=date)
        return self.head()

    def head(self) -> str:
        """Return the commit of HEAD."""
        return self.git("rev-parse", "HEAD").decode().strip()

    def changes_tree(self) -> str:
        """Return a tree with every file as it is, the user's index left alone."""
        index = self.path / ".git/changes-index"
        index.unlink(missing_ok=True)
        env = {"GIT_INDEX_FILE": str(index)}
        attributes = self.path / ".git/info/attributes"
        attributes.parent.mkdir(exist_ok=True)
        attributes.write_text("* -text -ident -filter !eol !working-tree-encoding\n")
        self.git("read-tree", "HEAD", env=env)
        self.git("add", "-A", env=env)
        attributes.unlink()
        return self.git("write-tree", env=env).decode().strip()

    def pack(self, wanted: Sequence[str], having: Sequence[str] = ()) -> bytes:
        """Make a thin pack with all that `wanted` reach and `having` do not."""
        revisions = "".join([f"{each}\n" for each in wanted] + [f"^{each}\n" for each in having])
        return self.git(
            "pack-objects", "--revs", "--thin", "--stdout", "--delta-base-offset", "-q",
            given=revisions.encode(),
        )  # fmt: skip

    def source(
        self,
        *,
        tenant: str = "ada",
        project: str = "project",
        branch: str = "main",
        changes: Changes | None = None,
        digest: str = "",
    ) -> Source:
        """Return the checked source of HEAD."""
        return checked_source(
            tenant=tenant,
            project=project,
            object_format=self.object_format,
            commit=self.head(),
            branch=branch,
            digest=digest,
            changes=changes,
        )

    def dirty(self, *, inline: bool = True) -> Changes:
        """Return the working directory's changes, with their pack or without."""
        tree = self.changes_tree()
        return Changes(tree, self.pack([tree], [self.head()]) if inline else b"")


def listing(root: Path) -> dict[bytes, tuple[str, bytes]]:
    """Return every file below `root` but `.git`: kind with exec bit, and content or target."""
    found: dict[bytes, tuple[str, bytes]] = {}
    base = os.fsencode(root)
    for directory, names, files in os.walk(base):
        names[:] = [name for name in names if not (directory == base and name == b".git")]
        for name in [*files, *(n for n in names if os.path.islink(os.path.join(directory, n)))]:
            path = os.path.join(directory, name)
            relative = os.path.relpath(path, base)
            if os.path.islink(path):
                found[relative] = ("link", os.readlink(path))
            else:
                kind = "executable" if os.stat(path).st_mode & 0o111 else "file"
                with open(path, "rb") as stream:
                    found[relative] = (kind, stream.read())
    return found
