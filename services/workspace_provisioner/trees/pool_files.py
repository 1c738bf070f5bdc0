"""The pool: checkouts made ahead, each of which becomes one workspace by a rename, which exactly
one taker wins, also among processes.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path

from workspace_provisioner.disk.deletion import move_to_trash
from workspace_provisioner.disk.file_disk import boot_id
from workspace_provisioner.disk.host_root import Owners
from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.room import has_room
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.git.checkout import GitCheckouts
from workspace_provisioner.ports import ObjectsLacking, Stores
from workspace_provisioner.sources import ProjectKey
from workspace_provisioner.templates import Template, family, template_id
from workspace_provisioner.trees.template_records import READY, read_ready, ready_text

_UNUSED_SECONDS = 24 * 3600.0


class PoolFiles:
    """The pool below a layout's root."""

    def __init__(
        self,
        *,
        layout: Layout,
        files: FileWork,
        stores: Stores,
        checkouts: GitCheckouts,
        owners: Owners,
    ) -> None:
        self._layout = layout
        self._files = files
        self._stores = stores
        self._checkouts = checkouts
        self._owners = owners
        self._boot = boot_id()

    def take(self, key: ProjectKey, commit: str, staged: Path) -> Template | None:
        """Move an entry of the commit to `staged`; None when there is none. Blocking."""
        return self._take_any(self._layout.pool / template_id(key, commit), staged)

    def take_other(self, key: ProjectKey, staged: Path) -> Template | None:
        """Move an entry of any commit of the project to `staged`; None when there is none.
        Blocking.
        """
        prefix = f"{family(key)}-"
        for name in os.listdir(self._layout.pool):
            if name.startswith(prefix):
                found = self._take_any(self._layout.pool / name, staged)
                if found is not None:
                    return found
        return None

    def _take_any(self, entries: Path, staged: Path) -> Template | None:
        try:
            names = os.listdir(entries)
        except FileNotFoundError:
            return None
        for name in names:
            try:
                (entries / name).rename(staged)
            except OSError:
                continue  # another taker won it
            found = read_ready(staged)
            if found is not None and found[1] == self._boot:
                (staged / READY).unlink()
                return found[0]
            move_to_trash(staged, self._layout.trash)
        return None

    def depth(self, key: ProjectKey, commit: str) -> int:
        """Count the entries of a commit; blocking."""
        try:
            return len(os.listdir(self._layout.pool / template_id(key, commit)))
        except FileNotFoundError:
            return 0

    async def add(self, key: ProjectKey, commit: str) -> bool:
        """Make another entry of a commit, unless the disk has too little room for it."""
        stamp = await self._stores.stamp(key, commit)
        if stamp is None:
            raise ObjectsLacking
        if not await self._files.run(has_room, self._layout):
            return False
        staged = self._layout.staging / self._owners.own_name()
        try:
            tags = self._stores.packed_tags(key)
            contents = await self._checkouts.make(staged, key, commit, idle=True)
            template = Template(
                template_id=template_id(key, commit),
                key=key,
                commit=commit,
                base="",
                under="",
                tree="",
                has_submodules=contents.has_submodules,
                submodules_fault=contents.submodules_fault,
                lfs_pointers=contents.lfs_pointers,
                converts=contents.converts,
                files=contents.files,
                size=contents.size,
                made_at=time.time(),
                grafted=stamp.shallow,
                tags=tags.digest,
                stamp=stamp,
            )
            await self._files.run(self._publish, staged, template)
        finally:
            await self._files.run(move_to_trash, staged, self._layout.trash)
        return True

    def _publish(self, staged: Path, template: Template) -> None:
        # An entry is worth no flush: after a power cut it is made again.
        (staged / READY).write_bytes(ready_text(template, self._boot))
        entries = self._layout.pool / template.template_id
        while True:
            with suppress(FileExistsError):
                os.mkdir(entries, 0o700)
            try:
                staged.rename(entries / secrets.token_hex(8))
            except FileNotFoundError:
                if not staged.exists():
                    raise
                # Somebody who clears up has just taken the directory away.
            else:
                return

    async def refresh(self, key: ProjectKey) -> None:
        """Throw away the entries of a project whose stamps the store does not bear out."""
        await self._files.run(self._refresh, key)

    def _refresh(self, key: ProjectKey) -> None:
        for entry in self._entries(f"{family(key)}-"):
            found = read_ready(entry)
            if found is not None and self._stores.verify(key, found[0].stamp) is not None:
                move_to_trash(entry, self._layout.trash)

    async def collect(self) -> None:
        """Throw away the entries of commits that nobody took for a day, or all when room is
        short.
        """
        await self._files.run(self._collect)

    def _collect(self) -> None:
        is_short = not has_room(self._layout)
        for name in os.listdir(self._layout.pool):
            entries = self._layout.pool / name
            # Another process may clear up as well, and an entry may come at any moment.
            with suppress(FileNotFoundError):
                unused = time.time() - entries.stat().st_mtime
                if is_short or unused > _UNUSED_SECONDS:
                    move_to_trash(entries, self._layout.trash)
                elif not os.listdir(entries):
                    _remove_empty(entries)

    def sweep(self) -> None:
        """Throw away the entries of another boot, which a power cut may have torn; blocking."""
        for entry in self._entries():
            found = read_ready(entry)
            if found is None or found[1] != self._boot:
                move_to_trash(entry, self._layout.trash)

    def _entries(self, prefix: str = "") -> list[Path]:
        """Return the entries of the commits whose template ids begin so."""
        found: list[Path] = []
        for name in os.listdir(self._layout.pool):
            if name.startswith(prefix):
                entries = self._layout.pool / name
                with suppress(FileNotFoundError):
                    found += [entries / each for each in os.listdir(entries)]
        return found


def _remove_empty(directory: Path) -> None:
    try:
        directory.rmdir()
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
