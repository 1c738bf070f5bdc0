"""What buffers of bulk leave is there for the next ones, in a process that carries tunnels."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PAGES_OF_ALL = 100 * 8 * 63
_MOVES = """
import resource
from fairlead_tunnel.freed_memory import keep_freed_memory
keeps = keep_freed_memory()
def move():
    for _ in range(100):
        chunks = [bytearray(252 * 1024) for _ in range(8)]
        chunks.clear()
move()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
move()
print(int(keeps), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_what_was_freed_is_not_faulted_in_again() -> None:
    found = subprocess.run([sys.executable, "-c", _MOVES], capture_output=True, check=True)
    keeps, faults = map(int, found.stdout.split())
    if not keeps:
        pytest.skip("this C library keeps what it keeps")
    assert faults < _PAGES_OF_ALL / 100
