"""The line that says how much goes through local ports: on a terminal, and nowhere else."""

from __future__ import annotations

import asyncio

import pytest

from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.cli.traffic import show_traffic
from fairlead_sdk.local_traffic import Traffic
from tests.unit.fairlead_sdk.test_ticks import Screen

pytestmark = pytest.mark.asyncio


async def test_totals_and_rates_are_shown_every_second() -> None:
    screen, traffic = Screen(is_live=True), Traffic()
    shown: list[str] = []

    async def second(seconds: float) -> None:
        shown.append(screen.shown())
        if len(shown) == 3:
            raise asyncio.CancelledError
        screen.now += seconds
        traffic.begin()
        traffic.note(sent=2048, received=3 * 1024 * 1024)

    terminal = Terminal(is_json=False, output=screen)
    with pytest.raises(asyncio.CancelledError):
        await show_traffic(traffic, terminal, sleep=second, clock=screen.clock)
    assert shown == [
        "",
        "  … 1 connection, up 2.0 KiB (2.0 KiB/s), down 3.0 MiB (3.0 MiB/s)",
        "  … 2 connections, up 4.0 KiB (2.0 KiB/s), down 6.0 MiB (3.0 MiB/s)",
    ]


async def test_nothing_is_shown_where_nobody_looks() -> None:
    screen = Screen(is_live=False)

    async def second(seconds: float) -> None:
        raise AssertionError("it looks at what nobody sees")

    showing = asyncio.ensure_future(
        show_traffic(
            Traffic(),
            Terminal(is_json=False, output=screen),
            sleep=second,
            clock=screen.clock,
        )
    )
    await asyncio.sleep(0)
    assert not showing.done()
    showing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await showing
    assert screen.shown() == ""


async def test_idle_is_when_no_connection_is_left() -> None:
    traffic = Traffic()
    await traffic.wait_idle()
    traffic.begin()
    waiting = asyncio.ensure_future(traffic.wait_idle())
    await asyncio.sleep(0)
    assert not waiting.done()
    traffic.end()
    await waiting
