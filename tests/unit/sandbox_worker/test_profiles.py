"""Profiles from a file: read as a whole, or refused with the place that is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sandbox_worker.errors import LimitExceeded, ProfilesInvalid
from sandbox_worker.profile import Profile, default_limits
from sandbox_worker.profile_file import read_profiles
from sandbox_worker.sandbox import Limits, NetworkMode, NetworkPolicy

_GIB = 1024**3
_GOOD = """
[default]
isolation = "walled"
[default.limits]
processes = 512

[ci]
lease_seconds = 7200
network = "egress"
allow = ["pypi.org", "*.githubusercontent.com:443"]
[ci.limits]
memory_bytes = 2147483648
cpu_milli = 1500
wall_seconds = 600.5
"""


def test_profiles_are_read(tmp_path: Path) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text(_GOOD)
    profiles = read_profiles(path)
    assert sorted(profiles) == ["ci", "default"]
    assert profiles["default"].isolation == "walled"
    assert profiles["default"].limits == Limits(open_files=4096, processes=512)
    assert profiles["ci"].lease_seconds == 7200
    assert profiles["ci"].limits.wall_seconds == 600.5
    allowed = ("pypi.org", "*.githubusercontent.com:443")
    assert profiles["ci"].network == NetworkPolicy(NetworkMode.EGRESS, allowed)


def test_there_is_always_a_default(tmp_path: Path) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text("[ci]\n[free.limits]\nprocesses = 0\n")
    profiles = read_profiles(path)
    assert sorted(profiles) == ["ci", "default", "free"]
    assert sorted(read_profiles(None)) == ["default"]
    bounded = Limits(open_files=4096, processes=4096)
    assert profiles["ci"].limits == profiles["default"].limits == bounded
    assert profiles["free"].limits == Limits(open_files=4096)


def test_what_a_profile_leaves_out_is_a_share_of_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text("[small.limits]\nmemory_bytes = 1073741824\n[free.limits]\nmemory_bytes = 0\n")
    machine = Limits(open_files=4096, processes=4096, memory_bytes=8 * _GIB, cpu_milli=3000)
    profiles = read_profiles(path, defaults=machine)
    assert profiles["default"].limits == read_profiles(None, defaults=machine)["default"].limits
    assert profiles["default"].limits == machine
    assert profiles["small"].limits == replace(machine, memory_bytes=_GIB)
    assert profiles["free"].limits == replace(machine, memory_bytes=0)


@pytest.mark.parametrize(
    ("memory", "processors", "held", "expected"),
    [
        (16 * _GIB, 8, {"memory", "cpu", "pids"}, (8 * _GIB, 6000)),
        (3 * _GIB, 1, {"memory", "cpu"}, (2 * _GIB, 1000)),
        # Nothing would count a sandbox's: as address space of each process the share is too little.
        (16 * _GIB, 8, {"pids"}, (0, 0)),
    ],
)
def test_the_share_of_a_machine(
    memory: int, processors: int, held: set[str], expected: tuple[int, int]
) -> None:
    found = default_limits(memory=memory, processors=processors, held=held)
    assert (found.memory_bytes, found.cpu_milli) == expected
    assert found.processes
    # A caller may lower them, and raise none of them.
    profile = Profile(limits=found)
    assert profile.tightened(Limits(processes=16)).processes == 16
    if found.memory_bytes:
        with pytest.raises(LimitExceeded):
            profile.tightened(Limits(memory_bytes=found.memory_bytes + 1))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[default", "TOML"),
        ("x = 1", "x"),
        ("[default]\nisolaton = 'walled'", "default.isolaton"),
        ("[default]\nisolation = 'cage'", "default.isolation"),
        ("[Default]\n", "Default"),
        ("[ci.limits]\nmemory_bytes = 1", "limits.memory_bytes"),
        ("[ci.limits]\nmemory_bytes = '1g'", "ci.limits.memory_bytes"),
        ("[ci.limits]\nprocesses = -1", "limits.processes"),
        ("[ci]\nlease_seconds = 0", "ci.lease_seconds"),
        ("[ci]\nlease_seconds = inf", "ci.lease_seconds"),
        ("[ci]\nallow = ['a']", "egress"),
        ("[ci]\nnetwork = 'all'", "ci.network"),
        ("[ci]\nnetwork = 'host'\nnetwork_most = 'egress'", "network_most"),
        ("[ci]\nlimits = 3", "ci.limits: it is no table."),
        ("[ci.limits]\noutput_bytes = 1", "must be 1 MiB to 2^62 bytes, or 0 for the profile's."),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text(text)
    with pytest.raises(ProfilesInvalid) as caught:
        read_profiles(path)
    if part != "TOML":
        assert part in caught.value.message
    assert str(path) in caught.value.message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ProfilesInvalid, match="No such file"):
        read_profiles(tmp_path / "none.toml")
