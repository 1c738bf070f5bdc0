"""Runs pytest as a user without rights, as root: `-m tests.fakes.unprivileged ARGUMENT…`.

Where only root may enter the directories of this Python, the user sees them in a mount namespace of
its own.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fairlead_walls import kernel_calls

_NOBODY = 65_534
_ROOT = Path(__file__).resolve().parents[2]


def expect_passes(suite: Path, *, chosen: str = "") -> None:
    """Run the tests of a file that `-k` chooses as that user; they have to pass."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody without rights; the suites run as this user")
    place = tempfile.mkdtemp(prefix="user-")
    os.chown(place, _NOBODY, _NOBODY)
    try:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "tests.fakes.unprivileged"),
                *(str(suite), "-q", "-x", "-rs", "-k", chosen),
                *("-p", "no:cacheprovider", f"--basetemp={place}/t"),
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
        )
    finally:
        shutil.rmtree(place, ignore_errors=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "no walls on this machine" not in done.stdout
    assert " passed" in done.stdout


def _open_up(path: Path) -> None:
    """Let everybody reach a directory, in a mount namespace of this process."""
    for above in reversed(path.parents):
        if not above.stat().st_mode & stat.S_IXOTH:
            shown = kernel_calls.clone_mount(str(path))
            kernel_calls.mount("tmpfs", str(above), 0, "mode=755")
            path.mkdir(parents=True)
            kernel_calls.attach_mount(shown, str(path))
            os.close(shown)
            return


def main() -> None:
    """Give up all rights and run the tests."""
    kernel_calls.unshare(kernel_calls.OWN_MOUNTS)
    kernel_calls.keep_mounts_private()
    for path in {Path(sys.base_prefix), Path(sys.prefix)}:
        _open_up(path.resolve())
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    os.environ["HOME"] = "/nonexistent"
    sys.exit(pytest.main(sys.argv[1:]))


if __name__ == "__main__":
    main()
