"""Every benchmark still runs to its end, and measures what was recorded of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.relay import bulk, goose, peers
from benchmarks.relay.go_program import can_be_built
from benchmarks.relay.ours import pumps
from benchmarks.sessions.channels import installed

from tests.openssh import sshd_program

HERE = Path(__file__).parents[2] / "benchmarks"
NAMES = sorted(file.stem for file in (HERE / "recorded").glob("*.json"))
OF_SSHD = {"warm_ssh_rtt_ratio", "warm_ssh_rtt_ratio_p99"}
OF_BWRAP = {"bwrap_p50_ms", "forked_vs_bwrap", "pooled_vs_bwrap"}
OF_NATIVE = {
    "channel_mb_per_s_up",
    "channel_mb_per_s_down",
    "channel_mb_per_s_92ms",
    "native_ping_64b_p50_us",
}
OF_THE_MACHINE = {
    "idle_sandbox_mb",
    "native_memory_mb_1000_sessions",
    "python_memory_mb_1000_sessions",
}
"""What other programs of the machine change by more than a quick run does: a number is enough."""

OF_ROOT = "92ms"
OF_A_SEALED_PEER = "_vs_best_peer"
OF_SLOWER_PEERS = "_vs_chisel_frp_rathole_min"
TUNNELS = ("socat", "chisel", "frp_tls", "rathole_noise", "wstunnel_wss")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_every_benchmark_has_a_recording() -> None:
    runnable = {
        file.parent.name if file.stem == "__main__" else file.stem
        for file in (*HERE.glob("*.py"), *HERE.glob("*/__main__.py"))
        if "Recording(" in file.read_text() and file.stem != "recording"
    }
    assert runnable == set(NAMES)


def is_absent(figure: str) -> bool:
    """Say whether this machine lacks what a figure of tunnels is measured with."""
    here = {peer.name: peer.is_encrypted for peer in peers.installed([])}
    if figure.startswith(tuple(f"{name}_" for name in TUNNELS if name not in here)):
        return True
    if figure.startswith("native_") and "native" not in pumps():
        return True
    if ("goose" in figure or "_http_" in figure) and not goose.goose_path([]):
        return True
    if OF_A_SEALED_PEER in figure and not any(here.values()):
        return True
    if figure.endswith(OF_SLOWER_PEERS) and not here.keys() & set(bulk.OUTRUN):
        return True
    return bool(os.geteuid()) and OF_ROOT in figure


@pytest.mark.parametrize("name", NAMES)
def test_it_measures_everything_quickly(name: str) -> None:
    if name == "relay" and not can_be_built():
        pytest.skip("the load tool is built with go, which is not here")
    ended = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}"],
        cwd=HERE.parent,
        env={**os.environ, "QUICK": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    measured = json.loads((HERE / "out" / "quick" / f"{name}.json").read_text())
    assert measured["quick"] is True
    recorded = json.loads((HERE / "recorded" / f"{name}.json").read_text())
    absent = OF_SSHD if sshd_program() is None else set()
    absent |= OF_BWRAP if shutil.which("bwrap") is None else set()
    stacks = {stack.name for stack in installed([])}
    absent |= OF_NATIVE if "native" not in stacks else set()
    others = tuple(f"{name}_" for name in {"pion", "node_datachannel"} - stacks)
    for kind in ("metrics", "peers"):
        for figure in recorded[kind].keys() - absent:
            if "extradite" in figure and not os.environ.get("EXTRADITE_PATH"):
                continue
            # What nobody could measure yet is recorded as None, with a note.
            if recorded[kind][figure] is None or figure.startswith(others):
                continue
            if name == "relay" and is_absent(figure):
                continue
            value = measured[kind][figure]
            if figure in OF_THE_MACHINE:
                assert isinstance(value, float), figure
                continue
            assert value == 0 if figure.endswith("_failures") else value > 0, figure
