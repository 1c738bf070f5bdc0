"""What the figures of a benchmark are to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Aim:
    """A figure is to be at least, or at most, that."""

    limit: float
    is_most: bool = False

    def __str__(self) -> str:
        return f"{'≤' if self.is_most else '≥'} {self.limit:g}"

    def verdict(self, value: float | None) -> str:
        """Return `met` or `short`, and nothing for what was not measured."""
        if value is None:
            return ""
        is_met = value <= self.limit if self.is_most else value >= self.limit
        return "met" if is_met else "short"


def least(limit: float) -> Aim:
    """Return the aim of a figure that is to be high."""
    return Aim(limit)


def most(limit: float) -> Aim:
    """Return the aim of a figure that is to be low."""
    return Aim(limit, is_most=True)


AIMS: Mapping[str, Mapping[str, Aim]] = {
    "relay": {
        "native_vs_best_peer_min": least(1.0),
        "native_vs_best_peer_median": least(1.1),
        "native_opens_per_s_seq_vs_best_peer": least(1.0),
        "native_opens_per_s_50_vs_best_peer": least(1.3),
        "native_ping_vs_best_peer": most(1.1),
        "native_cpu_s_per_gib": most(1.1),
        "native_memory_mb_1000_sessions": most(60),
        "native_vs_goose": least(50),
        "python_vs_best_peer_min": least(0.7),
        "python_vs_chisel_frp_rathole_min": least(1.5),
        "python_opens_per_s_seq_vs_best_peer": least(1.0),
        "python_opens_per_s_50_vs_best_peer": least(1.0),
        "python_ping_vs_best_peer": most(1.5),
        "python_cpu_s_per_gib": most(1.9),
        "python_memory_mb_1000_sessions": most(60),
        "polls_up_1": least(150),
        "polls_down_1": least(150),
        "ttfb_p50_ms": most(3),
        "download_upload_bytes_ratio": most(0.02),
        "loss_mb_per_s": least(20),
        "loss_stall_max_ms": most(1500),
        "hold_bundled_pct_w3": least(99),
        "hold_bundled_pct_w4": least(99),
        "hold_bundled_pct_w8": least(99),
        "hold_vs_best_of_two": least(1),
        "opens_per_s_92ms": least(10),
        "ttfb_92ms_over_rtt": most(1.15),
        "up_8mb_92ms_warm_vs_tcp": most(0.9),
        "up_8mb_92ms_cold_vs_tcp": most(1.3),
    }
}
"""By benchmark and figure; figures without an aim are there to be compared."""
