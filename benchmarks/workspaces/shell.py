"""What a person at a shell waits for: a fresh `fairlead launch` of a dirty checkout over a
wide-area link, until the first byte.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.local_stack import Repository, Stack
from benchmarks.recording import QUICK
from benchmarks.workspaces.front import dirty
from benchmarks.workspaces.link import Link

RUNS = 3 if QUICK else 15
LARGE_BYTES = 10_000_000 if QUICK else 100_000_000
_FAIRLEAD = str(Path(sys.executable).with_name("fairlead"))


class Shell:
    """A laptop with a state directory of its own, and one front door behind a link."""

    def __init__(self, *, stack: Stack, link: Link, state: Path) -> None:
        self._environment = {
            **os.environ,
            "FAIRLEAD_URL": f"http://{link.address}",
            "FAIRLEAD_API_KEY": stack.api_key,
            "FAIRLEAD_STATE": str(state),
            "XDG_RUNTIME_DIR": str(state),
            "XDG_STATE_HOME": str(state),
        }
        state.mkdir(mode=0o700, exist_ok=True)

    def launch(self, repository: Repository, *, agent: bool, changed: bool = True) -> float:
        """Time one launch, of a checkout that has changed since the last one or not; its changes
        must have arrived with it.
        """
        if changed:
            dirty(repository)
        environment = self._environment | {"FAIRLEAD_AGENT": "1" if agent else "0"}
        start = time.perf_counter()
        with subprocess.Popen(
            [_FAIRLEAD, "launch", str(repository.path), "--", "cat", "made.txt"],
            env=environment,
            stdout=subprocess.PIPE,
            bufsize=0,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            first = process.stdout.read(1)
            elapsed = time.perf_counter() - start
            rest, complaint = process.communicate()
        assert process.returncode == 0, complaint
        assert first + rest == (repository.path / "made.txt").read_bytes(), complaint
        return elapsed

    def stop_agent(self) -> None:
        """End the background agent: it is the one of the launches' own environment."""
        environment = self._environment | {"FAIRLEAD_AGENT": "1"}
        stopped = subprocess.run(
            [_FAIRLEAD, "agent", "--stop"], env=environment, capture_output=True, check=True
        )
        assert b"The agent was stopped." in stopped.stdout, stopped
