"""A program that walls in another one without a worker: `… PACKAGES DIRECTORY OWN_UID ARGUMENT…`.

Prints what the survey of the walls found, as JSON in one line, then what the other program prints.
Standard library only, so that any user's Python can run it.
"""

from __future__ import annotations

import json
import os
import sys

packages, directory, own_uid, *arguments = sys.argv[1:]
sys.path.insert(0, packages)

from fairlead_walls.call_list import compile_call_list  # noqa: E402
from fairlead_walls.raising import Walls  # noqa: E402
from fairlead_walls.terms import Terms  # noqa: E402
from fairlead_walls.trial import survey  # noqa: E402

FIRST_UID = 1_879_048_192
NOT_HERE = 77


def main() -> None:
    """Survey, wall in and wait."""
    found = survey(directory, compile_call_list(), (FIRST_UID, 64), [])
    reasons = found["reasons"]
    assert isinstance(reasons, dict)
    sys.stdout.write(json.dumps(reasons) + "\n")
    sys.stdout.flush()
    missing = {name for name, reason in reasons.items() if reason}
    if missing - {"own_uid", "landlock"}:
        sys.exit(NOT_HERE)
    words = found["terms"]
    assert isinstance(words, list)
    terms = Terms.parse([word.encode() for word in words])
    terms.own_uid = terms.own_uid and own_uid == "1"
    walls = Walls(terms)
    held, go = os.pipe()
    uid = FIRST_UID if terms.own_uid else -1
    pid = walls.clone(uid=uid)
    if pid == 0:
        try:
            os.close(go)
            os.read(held, 1)
            walls.enter()
            walls.hold_files(1 << 20)
            walls.seal()
            environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/sandbox"}
            program = os.posix_spawn(arguments[0], arguments, environment)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]))
        finally:
            os._exit(99)
    walls.admit(pid, uid=uid, gid=uid)
    os.write(go, b"1")
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


main()
