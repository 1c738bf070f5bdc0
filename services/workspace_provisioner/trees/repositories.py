"""Finds the repositories of a workspace from outside: its own, and those of its submodules, checked
out or not. All of it is hostile files, which are read without git; see gitsubmodules(7).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workspace_provisioner.sources import ObjectFormat
from workspace_provisioner.trees.layer_views import View
from workspace_provisioner.trees.refs import GitRefs, Head, RefsUnreadable

_MOST_DIRECTORIES = 10_000
MOST_REPOSITORIES = 256
"""Submodules of a workspace that are looked at."""
_LINK_BYTES = 4096

Parts = tuple[str, ...]
"""The names that lead from the top of a workspace to one of its directories."""


@dataclass(frozen=True, slots=True)
class RepositoryRefs:
    """What a git directory says; `remotes` are the commits that its remotes are known to have."""

    head: Head
    tips: Mapping[str, str]
    remotes: frozenset[str]

    def alone(self, elsewhere: frozenset[str]) -> dict[str, str]:
        """Return the tips, each with its ref, that neither `elsewhere` nor the remotes have."""
        known = elsewhere | self.remotes | {""}
        return {oid: shown([ref]) for ref, oid in self.tips.items() if oid not in known}


def read_refs(top: View, git_dir: Parts, object_format: ObjectFormat) -> RepositoryRefs:
    """Read a git directory's HEADs, branches, tags, stash and remotes; raises RefsUnreadable."""
    refs = GitRefs(top=top, object_format=object_format, git_dir=git_dir)
    head = refs.head()
    tips = {**refs.below("tags"), **refs.linked_heads()}
    tips |= {"HEAD": head.commit, **refs.below("heads")}
    stash = refs.commit("refs/stash")
    if stash:
        tips["refs/stash"] = stash
    return RepositoryRefs(head, tips, frozenset(refs.below("remotes").values()))


def module_directories(top: View) -> set[Parts]:
    """Return the git directories below `.git/modules`, those of nested submodules too; raises
    RefsUnreadable when there is too much to look at.
    """
    found: set[Parts] = set()
    pending: list[Parts] = [(".git", "modules")]
    looked = 0
    while pending:
        parts = pending.pop()
        looked += 1
        if looked > _MOST_DIRECTORIES or len(found) >= MOST_REPOSITORIES:
            raise RefsUnreadable("it has too many submodules")
        with top.below(parts) as view:
            if view is None:
                continue
            entries = view.entries()
            if "HEAD" in entries and "objects" in entries:
                found.add(parts)
                pending.append((*parts, "modules"))
                continue
            for name, descriptor in entries.items():
                looked_at = view.look(name, descriptor)
                if looked_at is not None and stat.S_ISDIR(looked_at.st_mode):
                    pending.append((*parts, name))
    return found


@dataclass(frozen=True, slots=True)
class SubmodulePlace:
    """What is where a submodule is recorded: files, and a git directory if there is one."""

    has_files: bool
    git_dir: Parts | None


def submodule_place(top: View, path: Parts) -> SubmodulePlace:
    """Look at the place of a submodule; raises RefsUnreadable when its git directory is not in the
    workspace, or cannot be told.
    """
    with top.below(path) as view:
        if view is None:
            return SubmodulePlace(_is_there(top, path), None)
        entries = view.entries()
        if ".git" not in entries:
            return SubmodulePlace(bool(entries), None)
        found = view.look(".git", entries[".git"])
        if found is not None and stat.S_ISDIR(found.st_mode):
            return SubmodulePlace(True, (*path, ".git"))
        content = view.read((".git",), _LINK_BYTES)
    return SubmodulePlace(True, _linked(path, content or b""))


def _is_there(top: View, path: Parts) -> bool:
    """Say whether something that is no directory is at a path."""
    with top.below(path[:-1]) as parent:
        return parent is not None and path[-1] in parent.entries()


def _linked(path: Parts, content: bytes) -> Parts:
    """Return the git directory that a `.git` file names; only one inside the workspace counts."""
    text = os.fsdecode(content).rstrip("\n")
    target = text.removeprefix("gitdir: ")
    parts: list[str] = list(path)
    if target == text or target.startswith("/"):
        raise RefsUnreadable("its `.git` leads nowhere")
    for part in target.split("/"):
        if part == "..":
            if not parts:
                raise RefsUnreadable("its `.git` leads out of the workspace")
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return tuple(parts)


def recorded_submodules(listed: bytes) -> dict[Parts, str]:
    """Return the submodules, by path, with the commits that are recorded for them, of what
    `git ls-files --stage -z` prints.
    """
    found: dict[Parts, str] = {}
    for entry in listed.split(b"\0"):
        if entry.startswith(b"160000 "):
            described, _, path = entry.partition(b"\t")
            oid = described.split(b" ")[1].decode("ascii")
            found[tuple(os.fsdecode(path).split("/"))] = oid
    return found


def shown(parts: Sequence[str]) -> str:
    """Return a path as text for a message."""
    return "/".join(parts).encode("utf-8", "replace").decode("utf-8")[:200]
