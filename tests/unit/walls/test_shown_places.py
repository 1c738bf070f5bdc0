"""Which directories can be shown behind walls."""

from __future__ import annotations

import os

import pytest

from fairlead_walls.shown_places import CannotBeShown, outermost


def test_only_what_is_not_seen_anyway() -> None:
    wanted = ["/opt/b/inner", "/opt/b", "/opt/a", "/opt/b-side", "/opt/a/", "/usr/lib/x", "/lib"]
    assert outermost(wanted) == ["/opt/a", "/opt/b", "/opt/b-side"]


def test_paths_are_made_absolute() -> None:
    assert outermost(["x/../y", "/opt/./a/../c"]) == sorted(["/opt/c", os.path.abspath("y")])


@pytest.mark.parametrize(
    "place",
    ["/", "/home", "/home/sandbox", "/mnt", "/mnt/disk", "/run", "/run/shm", "/var", "/workspace"],
)
def test_what_is_the_sandboxes_own_cannot_be_covered(place: str) -> None:
    with pytest.raises(CannotBeShown, match="name those below it") as caught:
        outermost(["/opt/a", place])
    assert caught.value.place == place


@pytest.mark.parametrize("place", ["/run/a", "/home/somebody", "/var/lib/a", "/workspaces"])
def test_what_lies_beside_or_below_can_be_shown(place: str) -> None:
    assert outermost([place]) == [place]
