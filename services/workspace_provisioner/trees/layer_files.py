"""Workspaces that are laid over templates: a writable layer and an empty directory where the
sandbox mounts it over what lies below. A note says what any workspace stands on.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.git.command import OverlayMount
from workspace_provisioner.stamps import PackedTags

_MOUNT = "mount.json"
_BLANK = (
    "tree",
    "layer",
    "layer/work",
    "layer/upper",
    "layer/upper/.git",
    "layer/upper/.git/refs",
    "layer/upper/.git/refs/heads",
)


def make_blank(top: Path) -> None:
    """Make the directories of a workspace that is laid over a template, as far as they are not
    there: `layer`, and an empty `tree`; blocking.
    """
    for path in (os.fspath(top), *(f"{top}/{name}" for name in _BLANK)):
        with suppress(FileExistsError):
            os.mkdir(path, 0o755)


def fill_blank(
    top: Path, lower: Sequence[Path], stores: Sequence[Path], commit: str, branch: str
) -> None:
    """Say in a blank what it is laid over and borrows from, and put HEAD on `branch` at `commit`;
    blocking.
    """
    text = _note(lower, stores)
    try:
        _write(f"{top}/layer/{_MOUNT}", text)
    except FileNotFoundError:
        make_blank(top)
        _write(f"{top}/layer/{_MOUNT}", text)
    write_head(f"{top}/layer/upper/.git", commit, branch)


def note_stores(place: Path, stores: Sequence[Path]) -> None:
    """Say of a workspace without layers which stores' objects its git borrows; blocking."""
    place.mkdir(mode=0o755)
    _write(f"{place}/{_MOUNT}", _note((), stores))


def lay_over(place: Path, lower: Sequence[Path]) -> None:
    """Lay a workspace that nobody uses yet over other directories; blocking. Raises OSError."""
    note = read_note(place)
    _write(f"{place}/{_MOUNT}", _note(lower, note.stores if note is not None else ()))


def add_store(place: Path, store: Path) -> None:
    """Say of a workspace that nobody uses yet that its git borrows from one more store; blocking.

    Raises OSError.
    """
    note = read_note(place)
    if note is None:
        note_stores(place, (store,))
    elif store not in note.stores:
        _write(f"{place}/{_MOUNT}", _note(note.lower, (*note.stores, store)))


def _note(lower: Sequence[Path], stores: Sequence[Path]) -> str:
    return json.dumps(
        {"lower": [str(path) for path in lower], "stores": [str(path) for path in stores]}
    )


def write_tags(git_dir: str | Path, tags: PackedTags) -> None:
    """Let a git directory that nobody else sees yet show these tags and no others."""
    _write(f"{os.fspath(git_dir)}/packed-refs", tags.text or "# pack-refs with: sorted \n")


def complete_history(git_dir: str | Path, *, layered: bool) -> None:
    """Take the link of a shallow commit away whose history the store has by now; there is none
    when the history came while the files were being checked out.
    """
    path = f"{os.fspath(git_dir)}/shallow"
    if layered:
        os.mknod(path, stat.S_IFCHR)
    else:
        with suppress(FileNotFoundError):
            os.unlink(path)


def write_head(git_dir: str | Path, commit: str, branch: str) -> None:
    """Put HEAD on a branch at a commit, or detach it there, in a git directory that nobody else
    sees yet.
    """
    top = os.fspath(git_dir)
    if branch:
        ref = f"{top}/refs/heads/{branch}"
        try:
            _write(ref, f"{commit}\n")
        except FileNotFoundError:
            os.makedirs(os.path.dirname(ref), 0o755, exist_ok=True)
            _write(ref, f"{commit}\n")
        _write(f"{top}/HEAD", f"ref: refs/heads/{branch}\n")
    else:
        _write(f"{top}/HEAD", f"{commit}\n")


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Layer:
    """A workspace's layer on disk, or where only its note is: then there is nothing in `lower`.

    `stores` are the object directories that its git borrows from.
    """

    path: Path
    lower: tuple[Path, ...]
    stores: tuple[Path, ...] = ()

    @property
    def upper(self) -> Path:
        """Where its changes are."""
        return self.path / "upper"

    @property
    def template(self) -> Path:
        """The directory of the template right below."""
        return self.lower[0].parent

    def readable(self, target: Path) -> OverlayMount:
        """Return a mount that shows the workspace, also while its sandbox has it mounted, and
        cannot be written.
        """
        return OverlayMount(lower=(self.upper, *self.lower), target=target)

    def copy_note(self, target: Path) -> None:
        """Write the note of what lies below into the directory of a copy."""
        _write(str(target / _MOUNT), _note(self.lower, self.stores))

    def writable(self, target: Path) -> OverlayMount:
        """Return a mount for a layer that nobody else has mounted."""
        return OverlayMount(
            lower=self.lower, target=target, upper=self.upper, work=self.path / "work"
        )


def read_layer(path: Path) -> Layer | None:
    """Read a layer; None when there is none, or its note is not whole."""
    note = read_note(path)
    return note if note is not None and note.lower else None


def read_note(path: Path) -> Layer | None:
    """Read what a workspace stands on, with layers or without; None when the note is not whole."""
    try:
        note = json.loads((path / _MOUNT).read_bytes())
        lower = tuple(Path(each) for each in note["lower"])
        stores = tuple(Path(each) for each in note["stores"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Layer(path, lower, stores)


def used_templates(layout: Layout) -> frozenset[str]:
    """Return the ids of the templates over which workspaces are laid; blocking."""
    found: set[str] = set()
    for name in os.listdir(layout.layers):
        layer = read_layer(layout.layers / name)
        if layer is not None:
            found.update(path.parent.name for path in layer.lower)
    return frozenset(found)
