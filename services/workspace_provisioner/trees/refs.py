"""Reads HEAD and refs of a workspace's own git directory as hostile files, without git; see
gitrepository-layout(5).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from fairlead_limits.refs import broken_ref_rule
from workspace_provisioner.sources import ObjectFormat
from workspace_provisioner.trees.layer_views import View

_REF_BYTES = 2048
_PACKED_BYTES = 32 * 1024 * 1024
_MOST_REFS = 50_000
_MOST_STEPS = 5
_DEEPEST = 40
_SPACE = " \t\n\v\f\r"
"""What git takes off; Unicode has more of it, and names of refs may hold that."""


class RefsUnreadable(Exception):
    """The git directory is not one whose refs can be told."""


@dataclass(frozen=True, slots=True)
class Head:
    """What HEAD says: the branch, if it names one, and the commit, if there is one."""

    branch: str
    commit: str


class GitRefs:
    """The refs of a git directory below a workspace's top directory."""

    def __init__(
        self, *, top: View, object_format: ObjectFormat, git_dir: Sequence[str] = (".git",)
    ) -> None:
        self._top = top
        self._git_dir = tuple(git_dir)
        self._object_id = re.compile(rf"[0-9a-f]{{{object_format.digits}}}")
        self._packed: dict[str, str] | None = None

    def head(self) -> Head:
        """Return what HEAD says; raises RefsUnreadable."""
        content = self._top.read((*self._git_dir, "HEAD"), _REF_BYTES)
        if content is None:
            raise RefsUnreadable("there is no HEAD")
        return self._said(content)

    def linked_heads(self) -> dict[str, str]:
        """Return what the HEADs of linked worktrees say, by their names; see git-worktree(1)."""
        found: dict[str, str] = {}
        with self._top.below((*self._git_dir, "worktrees")) as view:
            if view is None:
                return found
            for name in view.entries():
                content = view.read((name, "HEAD"), _REF_BYTES)
                if content is not None:
                    found[f"worktrees/{name}/HEAD"] = self._said(content).commit
                if len(found) > _MOST_REFS:
                    raise RefsUnreadable("there are too many worktrees")
        return found

    def commit(self, ref: str) -> str:
        """Return the object id of a ref, and an empty string when there is none."""
        return self._followed(_checked_name(ref))

    def below(self, prefix: str) -> dict[str, str]:
        """Return the refs below `refs/<prefix>/`, by their full names."""
        start = f"refs/{prefix}/"
        found = {ref: oid for ref, oid in self.packed().items() if ref.startswith(start)}
        for ref in self._loose(start.rstrip("/")):
            found[ref] = self._followed(ref)
        return {ref: oid for ref, oid in found.items() if oid}

    def packed(self) -> dict[str, str]:
        """Return what `packed-refs` holds."""
        if self._packed is None:
            content = self._top.read((*self._git_dir, "packed-refs"), _PACKED_BYTES)
            self._packed = self._parsed(content or b"")
        return self._packed

    def _said(self, content: bytes) -> Head:
        text = _text(content)
        if not text.startswith("ref:"):
            return Head("", self._checked(text))
        ref = _target(text)
        branch = ref.removeprefix("refs/heads/") if ref.startswith("refs/heads/") else ""
        return Head(branch, self.commit(ref))

    def _followed(self, ref: str) -> str:
        for _ in range(_MOST_STEPS):
            content = self._top.read((*self._git_dir, *ref.split("/")), _REF_BYTES)
            if content is None:
                return self.packed().get(ref, "")
            text = _text(content)
            if not text.startswith("ref:"):
                return self._checked(text)
            ref = _checked_name(_target(text))
        raise RefsUnreadable("a ref leads nowhere")

    def _parsed(self, content: bytes) -> dict[str, str]:
        found = {}
        for line in os.fsdecode(content).split("\n"):
            if not line or line[0] in "#^":
                continue
            oid, _, ref = line.partition(" ")
            found[ref] = self._checked(oid)
        return found

    def _loose(self, prefix: str) -> list[str]:
        found: list[str] = []
        pending = [prefix]
        while pending:
            name = pending.pop()
            with self._top.below((*self._git_dir, *name.split("/"))) as view:
                if view is None:
                    continue
                for child, descriptor in view.entries().items():
                    looked = view.look(child, descriptor)
                    if looked is None or child.endswith(".lock"):
                        continue
                    ref = f"{name}/{child}"
                    if stat.S_ISDIR(looked.st_mode) and ref.count("/") < _DEEPEST:
                        pending.append(ref)
                    elif stat.S_ISREG(looked.st_mode):
                        found.append(ref)
                    else:
                        raise RefsUnreadable("a ref is no file")
            if len(found) + len(pending) > _MOST_REFS:
                raise RefsUnreadable("there are too many refs")
        return found

    def _checked(self, text: str) -> str:
        if not self._object_id.fullmatch(text):
            raise RefsUnreadable("a ref is broken")
        return text


def _checked_name(ref: str) -> str:
    if broken_ref_rule(ref) or not ref.startswith("refs/"):
        raise RefsUnreadable("a ref has no valid name")
    return ref


def _target(text: str) -> str:
    return text.removeprefix("ref:").strip(_SPACE)


def _text(content: bytes) -> str:
    return os.fsdecode(content).strip(_SPACE)
