"""The membrane's benchmark calls every system in every regime, and believes none of them."""

from __future__ import annotations

import pytest
from benchmarks.membrane import __main__ as benchmark
from benchmarks.membrane import lanes
from benchmarks.membrane.lanes import Measured, measure, present
from benchmarks.membrane.regimes import REGIMES
from benchmarks.recording import Recording

AIMED = {
    *("cold_start", "cold_start_preloaded", "warm", "ping_batched", "increment_batched"),
    *("ping_single", "payload_small", "payload_large", "bytes", "bytes_nohash", "callback"),
    "readline",
}
"""The regimes that have to be so many times faster than the others."""
TINY = 1000


def tiny(names: list[str]) -> Measured:
    return measure(names, repetitions=1, divisor=TINY, quick=True)


def test_every_system_says_what_the_direct_call_says() -> None:
    names = present([])
    measured = tiny(names)
    assert {"direct", "membrane", "pipe", "manager"} <= set(names)
    for regime in REGIMES:
        assert measured.median(regime, "membrane") is not None, regime
    assert measured.median("callback", "manager") is None, "it cannot be called back"
    assert measured.said["membrane"] in {"walled", "process"}


def test_figures_have_the_names_of_the_aims() -> None:
    recording = Recording(name="membrane", runs=1)
    measured = Measured()
    for regime in REGIMES:
        for name, seconds in (("direct", 1), ("membrane", 2), ("pipe", 6), ("manager", 8)):
            measured.add(
                regime, name, {"seconds": seconds, "first": 1, "summary": 0, "said": "walled"}, 1
            )
    benchmark.record(measured, recording)
    assert {f"{regime}_vs_extradite" for regime in AIMED} <= recording.metrics.keys()
    assert {recording.metrics[f"{regime}_vs_best_peer"] for regime in AIMED} == {3.0}
    assert recording.metrics["cpu_vs_direct"] == recording.metrics["mixed_vs_direct"] == 2.0
    assert recording.metrics["ping_single_vs_extradite"] is None, "it was not measured"
    assert recording.peers["ping_single_best_peer_us"] == 6e6


def test_a_result_that_differs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        lanes.Lane,
        "run",
        lambda lane, *_: {"seconds": 1, "first": 1, "summary": lane._name, "said": ""},
    )
    with pytest.raises(AssertionError, match="of pipe differs"):
        tiny(["direct", "pipe"])


def test_a_peer_that_is_not_there_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("EXTRADITE_PATH", str(tmp_path))
    notes: list[str] = []
    assert "extradite" not in present(notes)
    assert "EXTRADITE_PATH" in notes[-1]


def test_who_is_slow_is_measured_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"direct": 0, "membrane": 9, "pipe": 1, "manager": 3}
    ran: list[tuple[str, str]] = []

    def run(lane: lanes.Lane, regime: str, *_: int) -> lanes.Answer:
        ran.append((regime, lane._name))
        return {"seconds": seconds[lane._name], "first": 1, "summary": 0, "said": ""}

    monkeypatch.setattr(lanes.Lane, "run", run)
    measure([*seconds], repetitions=3, turns=4, divisor=TINY, quick=True)
    counted = {name: ran.count(("ping_single", name)) for name in seconds}
    assert counted == {"direct": 12, "membrane": 12, "pipe": 12, "manager": 4 + 1 + 1}
    assert [ran.count(("warm", name)) for name in ("membrane", "pipe", "manager")] == [3, 3, 2]
