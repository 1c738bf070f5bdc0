"""Which walls this machine allows around children: asked once, and by trying them."""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import dataclass
from functools import cache

from membrane.errors import IsolationWarning, UnsupportedUse

FIRST_UID, UIDS = 0x7100_0000, 65_536
"""Host uids that walled children of a root process may be given, each one its own."""

_ISOLATIONS = ("walled", "process")


@dataclass(frozen=True, slots=True)
class WallTerms:
    """The words by which a zygote builds the walls, empty where there are none: `reason` says why,
    and `remedy` what to change. `uids` is how many host uids its children may be given, `path` is
    where the code is that builds them.
    """

    terms: tuple[bytes, ...] = ()
    path: tuple[str, ...] = ()
    uids: int = 0
    reason: str = ""
    remedy: str = "mend that"


def wall_terms(isolation: str | None, path: tuple[str, ...]) -> WallTerms:
    """Return the walls for an isolation, by default the best that can be had.

    Raises ValueError, and UnsupportedUse with reason and remedy where walls are asked for and
    cannot be had. Where they are not asked for and cannot be had, an IsolationWarning says so, once
    in a process for each reason.
    """
    if isolation is not None and isolation not in _ISOLATIONS:
        raise ValueError(f'isolation is "walled", "process" or None, not {isolation!r}')
    if isolation == "process":
        return WallTerms()
    found = _tried(path)
    if isolation == "walled" and not found.terms:
        raise UnsupportedUse(
            f'isolation "walled" cannot be had here: {found.reason}; '
            f'{found.remedy}, or ask for isolation "process" where the code is trusted'
        )
    if not found.terms:
        _warn_once(found.reason, found.remedy)
    return found


@cache
def _warn_once(reason: str, remedy: str) -> None:
    # Who uses this package is where the warning points to.
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__package__") == __package__:
        level, frame = level + 1, frame.f_back
    warnings.warn(
        f"the child has no walls and runs with all of your rights: {reason}; {remedy}. "
        'isolation="walled" makes this an error, isolation="process" says that no walls are wanted',
        IsolationWarning,
        stacklevel=level,
    )


@cache
def _tried(path: tuple[str, ...]) -> WallTerms:
    try:
        from fairlead_walls.own_place import OWN_PLACE
        from fairlead_walls.shown_places import CannotBeShown, outermost
        from fairlead_walls.survey import survey
    except ImportError as error:
        return WallTerms(
            reason=f"fairlead-walls is not installed ({error.name})",
            remedy="install fairlead-walls",
        )
    try:
        programs = outermost(map(os.path.realpath, [sys.base_prefix, sys.prefix, *path]))
        found = survey("", programs=programs, first_uid=FIRST_UID, uids=UIDS)
    except CannotBeShown as error:
        return WallTerms(
            reason=f"{error.place} is on the search path for modules and cannot be shown behind "
            "walls, where another directory takes its place",
            remedy=f"take {error.place} out of sys.path (an empty entry there is the working "
            "directory), or name the directories that the child needs in paths=[...]",
        )
    except OSError as error:
        return WallTerms(reason=str(error))
    if not found.stands:
        return WallTerms(reason=found.reason)
    own = () if OWN_PLACE in path else (OWN_PLACE,)
    return WallTerms(terms=tuple(found.terms), uids=found.uids, path=own)
