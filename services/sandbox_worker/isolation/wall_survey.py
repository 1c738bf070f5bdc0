"""What walls this machine allows, as the worker asks once when it starts."""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
from collections.abc import Sequence
from pathlib import Path

from fairlead_walls.shown_places import can_be_shown, outermost
from fairlead_walls.survey import Survey, survey
from sandbox_worker.sandbox import Wall

log = logging.getLogger(__name__)

_INTERPRETERS = ("python3", "python", "node")


async def survey_walls(directory: Path, *, path: str, first_uid: int, uids: int) -> Survey:
    """Raise every wall once, on the file system of `directory`; `path` is PATH inside sandboxes,
    whose directories outside the system's are shown there too. The host uids that sandboxes may be
    given are `uids` from `first_uid` on.
    """
    places = program_places(path, directory)
    found = await asyncio.to_thread(
        survey, str(directory), programs=places, first_uid=first_uid, uids=uids
    )
    if not found.terms:
        log.error("the walls of sandboxes cannot be tried", extra={"cause": found.reason})
    elif found.missing:
        log.info("walls of sandboxes are missing", extra={"missing": found.missing})
    return found


def walls_of(found: Survey) -> tuple[Wall, ...]:
    """Return the walls as the host announces them."""
    return tuple(
        Wall(name, stands=not reason, reason=reason) for name, reason in found.reasons.items()
    )


def program_places(path: str, root: Path) -> Sequence[str]:
    """Return the directories outside the system's that programs of `path` need, outermost only.

    Of `<place>/bin` that is `<place>`, but never a home directory, one that holds the host's volume
    or one that cannot be shown: of those it is the programs' directory alone. Where an interpreter
    there is a link to another place, that one too. What cannot be shown is left out, and said in
    the log.
    """
    wanted: set[str] = set()
    for entry in filter(os.path.isabs, path.split(":")):
        if not os.path.isdir(entry):
            continue
        wanted.add(_place(os.path.normpath(entry), root))
        for name in _INTERPRETERS:
            program = os.path.join(entry, name)
            if os.path.islink(program):
                wanted.add(_place(os.path.dirname(os.path.realpath(program)), root))
    hidden = sorted(place for place in wanted if not can_be_shown(place))
    if hidden:
        log.warning("programs cannot be shown in sandboxes", extra={"places": hidden})
    return outermost(wanted.difference(hidden))


def _place(directory: str, root: Path) -> str:
    parent, name = os.path.split(directory)
    kept = {"/", *(entry.pw_dir.rstrip("/") for entry in pwd.getpwall())}
    volume = str(root.resolve())
    holds_volume = f"{volume}/".startswith(f"{parent}/")
    if name not in ("bin", "sbin") or parent in kept or holds_volume or not can_be_shown(parent):
        return directory
    return parent
