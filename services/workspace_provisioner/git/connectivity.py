"""Looks whether an upload makes whole what it says: kinds of objects, tags, connectivity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from workspace_provisioner.errors import SnapshotIncomplete
from workspace_provisioner.git.command import Git, GitTimedOut, Place
from workspace_provisioner.git.complaints import first_line
from workspace_provisioner.workspaces import Snapshot


class GitConnectivity:
    """Looks at the objects of an upload, where they wait and borrow from their store."""

    def __init__(self, *, git: Git, seconds: float) -> None:
        self._git = git
        self._seconds = seconds

    async def kinds(self, snapshot: Snapshot, known: Mapping[str, str], place: Place) -> Snapshot:
        """Look that commits are commits and trees are trees, as far as that is not `known`; returns
        the snapshot with what its annotated tags lead to. Raises SnapshotIncomplete.
        """
        tags = [tip.commit for tip in snapshot.tips if tip.ref.startswith("refs/tags/")]
        named = (*snapshot.commits, *filter(None, [snapshot.changes_tree]))
        unknown = tuple(oid for oid in named if oid not in known)
        objects = {**known, **(await self._objects(unknown, place) if unknown else {})}
        annotated = [oid for oid in dict.fromkeys(tags) if objects.get(oid) == "tag"]
        peeled = await self._peeled(annotated, place)
        for oid in snapshot.commits:
            if objects.get(oid) != "commit" and oid not in peeled:
                raise SnapshotIncomplete(f"commit {oid} is not there")
        if snapshot.changes_tree and objects.get(snapshot.changes_tree) != "tree":
            raise SnapshotIncomplete(f"tree {snapshot.changes_tree} is not there")
        return replace(snapshot, tags=tuple(sorted(peeled.items())))

    async def _objects(self, oids: tuple[str, ...], place: Place) -> dict[str, str]:
        found = await self._git.run(
            "cat-file", "--batch-check=%(objectname) %(objecttype)", "--buffer",
            place=place,
            given="".join(f"{oid}\n" for oid in oids).encode(),
        )  # fmt: skip
        lines = found.output.decode("ascii", "replace").splitlines()
        return {oid: kind for oid, _, kind in (line.partition(" ") for line in lines)}

    async def _peeled(self, tags: list[str], place: Place) -> dict[str, str]:
        if not tags:
            return {}
        found = await self._git.run(
            "cat-file", "--batch-check=%(objectname)", "--buffer",
            place=place,
            given="".join(f"{tag}^{{commit}}\n" for tag in tags).encode(),
        )  # fmt: skip
        commits = found.output.decode("ascii", "replace").splitlines()
        return {
            tag: commit
            for tag, commit in zip(tags, commits, strict=False)
            if len(commit) == len(tag)  # else the answer ends in "missing"
        }

    async def parents(self, commits: tuple[str, ...], place: Place) -> Mapping[str, list[str]]:
        """Return what commits say of their parents, whether those are there or not."""
        found = await self._git.run(
            "cat-file", "--batch=%(objectname)", "--buffer",
            place=place,
            given="".join(f"{oid}\n" for oid in commits).encode(),
        )  # fmt: skip
        parents: dict[str, list[str]] = {}
        commit, in_header = "", False
        for line in found.output.decode("utf-8", "replace").split("\n"):
            if line in commits and not in_header:
                commit, in_header = line, True
                parents[commit] = []
            elif in_header and line.startswith("parent "):
                parents[commit].append(line.removeprefix("parent "))
            elif not line:
                in_header = False
        return parents

    async def walk(self, snapshot: Snapshot, known: frozenset[str], place: Place) -> None:
        """Walk what is new, as git itself does after a fetch (connected.c): all that it reaches
        must exist, down to the commits in `known`. Raises SnapshotIncomplete.
        """
        roots = (*snapshot.commits, *(tag for tag, _ in snapshot.tags))
        given = [f"{oid}\n" for oid in (*roots, *filter(None, [snapshot.changes_tree]))]
        given += [f"^{oid}\n" for oid in known]
        try:
            walked = await self._git.run(
                "rev-list", "--objects", "--stdin", "--quiet",
                place=place,
                given="".join(given).encode(),
                seconds=self._seconds,
            )  # fmt: skip
        except GitTimedOut:
            raise SnapshotIncomplete("git took too long to walk its objects") from None
        if not walked.succeeded:
            raise SnapshotIncomplete(first_line(walked.complaint))
