"""What tests of tunnels are run with: both ends on an event loop, or on the native pump."""

from __future__ import annotations

import pytest

from tests.contract.tunnel.pumped_ends import NATIVE, PYTHON, MakeWorld, world_of


@pytest.fixture(params=[PYTHON, *NATIVE])
def any_world(request: pytest.FixtureRequest) -> MakeWorld:
    """Make a world, whatever its ends run on."""
    return world_of(request.param)
