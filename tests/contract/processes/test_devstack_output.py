"""`python -m devstack` whose reader leaves, as `head` does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_reader_that_leaves_is_no_fault_of_ours(form: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "devstack", "doctor", "-o", form]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")
