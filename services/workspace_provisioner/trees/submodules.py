"""Writes the files of submodules into workspaces, the way `git submodule update` leaves them: a
git directory below `.git/modules`, a `.git` file that names it, HEAD detached.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import quote

from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.errors import CheckoutFailed
from workspace_provisioner.git.command import Git, GitTimedOut, Place
from workspace_provisioner.git.complaints import store_lacks_objects
from workspace_provisioner.git.directory import git_config, make_git_directory
from workspace_provisioner.gitmodules import (
    DIRECTORY_FAULT,
    MOST_BYTES,
    TOO_LARGE_FAULT,
    GitmodulesInvalid,
    Submodule,
    fault_of,
    parse_gitmodules,
)
from workspace_provisioner.origin_errors import SubmodulesInvalid, SubmodulesTooLarge
from workspace_provisioner.origins import Origin
from workspace_provisioner.ports import ObjectsLacking
from workspace_provisioner.sources import ObjectFormat, ProjectKey
from workspace_provisioner.trees.layer_files import add_store, read_layer
from workspace_provisioner.trees.layer_views import opened_view

_FILE = ".gitmodules"
_ENTRY = re.compile(rb"(?P<mode>[0-7]{6}) [a-z]+ (?P<oid>[0-9a-f]+)\t(?P<path>.+)", re.DOTALL)
_REGULAR, _GITLINK = (b"100644", b"100755", b"100664"), b"160000"
_LONGEST_NAME = 200
_MOST_DECLARED = 1000
_PATHS_AT_ONCE = 64
"""Of up to 4,000 bytes: they fit on one command line that the wall takes."""
_UNSYNCED = {"core.fsync": "none", "index.version": "2", "core.checkStat": "minimal"}


class GitSubmodules:
    """Submodules in workspaces of a layout."""

    def __init__(self, *, layout: Layout, git: Git, files: FileWork) -> None:
        self._layout = layout
        self._git = git
        self._files = files

    async def declared(self, key: ProjectKey, commit: str) -> tuple[tuple[Submodule, str], ...]:
        found = (await self._entries(key, commit, _FILE)).get(_FILE)
        if found is None:
            return ()
        mode, oid = found
        if mode not in _REGULAR:
            raise SubmodulesInvalid(fault_of(None) if mode == b"120000" else DIRECTORY_FAULT)
        place = Place(self._layout.store(key))
        if int(await self._output("cat-file", "-s", oid, place=place)) > MOST_BYTES:
            raise SubmodulesInvalid(TOO_LARGE_FAULT)
        content = await self._output("cat-file", "blob", oid, place=place)
        try:
            submodules = parse_gitmodules(content)
        except GitmodulesInvalid as error:
            raise SubmodulesInvalid(str(error)) from error
        if not submodules:
            return ()
        if len(submodules) > _MOST_DECLARED:
            raise SubmodulesTooLarge(f".gitmodules names more than {_MOST_DECLARED}")
        entries = await self._entries(key, commit, *(each.path for each in submodules))
        named = {each.path: each for each in submodules}
        return tuple(
            (submodule, entries[path][1])
            for path, submodule in named.items()
            if path in entries and entries[path][0] == _GITLINK
        )

    async def register(
        self,
        workspace_id: str,
        key: ProjectKey,
        path: str,
        names: tuple[str, ...],
        submodules: Sequence[tuple[Submodule, Origin]],
    ) -> None:
        await self._files.run(self._register, workspace_id, key, path, names, submodules)

    async def check_out(
        self, workspace_id: str, key: ProjectKey, commit: str, path: str, names: tuple[str, ...]
    ) -> None:
        root, git_dir = await self._files.run(self._lay_out, workspace_id, key, commit, path, names)
        place = Place(
            git_dir,
            work_tree=root,
            alternates=(self._layout.store(key) / "objects",),
            config=_UNSYNCED,
        )
        await self._output("read-tree", "-m", "-u", commit, place=place)

    async def _entries(
        self, key: ProjectKey, commit: str, *paths: str
    ) -> dict[str, tuple[bytes, str]]:
        """Return mode and object id of those paths that a commit has."""
        place = Place(self._layout.store(key))
        found = {}
        for start in range(0, len(paths), _PATHS_AT_ONCE):
            some = paths[start : start + _PATHS_AT_ONCE]
            listed = await self._output(
                "ls-tree", "-z", "--full-tree", commit, "--", *some, place=place
            )
            for line in listed.split(b"\0"):
                if entry := _ENTRY.fullmatch(line):
                    oid = entry["oid"].decode("ascii")
                    found[os.fsdecode(entry["path"])] = (entry["mode"], oid)
        return found

    async def _output(self, *arguments: str, place: Place) -> bytes:
        try:
            finished = await self._git.run(*arguments, place=place)
        except GitTimedOut as error:
            raise CheckoutFailed(f"git {error} within its time") from error
        if not finished.succeeded:
            if store_lacks_objects(finished.complaint):
                raise ObjectsLacking
            raise CheckoutFailed(f"git {arguments[0]}")
        return finished.output

    def _require_free(self, workspace_id: str, path: str) -> None:
        """Raise FileExistsError unless a path is absent, or an empty directory in directories."""
        layer = read_layer(self._layout.layers / workspace_id)
        top = self._layout.trees / workspace_id
        with ExitStack() as opened:
            view = opened.enter_context(
                opened_view((layer.upper, *layer.lower) if layer else (top,))
            )
            for part in path.split("/"):
                looked = (view.look(part, each) for each in view.descriptors)
                found = next((each for each in looked if each is not None), None)
                if found is None:
                    return
                below = view.directory(part) if stat.S_ISDIR(found.st_mode) else None
                if below is None:
                    raise FileExistsError(path)
                opened.callback(below.close)
                view = below
            if view.entries():
                raise FileExistsError(path)

    def _top(self, workspace_id: str) -> Path:
        """Return where a workspace's own files are written: its layer, or its tree."""
        layer = read_layer(self._layout.layers / workspace_id)
        return layer.upper if layer else self._layout.trees / workspace_id

    def _register(
        self,
        workspace_id: str,
        key: ProjectKey,
        path: str,
        names: tuple[str, ...],
        submodules: Sequence[tuple[Submodule, Origin]],
    ) -> None:
        git_dir = self._top(workspace_id) / submodule_git_dir(names)
        lines = [_config(key.object_format, path, names).rstrip("\n")]
        for submodule, origin in submodules:
            lines += [
                f"[submodule {_quoted(submodule.name)}]",
                "\tactive = true",
                f"\turl = {_quoted(origin.git_url)}",
            ]
        draft = git_dir / "config.draft"
        draft.write_text("\n".join((*lines, "")), encoding="utf-8")
        draft.chmod(0o644)
        draft.rename(git_dir / "config")

    def _lay_out(
        self, workspace_id: str, key: ProjectKey, commit: str, path: str, names: tuple[str, ...]
    ) -> tuple[Path, Path]:
        top = self._top(workspace_id)
        root, git_dir = top / path, top / submodule_git_dir(names)
        self._require_free(workspace_id, path)
        _make_beneath(top, path)
        _make_beneath(top, os.path.dirname(submodule_git_dir(names)))
        objects = self._layout.store(key) / "objects"
        add_store(self._layout.layers / workspace_id, objects)
        make_git_directory(
            git_dir,
            object_format=key.object_format,
            bare=False,
            alternate=objects,
            commit=commit,
        )
        (git_dir / "config").write_text(_config(key.object_format, path, names), encoding="utf-8")
        link = os.path.relpath(submodule_git_dir(names), path)
        (root / ".git").write_text(f"gitdir: {link}\n", encoding="utf-8")
        return root, git_dir


