"""Writes checkouts with git: files, a git directory of their own, and a settled index."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fairlead_limits.table import CHANGES_BYTES
from workspace_provisioner.disk.layout import Layout, shallow_mark
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.errors import CheckoutFailed, PackInvalid
from workspace_provisioner.git.command import Finished, Git, GitTimedOut, OverlayMount, Place
from workspace_provisioner.git.complaints import (
    FORGIVEN,
    first_line,
    pack_is_at_fault,
    pack_lacks_objects,
    store_lacks_objects,
)
from workspace_provisioner.git.content import GitContent
from workspace_provisioner.git.directory import make_git_directory
from workspace_provisioner.git.index import Contents, IndexUnreadable, settle, settle_layer
from workspace_provisioner.git.pack_caps import MOST_INLINE_BYTES, check_pack
from workspace_provisioner.ports import ObjectsLacking, Stores
from workspace_provisioner.sources import Changes, ProjectKey, Tip

log = logging.getLogger(__name__)

CHANGES_PACK = "changes.pack"
_ATTRIBUTES = b".gitattributes"
# Those of a git directory outrank those of the content (gitattributes(5)).
_VERBATIM = "* -text -ident -filter !crlf !eol !working-tree-encoding\n"
# Paths by attributes with which git writes other bytes than the object holds.
_CONVERTED = (
    (":(attr:eol=crlf)", ":(attr:ident)"),
    (".", ":(exclude,attr:!working-tree-encoding)"),
)
FileAt = tuple[str, str]
"""What is at a path of a tree: mode (six octal digits) and id of the object."""
_FEW_OBJECTS = 100
_FILE_MODES = ("100644", "100755")
# A power cut ends the sandbox too, so the workspace's own objects need not survive one.
_CONFIG = {
    "checkout.workers": "2",
    "core.fsync": "none",
    "pack.threads": "1",
    "index.version": "2",
    "core.checkStat": "minimal",
}


class GitCheckouts:
    """Makes and moves checkouts of a layout's stores. A checkout is a directory with `tree` and
    `baseline`.
    """

    def __init__(
        self, *, layout: Layout, git: Git, files: FileWork, content: GitContent, stores: Stores
    ) -> None:
        self._layout = layout
        self._git = git
        self._files = files
        self._content = content
        self._stores = stores

    async def make(
        self, staged: Path, key: ProjectKey, commit: str, *, idle: bool = False
    ) -> Contents:
        """Check a commit out into the new directory `staged`, HEAD detached.

        Raises ObjectsLacking, PackTooLarge and CheckoutFailed; what was made stays.
        """
        await self._content.check_tree(Place(self._layout.store(key)), commit)
        shallow = await self._stores.is_shallow(key, commit)
        packed = packed_tags(await self._stores.tags(key))
        await self._files.run(self._lay_out, staged, key, commit, packed, shallow)
        tree = staged / "tree"
        place = replace(self._place(tree / ".git", key), work_tree=tree, idle=idle)
        await self.read_tree(place, "-m", "-u", commit)
        return await self._files.run(settled, tree, staged / "baseline", key)

    async def advance(self, staged: Path, key: ProjectKey, old: str, commit: str) -> Contents:
        """Move a checkout to another commit."""
        tree = staged / "tree"
        place = replace(self._place(tree / ".git", key), work_tree=tree)
        await self._content.check_tree(place, commit)
        await self.read_tree(place, "-m", "-u", old, commit)
        return await self._files.run(settled, tree, staged / "baseline", key)

    async def advance_layer(
        self, key: ProjectKey, mount: OverlayMount, old: str, commit: str, *, idle: bool
    ) -> None:
        """Move what is seen through an overlay to another commit; the difference is in its
        upper layer afterwards.
        """
        place = replace(
            self._place(mount.target / ".git", key),
            work_tree=mount.target,
            overlay=mount,
            idle=idle,
        )
        await self._content.check_tree(Place(self._layout.store(key)), commit)
        await self.read_tree(place, "-m", "-u", old, commit)

    async def differing(self, key: ProjectKey, old: str, commit: str) -> int | None:
        """Count the paths in which two commits differ; None when attributes are among them, so that
        files may differ which the commits have in common: git leaves those alone on the way.
        """
        found = await self._run(
            "diff-tree", "-r", "-z", "--name-only", "--no-renames", old, commit,
            place=Place(self._layout.store(key)),
        )  # fmt: skip
        names = found.split(b"\0")[:-1]
        has_attributes = any(name.rpartition(b"/")[2] == _ATTRIBUTES for name in names)
        return None if has_attributes else len(names)

    async def changed_files(
        self, key: ProjectKey, commit: str, tree: str
    ) -> Mapping[bytes, FileAt]:
        """Return the files of a tree that differ from those of a commit, by path. Raises
        ObjectsLacking, PackTooLarge and CheckoutFailed.
        """
        place = Place(self._layout.store(key))
        await self._content.check_tree(place, tree)
        output = await self._run(
            "diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", commit, tree,
            place=place,
        )  # fmt: skip
        fields = output.split(b"\0")[:-1]
        found = {}
        for said, path in zip(fields[::2], fields[1::2], strict=True):
            _, mode, _, oid, _ = said.decode("ascii").split(" ")
            if mode in _FILE_MODES:
                found[path] = (mode, oid)
        return found

    async def apply(
        self, baseline: Path, tree: Path, key: ProjectKey, commit: str, changes: Changes,
        mount: OverlayMount | None = None, *, converts: bool = False,
        present: Mapping[bytes, FileAt] | None = None,
    ) -> None:  # fmt: skip
        """Write changes over a clean checkout of `commit`, with git.

        The tree of changes holds the client's files byte for byte, so that nothing is converted;
        with `converts`, what the checkout has converted is written anew, and without it the files
        that are `present` are left as they are. The tree's own index stays
        at the commit: what now changes in the files is unstaged or untracked, as at the client.
        `baseline/index` goes along. Raises ObjectsLacking, PackInvalid and CheckoutFailed.
        """
        place = await self.baseline_place(baseline, key, verbatim=True)
        if changes.pack:
            await self._unpack(place, changes.pack, key)
        await self._content.check_tree(place, changes.tree)
        place = replace(
            place,
            work_tree=tree,
            index=baseline / "index",
            overlay=mount,
        )
        if converts:
            await self._undo_conversions(place, key)
        elif present:
            # A merge keeps entries that are as it wants them, and their files.
            entries = [f"{mode} {oid}\t".encode() + path for path, (mode, oid) in present.items()]
            await self._run(
                "update-index", "-z", "--index-info",
                place=place, given=b"".join(each + b"\0" for each in entries),
            )  # fmt: skip
        await self.read_tree(place, "-m", "-u", commit, changes.tree)
        if mount is not None and mount.upper is not None:
            await self._files.run(_settled_changes, mount.upper, baseline / "index", key)

    async def _undo_conversions(self, place: Place, key: ProjectKey) -> None:
        """Write the files of a clean checkout to which attributes apply as their objects are."""
        attributed = replace(place, git_dir=self._layout.store(key))
        entries = b""
        for pathspec in _CONVERTED:
            entries += await self._run("ls-files", "-s", "-z", "--", *pathspec, place=attributed)
        if not entries:
            return
        # Entries that are new in the index know nothing of the files, so that git writes these.
        await self._run("update-index", "-z", "--index-info", place=place, given=entries)
        names = b"".join(
            entry.partition(b"\t")[2] + b"\0"
            for entry in dict.fromkeys(entries.split(b"\0"))
            if entry
        )
        await self._run(
            "checkout-index", "-f", "-u", "-q", "-z", "--stdin", place=place, given=names
        )

    async def _run(self, *arguments: str, place: Place, given: bytes = b"") -> bytes:
        """Run git and return its output; raises ObjectsLacking and CheckoutFailed."""
        try:
            finished = await self._git.run(*arguments, place=place, given=given)
        except GitTimedOut as error:
            raise CheckoutFailed(f"git {error} within its time") from error
        if not finished.succeeded:
            self._fail(f"git {arguments[0]}", finished)
        return finished.output

    async def baseline_place(self, baseline: Path, key: ProjectKey, *, verbatim: bool) -> Place:
        """Return where git works on a baseline: in a bare directory that no workspace reaches; with
        `verbatim` it converts no contents.
        """
        await self._files.run(self._make_baseline_git, baseline, key, verbatim)
        return self._place(baseline / "git", key)

    async def complete_baseline(
        self, baseline: Path, key: ProjectKey, commit: str, tree: str
    ) -> Place:
        """Bring a baseline that stands at the commit to the tree of the changes, once; who is
        interrupted, or does it at the same time in another process, is in nobody's way.
        """
        place = await self.baseline_place(baseline, key, verbatim=bool(tree))
        pack = baseline / CHANGES_PACK
        given = await self._files.run(_read, pack)
        if given is None:
            return place
        if given:
            await self._unpack(place, given, key)
        await self._content.check_tree(place, tree)
        index, draft = baseline / "index", _draft(baseline / "index")
        try:
            await self._files.run(shutil.copy2, index, draft)
            await self.read_tree(replace(place, index=draft), "-i", "-m", commit, tree)
            await self._files.run(draft.rename, index)
            await self._files.run(pack.unlink, missing_ok=True)
        finally:
            await self._files.run(_remove, draft, draft.with_name(f"{draft.name}.lock"))
        return place

    async def read_tree(self, place: Place, *arguments: str) -> None:
        """Run `git read-tree`; raises ObjectsLacking and CheckoutFailed."""
        await self._run("read-tree", *arguments, place=place)

    async def _unpack(self, place: Place, pack: bytes, key: ProjectKey) -> None:
        """Add the objects of changes; nothing is written unless all is well."""
        caps = self._content.caps
        caps = replace(caps, inflated_bytes=min(caps.inflated_bytes, MOST_INLINE_BYTES))
        id_bytes = key.object_format.digits // 2
        await self._files.run(check_pack, pack, caps, id_bytes=id_bytes)
        size = f"--max-input-size={CHANGES_BYTES.count}"
        if int.from_bytes(pack[8:12], "big") <= _FEW_OBJECTS:
            # 4 ms against 9 ms for an index-pack of a dozen objects (measured).
            arguments: tuple[str, ...] = ("unpack-objects", "-q", "--strict", size)
        else:
            arguments = ("index-pack", "--stdin", "--fix-thin", f"--strict={FORGIVEN}", size)
        try:
            finished = await self._git.run(*arguments, place=place, given=pack)
        except GitTimedOut as error:
            raise CheckoutFailed(f"git {error} within its time") from error
        if finished.succeeded:
            return
        if pack_lacks_objects(finished.complaint):
            raise ObjectsLacking
        if pack_is_at_fault(finished.complaint):
            raise PackInvalid(first_line(finished.complaint))
        self._fail(f"git {arguments[0]}", finished)

    def _make_baseline_git(self, baseline: Path, key: ProjectKey, verbatim: bool) -> None:
        """Make a baseline's git directory whole; somebody else may be first."""
        own = baseline / "git"
        if own.exists():
            return
        draft = _draft(own)
        make_git_directory(
            draft,
            object_format=key.object_format,
            bare=True,
            alternate=self._layout.store(key) / "objects",
        )
        if verbatim:
            (draft / "info").mkdir(exist_ok=True)
            (draft / "info/attributes").write_text(_VERBATIM, encoding="ascii")
        try:
            draft.rename(own)
        except OSError:
            shutil.rmtree(draft)
            if not own.exists():
                raise

    def _place(self, git_dir: Path, key: ProjectKey) -> Place:
        borrowed: Sequence[Path] = (self._layout.store(key) / "objects",)
        return Place(git_dir, alternates=borrowed, config=_CONFIG)

    def _fail(self, step: str, finished: Finished) -> None:
        log.warning("git failed", extra={"step": step, "complaint": finished.complaint[-500:]})
        if store_lacks_objects(finished.complaint):
            raise ObjectsLacking
        raise CheckoutFailed(step)

    def _lay_out(
        self, staged: Path, key: ProjectKey, commit: str, packed: str, shallow: bool
    ) -> None:
        staged.mkdir(mode=0o700)
        (staged / "tree").mkdir(mode=0o755)
        (staged / "baseline").mkdir(mode=0o700)
        own = staged / "tree/.git"
        make_git_directory(
            own,
            object_format=key.object_format,
            bare=False,
            alternate=self._layout.store(key) / "objects",
            commit=commit,
        )
        if packed:
            (own / "packed-refs").write_text(packed, encoding="utf-8")
        if shallow:
            (own / "shallow").symlink_to(shallow_mark(self._layout.store(key), commit))


