"""Makes git directories by hand: a handful of small files instead of two or three git processes."""

from __future__ import annotations

import os
from pathlib import Path

from workspace_provisioner.sources import ObjectFormat


def git_config(object_format: ObjectFormat, *, bare: bool) -> str:
    """Return the whole configuration of a git directory of ours."""
    is_sha1 = object_format is ObjectFormat.SHA1
    lines = [
        "[core]",
        f"\trepositoryformatversion = {0 if is_sha1 else 1}",
        "\tfilemode = true",
        f"\tbare = {str(bare).lower()}",
    ]
    if bare:
        lines += [
            "\thooksPath = /dev/null",
            "[receive]",
            "\tfsckObjects = true",
            "[transfer]",
            "\tfsckObjects = true",
        ]
    else:
        # A mount or a user namespace may show other owners, inodes and change times than the index
        # holds; then every status would hash every file.
        lines += ["\tlogAllRefUpdates = true", "\tcheckStat = minimal"]
    lines += ["[gc]", "\tauto = 0", "[maintenance]", "\tauto = false"]
    if not is_sha1:
        lines += ["[extensions]", f"\tobjectFormat = {object_format}"]
    return "\n".join(lines) + "\n"


def make_git_directory(
    path: Path,
    *,
    object_format: ObjectFormat,
    bare: bool,
    alternate: Path | None = None,
    branch: str = "",
    commit: str = "",
) -> None:
    """Make a git directory without hooks, templates or remotes that borrows objects from
    `alternate`.

    HEAD is `branch` at `commit`, or detached at `commit`, or an unborn branch when there is
    neither. See gitrepository-layout(5).
    """
    path.mkdir(mode=0o755)
    for name in ("objects", "objects/info", "objects/pack", "refs", "refs/heads"):
        (path / name).mkdir(mode=0o755)
    _write(path / "config", git_config(object_format, bare=bare))
    if alternate is not None:
        _write(path / "objects/info/alternates", f"{alternate}\n")
    if not commit:
        _write(path / "HEAD", "ref: refs/heads/unborn\n")
    elif not branch:
        _write(path / "HEAD", f"{commit}\n")
    else:
        _write(path / "HEAD", f"ref: refs/heads/{branch}\n")
        ref = path / "refs/heads" / branch
        if "/" in branch:
            ref.parent.mkdir(mode=0o755, parents=True)
        _write(ref, f"{commit}\n")


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
