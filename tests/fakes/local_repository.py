"""A real git repository in a directory, as a user has one; it also takes packs as a host does."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

_ENVIRONMENT = {
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.com",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.com",
}


class LocalRepository:
    """A git repository with its working directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def make(cls, path: Path, *options: str, branch: str = "main") -> LocalRepository:
        """Make an empty one."""
        path.mkdir(parents=True, exist_ok=True)
        made = cls(path)
        made.git("init", "-q", "-b", branch, *options)
        return made

    def git(self, *arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> str:
        """Run git there and give its output without the last line break."""
        return self.git_bytes(*arguments, stdin=stdin, env=env).decode().rstrip("\n")

    def git_bytes(
        self, *arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None
    ) -> bytes:
        """Run git there and give its output."""
        answer = subprocess.run(
            ["git", *arguments],
            cwd=self.path,
            input=stdin,
            capture_output=True,
            check=True,
            env={"PATH": os.environ["PATH"], **_ENVIRONMENT, **(env or {})},
        )
        return answer.stdout

    def write(self, name: str | bytes, content: bytes = b"") -> None:
        """Write a file, with its directories."""
        place = os.path.join(os.fsencode(self.path), os.fsencode(name))
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "wb") as file:
            file.write(content)

    def commit(self, message: str = "a commit") -> str:
        """Commit everything and give the commit's id."""
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def files(self) -> dict[bytes, tuple[str, bytes]]:
        """Give mode and content of every file in the working directory, links as their text."""
        return files_below(self.path)

    def fingerprint(self) -> dict[str, bytes]:
        """Give every file of the git directory but the memo of ours: what must not change."""
        top = self.path / ".git"
        return {
            str(path.relative_to(top)): path.read_bytes()
            for path in top.rglob("*")
            if path.is_file() and path.relative_to(top).parts[0] != "fairlead"
        }

    def receive(self, *packs: bytes) -> None:
        """Take thin packs, as a host does."""
        for pack in packs:
            self.git("index-pack", "--stdin", "--fix-thin", "--strict", stdin=pack)

    def checked_out(self, tree: str, target: Path) -> dict[bytes, tuple[str, bytes]]:
        """Write a tree's files to `target` without any conversion, and give them."""
        target.mkdir()
        env = {"GIT_INDEX_FILE": str(target.with_name(f"{target.name}.index"))}
        self.git("read-tree", tree, env=env)
        raw = ("-c", "core.autocrlf=false", "-c", "core.attributesFile=/dev/null")
        self.git(*raw, f"--work-tree={target}", "checkout-index", "-a", "-q", env=env)
        return files_below(target)


def files_below(top: Path) -> dict[bytes, tuple[str, bytes]]:
    """Give mode and content of every file below a directory, git's own left out."""
    root = os.fsencode(top)
    found: dict[bytes, tuple[str, bytes]] = {}
    for folder, folders, names in os.walk(root):
        if b".git" in folders:
            folders.remove(b".git")
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in [*names, *links]:
            place = os.path.join(folder, name)
            facts = os.lstat(place)
            key = os.path.relpath(place, root)
            if stat.S_ISLNK(facts.st_mode):
                found[key] = ("120000", os.readlink(place))
            elif stat.S_ISREG(facts.st_mode):
                mode = "100755" if facts.st_mode & 0o100 else "100644"
                with open(place, "rb") as file:
                    found[key] = (mode, file.read())
    return found
