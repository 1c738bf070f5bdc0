"""Rate limits that nobody meets."""

from __future__ import annotations

from signalling.rate_limits import RateLimits


def no_rate_limits() -> RateLimits:
    """Return limits that are too generous for any test, on a clock that stands still."""
    return RateLimits(per_second=1e9, burst=1e9, monotonic=lambda: 0.0)
