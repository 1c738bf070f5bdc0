"""Which directories of the machine can be shown behind walls, each at its own path."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "dev", "proc", "sys")
_OWN = ("/home/sandbox", "/mnt", "/run/shm", "/tmp", "/var/run", "/var/tmp", "/workspace")  # noqa: S108


class CannotBeShown(ValueError):
    """A directory would cover what is the sandbox's own, or be covered by it."""

    def __init__(self, place: str) -> None:
        super().__init__(
            f"{place} cannot be shown behind walls, where another directory takes its place:"
            " name those below it that are needed"
        )
        self.place = place


def can_be_shown(place: str) -> bool:
    """Say whether a directory, by its absolute path, is none that the sandbox has its own of."""
    is_above = any(f"{own}/".startswith(f"{place.rstrip('/')}/") for own in _OWN)
    return not is_above and not place.startswith("/mnt/")


def outermost(places: Iterable[str]) -> list[str]:
    """Return what of these directories has to be shown, in order, and not those that lie in the
    system's or in another one: those are seen anyway. Raises CannotBeShown.

    The last part of each may be no symlink, and whoever the sandbox's user is outside has to be let
    in: its modes count behind the walls, those of the directories above it do not.
    """
    found: list[str] = []
    for place in sorted(set(map(os.path.abspath, places))):
        if not can_be_shown(place):
            raise CannotBeShown(place)
        is_system = place.split("/")[1] in _SYSTEM
        if not is_system and not any(place.startswith(f"{outer}/") for outer in found):
            found.append(place)
    return found
