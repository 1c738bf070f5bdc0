"""A library that walls in a child of its own, without anything of a service:
`… PACKAGES SHOWN OWN_UID SCRIPT`.

Prints what the survey is missing, as JSON in one line, then what the script prints; it runs in a
second process behind the walls. Standard library only.
"""

from __future__ import annotations

import json
import os
import sys

packages, shown, own_uid, script = sys.argv[1:]
sys.path.insert(0, packages)

from fairlead_walls.raising import Walls  # noqa: E402
from fairlead_walls.shown_places import outermost  # noqa: E402
from fairlead_walls.survey import survey  # noqa: E402
from fairlead_walls.terms import Terms  # noqa: E402

FIRST_UID = 0x7100_0000
NOT_HERE = 77


def be_walled(walls: Walls, keep: int) -> int:
    """Wall this process in, run the script in a child, and return how that ended."""
    walls.enter(keep={keep})
    walls.hold_files(1 << 20)
    walls.prepare()
    walls.seal()
    child = os.fork()
    if child == 0:
        try:
            exec(script, {"kept": keep, "shown": shown})  # noqa: S102
        finally:
            sys.stdout.flush()
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    """Survey, wall in and wait."""
    found = survey("", programs=outermost([shown]), first_uid=FIRST_UID, uids=64)
    sys.stdout.write(json.dumps(found.missing) + "\n")
    sys.stdout.flush()
    if not found.stands:
        sys.exit(NOT_HERE)
    terms = Terms.parse(found.terms)
    terms.own_uid = terms.own_uid and own_uid == "1"
    uid = FIRST_UID if terms.own_uid else -1
    kept = os.memfd_create("kept")
    walls = Walls(terms)
    for ahead in (False, True):
        if ahead and not walls.is_begun:
            walls.begin()
        held, go = os.pipe()
        pid = walls.clone(uid=uid)
        if pid == 0:
            try:
                os.close(go)
                os.read(held, 1)
                os._exit(be_walled(walls, kept) & 0xFF)
            finally:
                os._exit(99)
        walls.admit(pid, uid=uid, gid=uid)
        os.write(go, b"1")
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code:
            sys.exit(code)
    sys.stdout.write(f"{os.pread(kept, 100, 0).decode()}\n")


main()
