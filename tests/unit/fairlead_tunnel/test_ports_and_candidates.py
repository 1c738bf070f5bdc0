"""The port on a data channel, and loopback candidates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from fairlead_tunnel.data_channel_port import HIGH_WATER, DataChannelPort
from fairlead_tunnel.loopback_candidates import offer_loopback_when_alone


class ChannelFake:
    """A data channel whose events the test emits."""

    def __init__(self) -> None:
        self.readyState = "connecting"
        self.bufferedAmount = 0
        self.bufferedAmountLowThreshold = 0
        self.sent: list[str | bytes] = []
        self.listeners: dict[str, Callable[..., None]] = {}

    def listen(self, event: str, listener: Callable[..., None]) -> None:
        self.listeners[event] = listener

    def send(self, data: str | bytes) -> None:
        self.sent.append(data)

    def close(self) -> None:
        self.readyState = "closing"


@pytest.mark.asyncio
async def test_draining_waits_until_open_and_until_there_is_room() -> None:
    channel = ChannelFake()
    port = DataChannelPort(channel=channel, listen=channel.listen)
    closed: list[bool] = []
    port.attach(on_message=lambda _: None, on_closed=lambda: closed.append(True))
    port.send("dropped, not open")
    waiting = asyncio.create_task(port.drain())
    await asyncio.sleep(0)
    assert not waiting.done()
    channel.readyState = "open"
    channel.listeners["open"]()
    await waiting
    port.send(b"x")
    assert channel.sent == [b"x"]
    channel.bufferedAmount = HIGH_WATER + 1
    waiting = asyncio.create_task(port.drain())
    await asyncio.sleep(0)
    assert not waiting.done()
    channel.bufferedAmount = channel.bufferedAmountLowThreshold
    channel.listeners["bufferedamountlow"]()
    await waiting
    channel.bufferedAmount = HIGH_WATER + 1
    waiting = asyncio.create_task(port.drain())
    await asyncio.sleep(0)
    channel.readyState = "closed"
    channel.listeners["close"]()
    await waiting
    assert closed == [True]


@pytest.mark.parametrize(
    ("others", "ipv4", "ipv6", "expected"),
    [
        (["192.0.2.2"], True, True, ["192.0.2.2"]),
        ([], True, True, ["127.0.0.1", "::1"]),
        ([], True, False, ["127.0.0.1"]),
        ([], False, True, ["::1"]),
    ],
)
def test_loopback_is_offered_only_where_nothing_else_is(
    others: list[str], ipv4: bool, ipv6: bool, expected: list[str]
) -> None:
    ice = SimpleNamespace(get_host_addresses=lambda use_ipv4, use_ipv6: others)
    offer_loopback_when_alone(ice)
    once = ice.get_host_addresses
    offer_loopback_when_alone(ice)
    assert ice.get_host_addresses is once
    assert ice.get_host_addresses(use_ipv4=ipv4, use_ipv6=ipv6) == expected


def test_aioice_still_has_the_function_that_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    import aioice.ice

    monkeypatch.setattr("aioice.ice.ifaddr.get_adapters", list)
    offer_loopback_when_alone(aioice.ice)
    assert aioice.ice.get_host_addresses(use_ipv4=True, use_ipv6=True) == ["127.0.0.1", "::1"]
