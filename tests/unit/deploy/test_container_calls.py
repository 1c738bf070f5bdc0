"""The seccomp profile of the sandbox-worker's container says what the code needs."""

from __future__ import annotations

import json

from scripts.container_calls import BUILDING, PROFILE, text

from fairlead_walls.call_numbers import allowed, judged


def test_the_committed_profile_is_the_one_that_the_code_gives() -> None:
    assert PROFILE.read_text() == text(), "run `make settings`"


def test_only_what_builds_walls_goes_beyond_what_walled_programs_may_call() -> None:
    named = {name for entry in json.loads(text())["syscalls"] for name in entry["names"]}
    walled = {*allowed("x86_64"), *allowed("aarch64"), *judged("x86_64"), *judged("aarch64")}
    assert named - walled == set(BUILDING)


def test_sockets_of_other_families_and_clone3_are_refused() -> None:
    entries = json.loads(text())["syscalls"]
    families = [entry["args"][0]["value"] for entry in entries if entry["names"] == ["socket"]]
    assert families == [1, 2, 10]
    (clone3,) = (entry for entry in entries if entry["names"] == ["clone3"])
    assert clone3["action"] == "SCMP_ACT_ERRNO"
