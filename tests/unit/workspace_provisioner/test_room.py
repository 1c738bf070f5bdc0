"""When a disk has room for what is only prepared."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.room import has_room


def disk(
    *, blocks: int, free: int, usable: int, inodes: int = 1000, free_inodes: int = 1000
) -> os.statvfs_result:
    """A file system of which `usable` of `free` blocks are not reserved."""
    return os.statvfs_result(
        (4096, 4096, blocks, free, usable, inodes, free_inodes, free_inodes, 0, 255)
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (disk(blocks=1000, free=101, usable=101), True),
        (disk(blocks=1000, free=100, usable=100), False),
        # Most of it is reserved: of the 300 that may be used, 60 are free.
        (disk(blocks=1000, free=760, usable=60), True),
        (disk(blocks=1000, free=760, usable=20), False),
        (disk(blocks=1000, free=900, usable=900, free_inodes=100), False),
        (disk(blocks=1000, free=900, usable=900, inodes=0, free_inodes=0), True),
        (disk(blocks=0, free=0, usable=0), True),
    ],
)
def test_a_tenth_of_what_may_be_used_has_to_be_free(
    found: os.statvfs_result, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    assert has_room(Layout(tmp_path)) is expected


def test_only_its_user_can_enter_what_sandboxes_write(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.layers.mkdir(mode=0o755)
    layout.make()
    for path in (layout.trees, layout.layers, layout.root):
        assert path.stat().st_mode & 0o777 == 0o700
