"""The suites of walled sandboxes once more, by a worker without rights: its sandboxes share its
uid, and say so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

_NOBODY = 65_534
_ROOT = Path(__file__).resolve().parents[3]
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
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody without rights; the suites run as this user")
    place = tempfile.mkdtemp(prefix="without-rights-")
    os.chown(place, _NOBODY, _NOBODY)
    try:
        done = subprocess.run(
            [
                sys.executable, "-m", "tests.fakes.unprivileged", str(_NOBODY),
                str(Path(__file__).with_name(suite)), "-q", "-x", "-rs", "-k", chosen,
                "-p", "no:cacheprovider", f"--basetemp={place}/t",
            ],
            cwd=_ROOT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(str, (_ROOT, _ROOT / "services"))),
                "TMPDIR": place,
            },
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
    finally:
        shutil.rmtree(place, ignore_errors=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "no walls on this machine" not in done.stdout
    assert " passed" in done.stdout
