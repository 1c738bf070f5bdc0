"""The end of a tunnel on the native pump, for whoever asks while it is under way."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("fairlead_native", reason="the native core is not built: make native")

from fairlead_native import Pump
from fairlead_tunnel.frames import Close, decode
from fairlead_tunnel.outbox import SMALLEST_BATCH, Batch
from tests.contract.tunnel.pumped_ends import PumpedGatewayEnd
from tests.eventually import SECONDS

pytestmark = pytest.mark.asyncio


class FullCarrier:
    """Has no room, but for what ends the tunnel."""

    can_send = False
    takes_last = True
    most_bytes = SMALLEST_BATCH

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, batch: Batch) -> None:
        """Keep it."""
        self.sent.append(b"".join(batch.pieces))

    def close(self) -> None:
        """Do nothing."""

    def abort(self) -> None:
        """Do nothing."""


def _reasons(batch: bytes) -> list[str]:
    """Return why a batch ends the tunnel."""
    return [each.reason for each in decode(batch)[2] if isinstance(each, Close)]


async def test_the_end_leaves_behind_a_full_carrier_that_the_pump_was_not_given() -> None:
    pump = Pump()
    gateway, carrier = PumpedGatewayEnd(pump), FullCarrier()
    gateway.driver.attach(1, carrier)
    gateway.driver.close("expired", "It was too old.")
    assert [_reasons(each) for each in carrier.sent] == [["expired"]]
    pump.close()


async def test_an_answer_is_the_end_though_the_pump_is_forgetting_the_tunnel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pump = Pump()
    gateway = PumpedGatewayEnd(pump)
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    forget = pump._teller.gone

    def forget_and_ask(tunnel: int, /) -> None:
        forget(tunnel)
        answer.set_result(gateway.driver.answer_batch(1, SMALLEST_BATCH))

    monkeypatch.setattr(pump._teller, "gone", forget_and_ask)
    gateway.driver.close("expired", "It was too old.")
    async with asyncio.timeout(SECONDS):
        assert _reasons(await answer) == ["expired"]
    pump.close()
