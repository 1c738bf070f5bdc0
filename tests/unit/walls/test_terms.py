"""The terms of walls travel to zygotes as words."""

from __future__ import annotations

import pytest

from fairlead_walls.terms import Terms


@pytest.mark.parametrize("flags", [(True, True, True), (True, False, True), (False, False, False)])
@pytest.mark.parametrize("programs", [[], ["/opt/a=b", "/opt/with space", "/opt/\udcff"]])
def test_they_come_back_as_they_were(flags: tuple[bool, bool, bool], programs: list[str]) -> None:
    privileged, own_uid, file_rules = flags
    given = Terms(
        privileged=privileged,
        own_uid=own_uid,
        file_rules=file_rules,
        call_filter=bytes(range(256)),
        programs=programs,
    )
    assert vars(Terms.parse(given.words())) == vars(given)


def test_no_words_build_nothing() -> None:
    found = Terms.parse([])
    assert not any((found.privileged, found.own_uid, found.file_rules))
    assert found.call_filter == b""
    assert found.programs == ()
