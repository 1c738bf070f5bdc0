"""What the relay's benchmark says of opens that wait for their first bytes is counted truly."""

from __future__ import annotations

import pytest
from benchmarks.relay.held import HELD, PLAIN, best_of_two
from benchmarks.relay.held_client import CountingTunnel


def leave(tunnel: CountingTunnel) -> None:
    while tunnel.take_batch(carrier=1, most=65536, now=0.5) is not None:
        pass


def test_an_open_that_leaves_with_its_first_bytes_counts() -> None:
    tunnel = CountingTunnel()
    channel = tunnel.open("tcp:a:1", hold_until=1.0)
    leave(tunnel)
    assert (tunnel.opened, tunnel.bundled) == (0, 0)
    tunnel.write(channel, b"x")
    leave(tunnel)
    assert (tunnel.opened, tunnel.bundled) == (1, 1)


def test_an_open_that_leaves_before_them_does_not() -> None:
    tunnel = CountingTunnel()
    channel = tunnel.open("tcp:a:1")
    leave(tunnel)
    tunnel.write(channel, b"x")  # the OPEN is said again with these, and counts no more
    leave(tunnel)
    assert (tunnel.opened, tunnel.bundled) == (1, 0)


def test_the_hold_is_compared_with_the_better_one_of_three_and_four_workers() -> None:
    three, four = PLAIN
    rates = {HELD[0]: [9.0, 30.0, 1.0], three: [5.0], four: [6.0, 6.0, 100.0]}
    assert best_of_two(rates) == pytest.approx(1.5)
