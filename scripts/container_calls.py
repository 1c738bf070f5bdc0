"""Write the seccomp profile under which a container engine runs the sandbox-worker; run by
`make settings`, compared by a test.

The worker itself, and the programs in its sandboxes, need what walled programs may call. To build
the walls takes the calls of `BUILDING`, which an engine's default profile refuses. Sandboxes lose
them again: their own filter is narrower (walls/fairlead_walls/call_list.py).
"""

from __future__ import annotations

import errno
import json
from pathlib import Path

from fairlead_walls.call_numbers import allowed, judged

PROFILE = Path(__file__).resolve().parent.parent / "deploy" / "compose" / "sandbox-worker.json"

BUILDING = {
    "unshare": "network, IPC and UTS namespaces of a sandbox",
    "sethostname": "a host name of its own",
    "open_tree": "the system's directories as they are seen inside",
    "mount_setattr": "read-only, without set-uid programs and devices",
    "move_mount": "attach them below the sandbox's root",
    "mount": "the workspace's overlay, /proc and /dev/pts",
    "umount2": "let go of the machine's root",
    "pivot_root": "make the sandbox's root the root",
    "fsopen": "a file system in memory for the root, /tmp and /home",
    "fsconfig": "its size",
    "fsmount": "make it a mount",
}
"""Calls that build walls, each with what it is for; found by leaving each one out."""

_MACHINES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_FAMILIES = (1, 2, 10)
"""UNIX, INET, INET6."""


def profile() -> dict[str, object]:
    """Return the profile in the form that Docker reads."""
    names: set[str] = set()
    for machine in _MACHINES:
        names |= {*allowed(machine), *judged(machine)}
    names -= {"clone3", "socket"}
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "archMap": [{"architecture": name, "subArchitectures": []} for name in _MACHINES.values()],
        "syscalls": [
            {"names": sorted(names), "action": "SCMP_ACT_ALLOW"},
            {"names": sorted(BUILDING), "action": "SCMP_ACT_ALLOW"},
            *(
                {
                    "names": ["socket"],
                    "action": "SCMP_ACT_ALLOW",
                    "args": [{"index": 0, "value": family, "op": "SCMP_CMP_EQ"}],
                }
                for family in _FAMILIES
            ),
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
        ],
    }


def text() -> str:
    """Return the profile as the file holds it."""
    return json.dumps(profile(), indent=2) + "\n"


if __name__ == "__main__":
    PROFILE.parent.mkdir(exist_ok=True)
    PROFILE.write_text(text())