def submodule_git_dir(names: Sequence[str]) -> str:
    """Return the git directory of a submodule; a name is one directory, so that none can lie
    inside another's.
    """
    return "/".join((".git", *(f"modules/{_directory_name(name)}" for name in names)))


def _directory_name(name: str) -> str:
    quoted = quote(name, safe=" ")
    if len(quoted) > _LONGEST_NAME or quoted.startswith("."):
        return hashlib.sha256(name.encode()).hexdigest()[:40]
    return quoted


def _config(object_format: ObjectFormat, path: str, names: Sequence[str]) -> str:
    text = git_config(object_format, bare=False)
    if names:
        text += f"[core]\n\tworktree = {_quoted(os.path.relpath(path, submodule_git_dir(names)))}\n"
    return text


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _make_beneath(top: Path, path: str) -> None:
    """Make a directory below `top` through real directories only; raises FileExistsError where
    something else is in the way.
    """
    descriptor = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in path.split("/"):
            with suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=descriptor)
            try:
                below = os.open(
                    part,
                    os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC,
                    dir_fd=descriptor,
                )
            except OSError as error:
                if error.errno in (errno.ENOTDIR, errno.ELOOP):
                    raise FileExistsError(path) from error
                raise
            os.close(descriptor)
            descriptor = below
    finally:
        os.close(descriptor)
