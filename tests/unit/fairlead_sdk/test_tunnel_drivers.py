"""What the tunnels of a line run on, as the environment says."""

from __future__ import annotations

import pytest

from fairlead_sdk.tunnel_drivers import PumpUnknown, drivers_of, pump_choice
from fairlead_tunnel.pumps import PumpChoice
from fairlead_tunnel.tunnel_client import on_event_loop


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
