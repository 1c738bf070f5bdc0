"""Which walls this machine allows around children: asked once, and by trying them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cache

from membrane.errors import UnsupportedUse

FIRST_UID, UIDS = 0x7100_0000, 65_536
"""Host uids that walled children of a root process may be given, each one its own."""

_ISOLATIONS = ("walled", "process")


@dataclass(frozen=True, slots=True)
class WallTerms:
    """The words by which a zygote builds the walls, empty where there are none and `reason` says
    why; `uids` is how many host uids its children may be given, `path` is where the code is that
    builds them.
    """

    terms: tuple[bytes, ...] = ()
    path: tuple[str, ...] = ()
    uids: int = 0
    reason: str = ""


def wall_terms(isolation: str | None, path: tuple[str, ...]) -> WallTerms:
    """Return the walls for an isolation, by default the best that can be had; raises ValueError,
    and UnsupportedUse with the reason where walls are asked for and cannot be had.
    """
    if isolation is not None and isolation not in _ISOLATIONS:
        raise ValueError(f'isolation is "walled", "process" or None, not {isolation!r}')
    if isolation == "process":
        return WallTerms()
    found = _tried(path)
    if isolation == "walled" and not found.terms:
        raise UnsupportedUse(
            f'isolation "walled" cannot be had here: {found.reason}; '
            'mend that, or ask for isolation "process" where the code is trusted'
        )
    return found


@cache
def _tried(path: tuple[str, ...]) -> WallTerms:
    try:
        from fairlead_walls.own_place import OWN_PLACE
        from fairlead_walls.shown_places import CannotBeShown, outermost
        from fairlead_walls.survey import survey
    except ImportError as error:
        return WallTerms(reason=f"fairlead-walls is not installed ({error.name})")
    try:
        programs = outermost(map(os.path.realpath, [sys.base_prefix, sys.prefix, *path]))
        found = survey("", programs=programs, first_uid=FIRST_UID, uids=UIDS)
    except (CannotBeShown, OSError) as error:
        return WallTerms(reason=str(error))
    if not found.stands:
        return WallTerms(reason=found.reason)
    own = () if OWN_PLACE in path else (OWN_PLACE,)
    return WallTerms(terms=tuple(found.terms), uids=found.uids, path=own)
