"""The git repository around a path, found as git finds it but without a git process.

Only the plain case is answered: a repository of SHA-1 objects that the user owns, with refs in
files and no extension. Everything else raises `Unsure`, and git is asked instead.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from fairlead_sdk.refs_reader import HEADS, Heads, Unsure, object_id, read_heads

_DISCOVERY = ("GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM", "SUDO_UID")
_FALSE = frozenset({"false", "no", "off", "0"})
_LONGEST_CONFIG_BYTES = 256 * 1024


class GitPlace:
    """Where the repository is and what HEAD names; `branch` is empty when HEAD is detached."""

    def __init__(self, *, top: str, prefix: str, git_directory: str, common_directory: str) -> None:
        self.top = top
        self.prefix = prefix
        self.git_directory = git_directory
        self.common_directory = common_directory
        self.heads: Heads = read_heads(common_directory)
        self.commit, self.branch = _head(git_directory, self.heads)

    def has_moved(self) -> bool:
        """Say whether HEAD names another commit or branch by now, or what only git can tell."""
        try:
            with open(f"{self.git_directory}/HEAD", "rb") as file:
                content = file.read(4096).rstrip(b"\n")
            named = f"ref: refs/heads/{self.branch}" if self.branch else self.commit
            if content != os.fsencode(named):
                return True
            if not self.branch:
                return False
            try:
                with open(f"{self.common_directory}/refs/heads/{self.branch}", "rb") as file:
                    return object_id(file.read(4096)).decode("ascii") != self.commit
            except FileNotFoundError:
                heads = read_heads(self.common_directory)
                return _head(self.git_directory, heads) != (self.commit, self.branch)
        except (OSError, Unsure):
            return True


def find_place(path: str, *, environment: Mapping[str, str]) -> GitPlace:
    """Find the repository around the directory `path`; raises `Unsure`."""
    if any(name in environment for name in _DISCOVERY):
        raise Unsure("an environment that changes how repositories are found")
    try:
        start = os.path.realpath(path, strict=True)
        top, git_directory = _around(start)
        shared = _shared(git_directory)
        _require_plain_configuration(shared)
    except (OSError, UnicodeDecodeError) as error:
        raise Unsure(str(error)) from error
    if os.path.lexists(f"{shared}/shallow"):
        raise Unsure("a shallow repository")
    return GitPlace(
        top=top,
        prefix="" if start == top else os.path.relpath(start, top),
        git_directory=git_directory,
        common_directory=shared,
    )


def _around(start: str) -> tuple[str, str]:
    """Give the top of the working directory, and its git directory."""
    if "\n" in start:
        raise Unsure("a path with a line break")
    device = os.stat(start).st_dev
    place = start
    while True:
        found = os.stat(place)
        if found.st_dev != device:
            raise Unsure("another file system")
        dot_git = os.path.join(place, ".git")
        if os.path.lexists(dot_git):
            _require_own(place, dot_git)
            return place, _git_directory(place, dot_git)
        if os.path.exists(os.path.join(place, "HEAD")):
            raise Unsure("perhaps a bare repository")
        if place == "/":
            raise Unsure("no repository")
        place = os.path.dirname(place)


def _git_directory(place: str, dot_git: str) -> str:
    if os.path.islink(dot_git):
        raise Unsure("a link instead of a git directory")
    if os.path.isdir(dot_git):
        return dot_git
    with open(dot_git, encoding="utf-8") as file:
        text = file.read(4096)
    if not text.startswith("gitdir: "):
        raise Unsure("a .git file of another kind")
    directory = os.path.realpath(os.path.join(place, text[8:].rstrip("\r\n")), strict=True)
    _require_own(directory)
    return directory


def _shared(git_directory: str) -> str:
    try:
        with open(f"{git_directory}/commondir", encoding="utf-8") as file:
            text = file.read(4096).rstrip("\r\n")
    except FileNotFoundError:
        shared = git_directory
    else:
        shared = os.path.realpath(os.path.join(git_directory, text), strict=True)
    if not (os.path.isdir(f"{shared}/objects") and os.path.isdir(f"{shared}/refs")):
        raise Unsure("a git directory without objects or refs")
    return shared


def _require_own(*paths: str) -> None:
    owner = os.geteuid()
    if any(os.lstat(path).st_uid != owner for path in paths):
        raise Unsure("somebody else's repository")


def _require_plain_configuration(shared: str) -> None:
    """Refuse a repository whose configuration may make it another one than it looks like."""
    with open(f"{shared}/config", encoding="utf-8") as file:
        text = file.read(_LONGEST_CONFIG_BYTES + 1)
    if len(text) > _LONGEST_CONFIG_BYTES or "\\\n" in text:
        raise Unsure("a configuration that only git reads")
    section = ""
    for line in map(str.strip, text.split("\n")):
        if not line or line[0] in "#;":
            continue
        if line[0] == "[":
            section = _section(line)
        elif section == "core":
            name, _, value = line.partition("=")
            _require_plain_value(name.strip().lower(), value.strip().lower())


def _section(line: str) -> str:
    name, bracket, rest = line[1:].partition("]")
    section = name.split(None, 1)[0].lower() if name.strip() else ""
    if not bracket or section.split(".")[0] in {"extensions", "include", "includeif"}:
        raise Unsure("extensions")
    if rest.strip():
        raise Unsure("a value on the line of its section")
    return section


def _require_plain_value(name: str, value: str) -> None:
    match name:
        case "repositoryformatversion" if value not in {"0", "1"}:
            raise Unsure("another format of repository")
        case "bare" if value not in _FALSE:
            raise Unsure("a bare repository")
        case "worktree":
            raise Unsure("a working directory elsewhere")


def _head(git_directory: str, heads: Heads) -> tuple[str, str]:
    """Give the commit and the branch that HEAD names."""
    path = os.fsencode(git_directory) + b"/HEAD"
    try:
        if os.path.islink(path):
            raise Unsure("a HEAD of the old kind")
        with open(path, "rb") as file:
            content = file.read(4096)
    except OSError as error:
        raise Unsure(str(error)) from error
    if not content.startswith(b"ref: "):
        return object_id(content).decode("ascii"), ""
    name = content[5:].rstrip(b"\n")
    commit = heads.commits.get(name)
    if commit is None or name in heads.links:
        raise Unsure("a HEAD that names no plain head")
    return commit.decode("ascii"), os.fsdecode(name[len(HEADS) :])
