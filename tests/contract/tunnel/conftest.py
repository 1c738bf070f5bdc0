"""What tests of tunnels are run with: an event loop, or the native pump, and which event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

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


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, LoopFactory]:
    """Name the loops that a test runs on; pytest-asyncio asks."""
    made: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop}
    other = loop_factory()
    if other is not None and item.path.stem in _ON_BOTH_LOOPS:
        made["uvloop"] = other
    return made


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
