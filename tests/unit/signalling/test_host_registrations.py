"""What a host's registration says of its sandboxes, also when it says it badly."""

from __future__ import annotations

import json

import pytest

from signalling.redis_hosts import joined
from signalling.sandbox import Limits, Wall

HOST_ID = "hst_" + "a" * 26


def registered(**sandbox: str) -> dict[str, dict[str, str]]:
    return {
        f"fairlead:host:{HOST_ID}:workspace": {"address": "unix:/w"},
        f"fairlead:host:{HOST_ID}:sandbox": {"address": "unix:/s", **sandbox},
    }


def test_isolations_profiles_and_walls_are_read() -> None:
    walls = {
        "walled": [
            {"name": "seccomp", "stands": True, "reason": ""},
            {"name": "own_uid", "stands": False, "reason": "The worker is not root."},
        ],
        "process": [],
    }
    host = joined(
        registered(isolation="walled, process", profiles="ci,default", walls=json.dumps(walls))
    )[HOST_ID]
    assert host.isolation == ("walled", "process")
    assert host.profiles == ("ci", "default")
    assert host.walls == {
        "walled": (
            Wall("seccomp", stands=True),
            Wall("own_uid", stands=False, reason="The worker is not root."),
        ),
        "process": (),
    }


@pytest.mark.parametrize(
    "walls",
    ["", "{", "[]", "1", '{"walled": 1}', '{"walled": [{"name": "x"}]}', '{"walled": ["x"]}'],
)
def test_walls_that_cannot_be_read_cost_no_host(walls: str) -> None:
    host = joined(registered(isolation="process", walls=walls))[HOST_ID]
    assert host.walls == {}
    assert host.profiles == ()


def test_limits_of_profiles_are_read() -> None:
    worker: dict[str, float] = {
        "memory_bytes": 2**31,
        "processes": 4096,
        "open_files": 4096,
        "file_bytes": 0,
    }
    worker |= {"cpu_milli": 1500, "disk_bytes": 0, "wall_seconds": 1.5, "output_bytes": 0}
    said = json.dumps({"default": worker})
    host = joined(registered(isolation="walled", limits=said))[HOST_ID]
    expected = Limits(2**31, 4096, 4096, cpu_milli=1500, wall_time=1.5)
    assert host.limits == {"default": expected}


@pytest.mark.parametrize("limits", ["", "[]", '{"default": {}}', '{"default": {"processes": "x"}}'])
def test_limits_that_cannot_be_read_cost_no_host(limits: str) -> None:
    assert joined(registered(isolation="walled", limits=limits))[HOST_ID].limits == {}
