"""Looks for work in the submodules of a workspace: checked out ones, nested ones, and git
directories that stayed behind when their submodule went.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.git.command import Git, Place
from workspace_provisioner.trees.layer_views import opened_view
from workspace_provisioner.trees.refs import RefsUnreadable
from workspace_provisioner.trees.repositories import (
    MOST_REPOSITORIES,
    Parts,
    RepositoryRefs,
    SubmodulePlace,
    read_refs,
    recorded_submodules,
    shown,
    submodule_place,
)
from workspace_provisioner.trees.stand_ins import StandIn, elsewhere_of
from workspace_provisioner.trees.submodules import submodule_git_dir
from workspace_provisioner.trees.unpushed import Elsewhere, GitUnpushed, Subject
from workspace_provisioner.workspaces import PlacedSubmodule, Workspace

_GITLINK = b"\0\0\xe0\0"
"""The mode of a recorded submodule in an index; see gitformat-index(5)."""
_MOST_INDEXES = 256 * 1024 * 1024


@dataclass(slots=True)
class Inspected:
    """A workspace whose submodules are looked at: its layers, the topmost first, where git sees its
    files, and the git directories of submodules that are still to be looked at.
    """

    workspace: Workspace
    layers: Sequence[Path]
    place: Place
    staged: Path
    modules: set[Parts]
    made: int = 0
    index_bytes: int = 0

    def subject(self, path: Parts) -> Subject:
        """Return what errors say of a submodule."""
        return Subject(self.workspace.workspace_id, shown(path))


class UnsavedSubmodules:
    """The look at the submodules of workspaces below a layout's host root."""

    def __init__(self, *, layout: Layout, git: Git, files: FileWork, unpushed: GitUnpushed) -> None:
        self._layout = layout
        self._git = git
        self._files = files
        self._unpushed = unpushed

    async def check(self, found: Inspected) -> None:
        """Raises WorkspaceDirty and WorkspaceUnpushed, with the submodule's path."""
        placed = {submodule_parts(each.names): each for each in found.workspace.submodules}
        await self._check_below(found, found.place, (), placed)
        for git_dir in sorted(found.modules):
            path = placed[git_dir].path.split("/") if git_dir in placed else git_dir[2:]
            subject = found.subject(tuple(path))
            refs = await self._read(found, git_dir, subject)
            await self._check_tips(found, git_dir, refs, subject, placed.get(git_dir))

    async def _check_below(
        self, found: Inspected, place: Place, above: Parts, placed: Mapping[Parts, PlacedSubmodule]
    ) -> None:
        """Look at the submodules that are recorded in the index of `place`."""
        assert place.index is not None  # noqa: S101 - every place here has one
        index = await self._files.run(place.index.read_bytes)
        if _GITLINK not in index:
            return
        listed = await self._git.run("ls-files", "--stage", "-z", place=place)
        if not listed.succeeded:
            raise found.subject(above).unpushed("its index cannot be read")
        for below, recorded in recorded_submodules(listed.output).items():
            path = (*above, *below)
            inner = await self._check_one(found, path, recorded, placed)
            if inner is not None:
                await self._check_below(found, inner, path, placed)

    async def _check_one(
        self, found: Inspected, path: Parts, recorded: str, placed: Mapping[Parts, PlacedSubmodule]
    ) -> Place | None:
        """Look at one place; returns where git sees it when a submodule is checked out there."""
        subject = found.subject(path)
        there = await self._look(found, path, subject)
        git_dir = there.git_dir
        if git_dir is None:
            if there.has_files:
                raise subject.dirty()
            return None
        refs = await self._read(found, git_dir, subject)
        if refs.head.commit != recorded:
            raise subject.dirty()
        found.modules.discard(git_dir)
        place = await self._check_tips(found, git_dir, refs, subject, placed.get(git_dir))
        place = replace(
            place,
            work_tree=found.place.work_tree,
            overlay=found.place.overlay,
            variables={"GIT_WORK_TREE": f"{found.place.work_tree}/{'/'.join(path)}"},
        )
        await self._unpushed.check_files(subject, recorded, place, reads=True)
        return place

    async def _check_tips(
        self,
        found: Inspected,
        git_dir: Parts,
        refs: RepositoryRefs,
        subject: Subject,
        placed: PlacedSubmodule | None,
    ) -> Place:
        """Look at all commits of a git directory; returns where git sees it, without files."""
        key, known = found.workspace.key, Elsewhere()
        store = None
        if placed is not None:
            store = self._layout.store(replace(key, project=placed.project))
            there = await self._files.run(elsewhere_of, store)
            known = replace(there, tips=there.tips | {placed.commit})
        stand_in = StandIn(key.object_format, refs.head.commit, store, None, reads_own=True)
        path = await self._files.run(self._make, found, git_dir, stand_in)
        lenders = (store / "objects",) if store is not None else ()
        place = Place(path, index=path / "index", alternates=lenders)
        alone = refs.alone(known.tips | known.tags)
        await self._unpushed.check_tips(subject, alone, place, known, refs.remotes)
        return place

    def _make(self, found: Inspected, git_dir: Parts, stand_in: StandIn) -> Path:
        found.made += 1
        path = found.staged / f"submodule-{found.made}"
        with opened_view(found.layers) as top:
            found.index_bytes += stand_in.make(path, top, git_dir)
        if found.made > MOST_REPOSITORIES or found.index_bytes > _MOST_INDEXES:
            raise RefsUnreadable("it has too many submodules")
        return path

    async def _look(self, found: Inspected, path: Parts, subject: Subject) -> SubmodulePlace:
        def look() -> SubmodulePlace:
            with opened_view(found.layers) as top:
                return submodule_place(top, path)

        with _unreadable(subject):
            return await self._files.run(look)

    async def _read(self, found: Inspected, git_dir: Parts, subject: Subject) -> RepositoryRefs:
        def read() -> RepositoryRefs:
            with opened_view(found.layers) as top:
                return read_refs(top, git_dir, found.workspace.key.object_format)

        with _unreadable(subject):
            return await self._files.run(read)


@contextmanager
def _unreadable(subject: Subject) -> Iterator[None]:
    try:
        yield
    except RefsUnreadable as error:
        raise subject.unpushed(f"its git directory cannot be read ({error})") from None


def submodule_parts(names: Sequence[str]) -> Parts:
    """Return where the git directory of a submodule is that this host initialised."""
    return tuple(submodule_git_dir(names).split("/"))
