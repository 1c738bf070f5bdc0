"""The suites of walled sandboxes once more, by a worker without rights: its sandboxes share its
uid, and say so.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.unprivileged import expect_passes

pytestmark = pytest.mark.slow

_SUITES = (
    ("test_isolation.py", "walled or pooled"),
    ("test_walled_workspaces.py", ""),
    ("test_attacks.py", ""),
    ("test_containment.py", "walled"),
    ("test_walled_windows.py", "killed or tenants or dead or burst or ahead"),
    ("test_walls_around_files.py", ""),
    ("test_walls_around_processes.py", ""),
    ("test_walls_around_shared_counts.py", ""),
    ("test_walls_around_the_kernel.py", ""),
)


@pytest.mark.root
@pytest.mark.parametrize(("suite", "chosen"), _SUITES, ids=[name for name, _ in _SUITES])
def test_a_suite_passes(suite: str, chosen: str) -> None:
    expect_passes(Path(__file__).with_name(suite), chosen=chosen)
