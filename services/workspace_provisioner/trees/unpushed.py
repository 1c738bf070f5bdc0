"""Looks with git whether one repository of a workspace holds work that is nowhere else: files that
differ from its HEAD, or commits. Git sees a fresh git directory, never the workspace's own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from workspace_provisioner.git.command import LITERAL_PATHS, Git, Place
from workspace_provisioner.workspace_errors import WorkspaceDirty, WorkspaceUnpushed

log = logging.getLogger(__name__)

OWN_INDEX = "index.own"
"""The index of the workspace itself, in the git directory that git sees."""
_MOST_TIPS = 100
_MOST_OUTPUT = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What is elsewhere too: the store's durable tips and tags, and the default branch's commit."""

    tips: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    default: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is looked at, for the messages: a workspace, or its submodule at a path."""

    workspace_id: str
    submodule: str = ""

    def dirty(self) -> WorkspaceDirty:
        """Return the error of work that is not committed."""
        return WorkspaceDirty(self.workspace_id, submodule=self.submodule)

    def unpushed(self, detail: str) -> WorkspaceUnpushed:
        """Return the error of commits that may be nowhere else."""
        return WorkspaceUnpushed(self.workspace_id, detail, submodule=self.submodule)


class GitUnpushed:
    """The looks at one repository, each of which raises WorkspaceDirty or WorkspaceUnpushed."""

    def __init__(self, *, git: Git) -> None:
        self._git = git

    async def check_files(
        self,
        subject: Subject,
        head: str,
        place: Place,
        *,
        reads: bool,
        paths: Sequence[str] | None = None,
    ) -> None:
        """Compare files and staged changes with HEAD; `reads` says that the index in `place` is
        not HEAD's. With `paths`, files elsewhere than there and below are known to be HEAD's.
        """
        if reads:
            # Entries that are the same in the commit keep what is known of their files.
            arguments = ("-m", "-i", head) if head else ("--empty",)
            found = await self._git.run("read-tree", *arguments, place=place)
            if not found.succeeded:
                log.warning("HEAD not read", extra={"complaint": found.complaint[-500:]})
                raise subject.unpushed("its HEAD cannot be read")
        own_index = place.git_dir / OWN_INDEX
        if head != "" and own_index.exists():
            # What was staged may be in no file; an index that cannot be read may hold anything.
            own = replace(place, index=own_index, work_tree=None, overlay=None, variables={})
            found = await self._git.run(
                "diff-index", "--cached", "--quiet", "--ignore-submodules=none", head, place=own
            )
            if not found.succeeded:
                raise subject.dirty()
        if paths is not None and not paths:
            return
        async with self._git.started(
            "status", "--porcelain", "-z", "--no-renames", "--untracked-files=normal",
            "--ignore-submodules=all", "--", *(paths or ()),
            place=replace(place, variables={**place.variables, **LITERAL_PATHS}),
            complaints=asyncio.subprocess.DEVNULL,
        ) as process:  # fmt: skip
            assert process.stdout is not None  # noqa: S101 - it was asked for
            if await process.stdout.read(1):
                raise subject.dirty()
            if await process.wait() != 0:
                raise subject.unpushed("its files cannot be compared")

    async def check_tips(
        self,
        subject: Subject,
        alone: Mapping[str, str],
        place: Place,
        elsewhere: Elsewhere,
        remotes: frozenset[str],
    ) -> None:
        """Look whether all that tips reach is elsewhere too; `alone` are their refs by commit."""
        bare = replace(place, work_tree=None, overlay=None, index=None, variables={})
        if not alone or await self._is_reached(bare, alone, elsewhere, remotes):
            return
        if len(alone) > _MOST_TIPS:
            raise subject.unpushed(f"it has {len(alone)} other tips")
        for oid, ref in alone.items():
            is_elsewhere = len(alone) > 1 and await self._is_reached(
                bare, (oid,), elsewhere, remotes
            )
            if not is_elsewhere and not await self._is_squashed(bare, oid, elsewhere.default):
                raise subject.unpushed(f"{ref} is not pushed")

    async def _is_reached(
        self, place: Place, tips: Collection[str], known: Elsewhere, remotes: frozenset[str]
    ) -> bool:
        """Say whether all commits that tips reach are elsewhere too."""
        for others in (known.tips | remotes, known.tips):
            given = "".join(f"{line}\n" for line in (*tips, *(f"^{oid}" for oid in others)))
            found = await self._git.run(
                "rev-list", "--max-count=1", "--stdin", place=place, given=given.encode()
            )
            if found.succeeded:
                return not found.output
        return False

    async def _is_squashed(self, place: Place, tip: str, default: str) -> bool:
        """Say whether every path that the tip changed is the same in the default branch."""
        if not default:
            return False
        found = await self._git.run("merge-base", default, tip, place=place)
        base = found.output.decode("ascii", "replace").strip()
        if not found.succeeded or not base:
            return False
        changed = await self._differences(place, base, tip)
        merged = await self._differences(place, base, default)
        if not changed or merged is None:
            return False
        return all(merged.get(path) == entry for path, entry in changed.items())

    async def _differences(self, place: Place, old: str, new: str) -> dict[bytes, bytes] | None:
        """Return the paths in which two commits differ, with mode and object in the newer one."""
        found = await self._git.run(
            "diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", old, new, place=place
        )
        if not found.succeeded or len(found.output) > _MOST_OUTPUT:
            return None
        parts = found.output.split(b"\0")[:-1]
        entries: dict[bytes, bytes] = {}
        for described, path in zip(parts[::2], parts[1::2], strict=True):
            _, mode, _, oid, _ = described.split(b" ")
            entries[path] = mode + b" " + oid
        return entries
