"""What tests of tunnels are run with: an event loop, or the native pump."""

from __future__ import annotations

import pytest

from tests.contract.tunnel.pumped_ends import NATIVE, PYTHON, MakeWorld, world_of


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