def _settled_changes(upper: Path, index: Path, key: ProjectKey) -> None:
    try:
        settle_layer(upper, index, key.object_format, now=time.time())
    except IndexUnreadable as error:
        raise CheckoutFailed("reading git's index") from error


def _draft(path: Path) -> Path:
    """Return a place beside `path` that nobody else has."""
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}")


def start_baseline(index: Path, baseline: Path) -> None:
    """Let a baseline stand where `index` does, unless it has an index."""
    if (baseline / "index").exists():
        return
    baseline.mkdir(mode=0o700, exist_ok=True)
    draft = _draft(baseline / "index")
    try:
        shutil.copy2(index, draft)
        with suppress(FileExistsError):
            os.link(draft, baseline / "index")
    finally:
        _remove(draft)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def packed_tags(tags: Sequence[Tip]) -> str:
    """Return tags as the text of a `packed-refs` file; empty without tags."""
    lines = "".join(f"{tag.commit} {tag.ref}\n" for tag in sorted(tags, key=lambda tag: tag.ref))
    return f"# pack-refs with: sorted \n{lines}" if lines else ""


def settled(tree: Path, baseline: Path, key: ProjectKey, *, below: Path | None = None) -> Contents:
    """Settle a checkout and copy its index to the baseline, which no workspace reaches."""
    try:
        contents = settle(tree, key.object_format, now=time.time(), below=below)
    except IndexUnreadable as error:
        raise CheckoutFailed("reading git's index") from error
    shutil.copy2(tree / ".git/index", baseline / "index")
    return contents
