"""Finds out whether overlays can be mounted on this host: by mounting one, as the sandboxes do."""

from __future__ import annotations

import shutil
from pathlib import Path

from workspace_provisioner.git.command import Git, OverlayMount, Place
from workspace_provisioner.git.directory import make_git_directory
from workspace_provisioner.sources import ObjectFormat


async def overlay_fault(git: Git, top: Path) -> str:
    """Return why git cannot work through an overlay on the file system of `top`, a new directory;
    empty when it can.

    A file of the lower layer is changed and another one deleted through a mount in a user
    namespace of its own; then both must be seen in the upper layer.
    """
    try:
        _lay_out(top)
        mount = OverlayMount(
            lower=(top / "lower",), target=top / "seen", upper=top / "upper", work=top / "work"
        )
        place = Place(top / "seen/.git", work_tree=top / "seen", overlay=mount)
        cleaned = await git.run("clean", "-ffdq", "gone", place=place)
        if not cleaned.succeeded:
            return cleaned.complaint or "git failed"
        if not _is_whiteout(top / "upper/gone"):
            return "a deleted file leaves no whiteout"
        shown = await git.run(
            "ls-files", "--others",
            place=Place(
                top / "seen/.git",
                work_tree=top / "seen",
                overlay=OverlayMount(lower=(top / "upper", top / "lower"), target=top / "seen"),
            ),
        )  # fmt: skip
        if not shown.succeeded:
            return shown.complaint or "git failed"
        return "" if shown.output == b"kept\n" else "a whiteout hides nothing"
    except OSError as error:
        return str(error)
    finally:
        shutil.rmtree(top, ignore_errors=True)


def _lay_out(top: Path) -> None:
    top.mkdir(mode=0o700)
    for name in ("lower", "upper", "work", "seen"):
        (top / name).mkdir()
    make_git_directory(top / "lower/.git", object_format=ObjectFormat.SHA1, bare=False)
    for name in ("kept", "gone"):
        (top / "lower" / name).write_text(name)


def _is_whiteout(path: Path) -> bool:
    found = path.lstat()
    return found.st_rdev == 0 and (found.st_mode & 0o170000) == 0o020000
