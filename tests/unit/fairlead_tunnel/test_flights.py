"""How much may be under way."""

from __future__ import annotations

from fairlead_tunnel.channel import Item, Part
from fairlead_tunnel.flights import MOST_PARTS, MOST_UNDER_WAY, Departures
from fairlead_tunnel.ranges import RangeSet


def test_no_more_leave_when_many_batches_are_under_way() -> None:
    departures = Departures()
    for _ in range(MOST_UNDER_WAY):
        assert not departures.full
        departures.depart(1, [Part(1, Item.FIN)])
    assert departures.full
    assert departures.acked([(2, 2)]) == [Part(1, Item.FIN)]
    assert not departures.full


def test_no_more_leave_when_batches_of_very_many_parts_are_under_way() -> None:
    departures = Departures()
    parts = [Part(channel, Item.FIN) for channel in range(1, MOST_PARTS // 2 + 1)]
    departures.depart(1, parts)
    assert not departures.full
    departures.depart(2, parts)
    assert departures.full
    assert departures.acked([(1, 1)]) == parts
    assert not departures.full
    departures.depart(3, parts)
    assert departures.full
    gone = RangeSet()
    gone.add(2, 4)
    assert departures.lost(gone) == parts * 2
    assert not departures.full
    departures.depart(4, parts)
    assert not departures.full
