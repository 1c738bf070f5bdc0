"""What walls this machine allows, as whoever raises some asks once, off the path of calls.

Waits for a program of its own (`trial`): for programs that wait, or threads that may.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import dataclass

from fairlead_walls.own_place import OWN_PLACE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from fairlead_walls.trial import main; main()"
)
_OPTIONAL = ("own_uid", "landlock")


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found: `reasons` why each wall does not stand, by name, empty for one that does;
    `first_uid` and `uids` the host uids that sandboxes may be given, none where they cannot have
    their own; `terms` the words by which a zygote builds the walls (Terms.parse).
    """

    reasons: Mapping[str, str]
    first_uid: int
    uids: int
    terms: tuple[bytes, ...]

    @property
    def stands(self) -> bool:
        """Whether walls can be raised: own uids and Landlock may be missing."""
        return not self.reason

    @property
    def own_uid(self) -> bool:
        """Whether each sandbox gets a host uid of its own."""
        return self.uids > 0

    @property
    def missing(self) -> dict[str, str]:
        """Why each wall that does not stand does not, by name."""
        return {name: reason for name, reason in self.reasons.items() if reason}

    @property
    def reason(self) -> str:
        """Why no walls can be raised; empty when they can."""
        return next((why for name, why in self.missing.items() if name not in _OPTIONAL), "")


def survey(directory: str, *, programs: Sequence[str], first_uid: int, uids: int) -> Survey:
    """Raise every wall once, and take them down again; blocking, about 0.2 s.

    Where workspaces of a volume are to be mounted behind walls, `directory` is on its file system;
    otherwise it is empty. `programs` are the directories outside the system's that are shown, as
    `outermost` returns them. The host uids that sandboxes may be given are `uids` from `first_uid`
    on. Raises OSError where no program can be started; a trial that fails is a survey by which
    nothing stands.
    """
    last = _ask([directory, str(first_uid), str(uids), *programs])
    try:
        found = json.loads(last)
    except ValueError:
        return Survey({"private_root": last[-200:] or "its trial was killed"}, 0, 0, ())
    own_uid = not found["reasons"]["own_uid"]
    return Survey(
        reasons=found["reasons"],
        first_uid=first_uid if own_uid else 0,
        uids=uids if own_uid else 0,
        terms=tuple(os.fsencode(word) for word in found["terms"]),
    )


def _ask(words: Sequence[str]) -> str:
    """Run the trial, without this process's environment; returns the last line of what it said,
    which is the cause when it failed.

    posix_spawn(3) works in sub-interpreters as well, where fork(2) may not be.
    """
    told, tell = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-c", _PROGRAM, OWN_PLACE, "--", *words],
            {},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, tell, 1),
                (os.POSIX_SPAWN_DUP2, tell, 2),
            ],
            setsid=True,
        )
    except BaseException:
        os.close(told)
        raise
    finally:
        os.close(tell)
    with os.fdopen(told, encoding="utf-8", errors="replace") as answer:
        said = answer.read()
    with contextlib.suppress(ChildProcessError):  # where SIGCHLD is ignored
        os.waitpid(pid, 0)
    return said.strip().rpartition("\n")[2]
