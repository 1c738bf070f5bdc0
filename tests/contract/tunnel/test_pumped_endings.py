"""The end of a tunnel on the native pump, for whoever asks while it is under way."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("fairlead_native", reason="the native core is not built: make native")

from fairlead_native import Pump
from fairlead_tunnel.frames import Close, decode
from fairlead_tunnel.outbox import SMALLEST_BATCH
from tests.contract.tunnel.pumped_ends import PumpedGatewayEnd
from tests.contract.tunnel.talks import SECONDS

pytestmark = pytest.mark.asyncio


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
        frames = decode(await answer)[2]
    assert [each.reason for each in frames if isinstance(each, Close)] == ["expired"]
    pump.close()
