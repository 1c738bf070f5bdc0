"""What a survey says about the walls that it found."""

from __future__ import annotations

import pytest

from fairlead_walls.survey import Survey


@pytest.mark.parametrize(
    ("reasons", "reason"),
    [
        ({"user": "", "own_uid": "", "landlock": ""}, ""),
        ({"user": "", "own_uid": "not root", "landlock": "none"}, ""),
        ({"user": "", "own_uid": "not root", "seccomp": "refused"}, "refused"),
        ({"user": "none", "own_uid": "none", "seccomp": "refused"}, "none"),
    ],
)
def test_own_uids_and_file_rules_may_be_missing(reasons: dict[str, str], reason: str) -> None:
    found = Survey(reasons, 0, 0, ())
    assert found.reason == reason
    assert found.stands == (not reason)
    assert found.missing == {name: why for name, why in reasons.items() if why}


@pytest.mark.parametrize("uids", [0, 64])
def test_own_uids_are_those_that_may_be_given(uids: int) -> None:
    assert Survey({}, 1000, uids, ()).own_uid == (uids > 0)
