"""Where the wire tests serve."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest

from fairlead_tunnel.installed import is_installed
from fairlead_tunnel.pumps import PumpChoice


@pytest.fixture
def bind() -> Iterator[str]:
    """The address of a unix socket that does not exist yet, with a short path."""
    with tempfile.TemporaryDirectory(prefix="flw-") as directory:
        yield f"unix:{directory}/s"


@pytest.fixture(params=PumpChoice)
def each_pump(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PumpChoice:
    """What the gateways of a test run their tunnels on."""
    choice: PumpChoice = request.param
    if choice is PumpChoice.AUTO and not is_installed("fairlead_native"):
        pytest.skip("the native core is not built: make native")
    monkeypatch.setenv("FAIRLEAD_TUNNEL_PUMP", choice)
    return choice
