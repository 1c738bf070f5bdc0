"""Where the mounts of a workspace go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead_walls import kernel_calls
from sandbox_worker.isolation import binding


def test_a_place_that_the_workspace_covered_is_made_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attached: list[tuple[int, str]] = []

    def attach(mount: int, path: str | bytes) -> None:
        if not os.path.isdir(path):
            raise FileNotFoundError(path)
        attached.append((mount, os.fsdecode(path)))

    monkeypatch.setattr(kernel_calls, "attach_mount", attach)
    monkeypatch.setattr(binding, "WORKSPACE", str(tmp_path))
    store = tmp_path / "host/objects"
    binding.bind_workspace({"target": [b"/w"], "store": [os.fsencode(store)]}, [7, 8], -1)
    assert attached == [(7, str(tmp_path)), (8, str(store))]
