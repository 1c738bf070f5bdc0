"""`make bench NAME=membrane`: a class behind a wall in every regime, beside the direct call,
extradite (when `EXTRADITE_PATH` names a checkout of it), multiprocessing, RPyC and loky.
"""

from __future__ import annotations

from benchmarks.membrane.lanes import Measured, measure, present
from benchmarks.membrane.regimes import REGIMES
from benchmarks.recording import QUICK, Recording

REPETITIONS = 1 if QUICK else 5
TURNS = 1 if QUICK else 4
PEERS = ("pipe", "manager", "rpyc", "loky")
COMPUTED = ("cpu", "mixed")
OF_COLD = {"cold_start_preloaded": "cold_start"}
"""What the others are compared by where they do not have the regime."""


def _times(theirs: float | None, ours: float | None) -> float | None:
    return None if theirs is None or ours is None else round(theirs / ours, 2)


def _micro(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def record(measured: Measured, recording: Recording) -> None:
    """Turn what was measured into figures: times faster as metrics, microseconds beside them."""
    metrics, peers = recording.metrics, recording.peers
    for regime in REGIMES:
        theirs = OF_COLD.get(regime, regime)
        ours, direct = measured.median(regime, "membrane"), measured.median(regime, "direct")
        extradite = measured.median(theirs, "extradite")
        others = {
            name: value for name in PEERS if (value := measured.median(theirs, name)) is not None
        }
        best = min(others, key=lambda name: others[name])
        metrics[f"{regime}_vs_extradite"] = _times(extradite, ours)
        metrics[f"{regime}_vs_best_peer"] = _times(others[best], ours)
        if regime in COMPUTED:
            metrics[f"{regime}_vs_direct"] = _times(ours, direct)
        peers[f"{regime}_direct_us"] = _micro(direct)
        peers[f"{regime}_membrane_us"] = _micro(ours)
        peers[f"{regime}_extradite_us"] = _micro(extradite)
        peers[f"{regime}_best_peer_us"] = _micro(others[best])
        if regime == theirs:
            each = ", ".join(f"{name} {value:.1f}" for name, value in sorted(others.items()))
            recording.notes.append(f"{regime}, us: {each}; the best is {best}")
    for name, kept in (("membrane", metrics), ("extradite", peers)):
        first = measured.first("cold_start", name)
        whose = "" if kept is metrics else f"{name}_"
        kept[f"cold_start_first_{whose}ms"] = None if first is None else round(first / 1000, 1)
    recording.notes.append(
        "cold starts are medians of single starts; the first one of a process, in which membrane"
        " starts its zygote and looks at the walls of the machine, is cold_start_first_ms"
    )
    recording.notes.append(f"isolation of membrane: {measured.said['membrane']}")


def main() -> None:
    recording = Recording(name="membrane", runs=REPETITIONS)
    names = present(recording.notes)
    record(measure(names, repetitions=REPETITIONS, turns=TURNS, quick=QUICK), recording)
    recording.write()


if __name__ == "__main__":
    main()
