"""`fairlead session diagnose` on a whole stack."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

from tests.e2e.running_stack import RunningStack
from tests.fakes.git_client import GitClient


def test_a_session_connects_and_says_so_until_the_gateway_is_gone(
    fresh_stack: RunningStack, tmp_path: Path
) -> None:
    laptop = GitClient(tmp_path / "laptop")
    laptop.write("file", b"one\n")
    laptop.commit()
    launched = fresh_stack.cli("launch", str(laptop.path))
    assert launched.returncode == 0, launched.stderr

    works = fresh_stack.cli("session", "diagnose", "--probes", "3", "--hold", "0.2")
    assert works.returncode == 0, works.stdout
    assert "connection" in works.stdout
    for carrier in ("tcp", "websocket", "stream", "poll", "webrtc"):
        assert re.search(rf"^carrier {carrier} +works", works.stdout, re.MULTILINE), works.stdout

    # Stopped, not killed: the supervisor starts a dead gateway again.
    gateway = fresh_stack.pids["relay-gateway"]
    os.kill(gateway, signal.SIGSTOP)
    try:
        fails = fresh_stack.cli("session", "diagnose", launched.stdout.strip(), "-o", "json")
    finally:
        os.kill(gateway, signal.SIGCONT)
    assert fails.returncode in (69, 124), fails.stdout
    checks = json.loads(fails.stdout)["checks"]
    (fault,) = [check for check in checks if "reason" in check]
    assert (fault["check"], fault["reason"]) in {
        ("offer", "gateway_timeout"),
        ("offer", "gateway_not_ready"),
        ("session", "gateway_unavailable"),
    }
    assert fault["remedy"]
