"""What the tunnels of a line run on, as the environment says."""

from __future__ import annotations

import pytest

from fairlead_sdk.tunnel_drivers import PumpUnknown, drivers_of, pump_choice
from fairlead_tunnel.native_tunnel import NativeTunnel
from fairlead_tunnel.pumps import PumpChoice
from fairlead_tunnel.tunnel_client import on_event_loop
from fairlead_tunnel.tunnel_driver import TunnelDriver
from tests.unit.fairlead_tunnel.test_tunnel_client import Room


@pytest.mark.parametrize(
    ("environment", "choice"),
    [
        ({}, PumpChoice.AUTO),
        ({"FAIRLEAD_TUNNEL_PUMP": ""}, PumpChoice.AUTO),
        ({"FAIRLEAD_TUNNEL_PUMP": "auto"}, PumpChoice.AUTO),
        ({"FAIRLEAD_TUNNEL_PUMP": "python"}, PumpChoice.PYTHON),
    ],
)
def test_the_variable_chooses(environment: dict[str, str], choice: PumpChoice) -> None:
    assert pump_choice(environment) is choice


def test_what_is_no_pump_is_refused() -> None:
    with pytest.raises(PumpUnknown) as refused:
        pump_choice({"FAIRLEAD_TUNNEL_PUMP": "rust"})
    assert refused.value.reason == "pump_unknown"
    assert "auto, python" in refused.value.remedy


def test_python_runs_on_the_event_loop() -> None:
    with drivers_of(PumpChoice.PYTHON) as make_driver:
        assert make_driver is on_event_loop


class FailedPump:
    """A pump whose thread has ended with a fault."""

    is_closed = False

    def tunnel(self, **options: object) -> NativeTunnel:
        """Make none."""
        raise RuntimeError("the pump has failed")

    def close(self) -> None:
        """Note it."""
        self.is_closed = True


@pytest.mark.asyncio
async def test_the_event_loop_goes_on_where_the_pump_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pump = FailedPump()
    monkeypatch.setattr("fairlead_sdk.tunnel_drivers.make_pump", lambda choice: pump)
    room = Room()
    with drivers_of(PumpChoice.AUTO) as make_driver:
        assert isinstance(room.client(make_driver).driver, TunnelDriver)
    assert pump.is_closed
