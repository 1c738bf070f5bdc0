"""What a sandbox's first process does with more dead than it can collect at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_SERVICES = Path(__file__).resolve().parents[3] / "services"
_SCRIPT = """
import os, signal, socket, sys
sys.path.insert(0, sys.argv[1])
from chassis.packets import pack
from sandbox_worker.isolation.init import serve

ORPHANS = 300
collected = 0
collect, send = os.wait4, socket.send_fds

def wait4(pid, options):
    global collected
    collected += 1
    return collect(pid, options)

def send_fds(link, packets, descriptors):
    verb = packets[0].split(b"\\0")[0].decode()
    print(verb, collected, flush=True)
    if collected == ORPHANS:
        os._exit(0)
    if verb == "held":
        near.send(pack(b"hold", b"again", b"1", b"1", b"1e12"))
    return send(link, packets, descriptors)

class Tier:
    signals = (signal.SIGCHLD,)

    def enter(self, keep):
        for _ in range(ORPHANS):
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    def prepare(self):
        pass

os.wait4, socket.send_fds = wait4, send_fds
near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
near.send(pack(b"hold", b"first", b"1", b"1", b"1e12"))
serve(far, tier=Tier())
"""


def test_packets_are_served_between_them() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(_SERVICES)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [line.split() for line in done.stdout.splitlines()]
    answers = [int(count) for verb, count in told if verb == "held"]
    assert answers[-1] == 300, "all are collected in the end"
    assert sum(count < 300 for count in answers) >= 4
