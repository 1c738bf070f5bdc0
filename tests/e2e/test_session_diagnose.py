"""`fairlead session diagnose` on a whole stack."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.e2e.running_stack import RunningStack
from tests.fakes.git_client import GitClient

pytestmark = pytest.mark.slow


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
    faults = [check for check in checks if "reason" in check]
    assert all(fault["remedy"] for fault in faults)
    found = {fault["check"]: fault["reason"] for fault in faults}
    # Where signalling has noticed it already, nothing else is tried.
    if found != {"session": "gateway_unavailable"}:
        lost = {"gateway_timeout", "gateway_not_ready", "gateway_gone", "gateway_unavailable"}
        assert found.pop("offer") in lost, faults
        names = ("tcp", "websocket", "stream", "poll")
        assert {found[f"carrier_{name}"] for name in names} <= {"carrier_failed", *lost}, faults
        assert found["carrier_tcp"] == "carrier_failed", faults
