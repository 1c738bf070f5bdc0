"""What tests of tunnels are run with: an event loop, or the native pump, and which event loop."""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from fairlead_tunnel.event_loops import LoopFactory, loop_factory
from tests.contract.tunnel.pumped_ends import NATIVE, PYTHON, MakeWorld, world_of

_ON_BOTH_LOOPS = frozenset(
    {
        "test_closed_connections",
        "test_ends_of_tunnels",
        "test_given_sockets",
        "test_lines",
        "test_lost_carriers",
        "test_socket_carriers",
        "test_socket_frames",
        "test_stream_carriers",
        "test_tcp_carriers",
    }
)
"""Those that say most about connections that end; the others run on asyncio's loop only."""

_LOOP = "_asyncio_loop_factory"


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, LoopFactory]:
    """Name the loops that a test runs on; pytest-asyncio asks."""
    made: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop}
    other = loop_factory()
    if other is not None and item.path.stem in _ON_BOTH_LOOPS:
        made["uvloop"] = other
    return made


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run a test that runs on both loops on one of them for each of its other parameters, by turns:
    with each loop go half of the ends, and other ones for the next test. `make test-all` runs all,
    and who names a test gets that.
    """
    if os.environ.get("FAIRLEAD_TEST_ALL") or any("::" in each for each in config.args):
        return
    here, places = Path(__file__).parent, dict[tuple[Path, str, str], list[object]]()
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        found = cast("pytest.Function", item)
        if found.path.stem not in _ON_BOTH_LOOPS or found.path.parent != here:
            kept.append(item)
            continue
        turn = zlib.crc32(found.originalname.encode())
        for name, value in found.callspec.params.items():
            values = places.setdefault((found.path, found.originalname, name), [])
            if value not in values:
                values.append(value)
            turn += values.index(value)
        is_lone = set(found.callspec.params) == {_LOOP}
        (kept if is_lone or turn % 2 else left_out).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(params=[PYTHON, *NATIVE])
def any_world(request: pytest.FixtureRequest) -> MakeWorld:
    """Make a world, whatever its ends run on."""
    return world_of(request.param)


@pytest.fixture(params=["python", "auto"])
def runs_on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have the tunnels of a line run on the event loop, and then on the native pump."""
    if request.param == "auto":
        pytest.importorskip("fairlead_native", reason="the native core is not built: make native")
    monkeypatch.setenv("FAIRLEAD_TUNNEL_PUMP", request.param)
    return str(request.param)
