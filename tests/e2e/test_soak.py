"""A short soak: whatever is killed, nothing is left; the long one is `make soak TIME=`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
SOAK = (sys.executable, "-m", "loadtests.soak")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("isolation", ["process", "strongest"])
def test_nothing_is_left_of_a_short_soak(isolation: str) -> None:
    words = ["--isolation", "process"] if isolation == "process" else []
    ended = subprocess.run(
        [*SOAK, "--time", "8s", "--seed", "4", *words],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert "nothing is left" in ended.stdout


def test_a_file_that_is_left_fails_it() -> None:
    with tempfile.TemporaryDirectory(prefix="fls-") as place:
        soak = subprocess.Popen(
            [*SOAK, "--time", "4s", "--seed", "4", "--isolation", "process"],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": place},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with soak:
            # Its clients start after it has seen what there was before.
            while not _has_clients(soak.pid):
                assert soak.poll() is None
            (root,) = Path(place).iterdir()
            (root / "host" / "sandboxes" / "left").touch()
            printed, _ = soak.communicate()
    assert soak.returncode == 1, printed
    assert "left: after the rough part: files: host/sandboxes/left" in printed


def _has_clients(pid: int) -> bool:
    for each in psutil.Process(pid).children():
        with suppress(psutil.Error):
            if "loadtests.soak.client" in each.cmdline():
                return True
    return False
