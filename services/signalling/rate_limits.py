"""How many requests each API key may make: one token bucket for each, in memory.

A bucket of our own, since the libraries for it count requests in windows, with threads and their
own clock; here a request costs what it makes the service do.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from chassis.errors import ResourceExhausted

_MOST_KEYS = 10_000


class RateLimited(ResourceExhausted):
    """A key makes more requests than it may."""

    def __init__(self, *, per_second: float, retry_seconds: float) -> None:
        super().__init__(
            "This API key makes more requests than it may.",
            reason="rate_limited",
            remedy="Wait as long as Retry-After or RetryInfo says; the operator sets the limit with"
            " FAIRLEAD_SIGNALLING_REQUESTS_PER_SECOND and FAIRLEAD_SIGNALLING_REQUESTS_BURST.",
            fields={"requests_per_second": f"{per_second:g}"},
        )
        self.retry_seconds = retry_seconds


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at: float


class RateLimits:
    """The buckets of one replica; a key that was not seen for long starts with a full one."""

    def __init__(self, *, per_second: float, burst: float, monotonic: Callable[[], float]) -> None:
        self._per_second = per_second
        self._burst = burst
        self._monotonic = monotonic
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, key_id: str) -> None:
        """Take the token of one request; raises RateLimited when there is none."""
        bucket = self._filled(key_id)
        if bucket.tokens < 1:
            raise RateLimited(
                per_second=self._per_second,
                retry_seconds=(1 - bucket.tokens) / self._per_second,
            )
        bucket.tokens -= 1

    def charge(self, key_id: str, tokens: float) -> None:
        """Take more tokens for a request that cost more than others; at most a full bucket is
        owed.
        """
        bucket = self._filled(key_id)
        bucket.tokens = max(bucket.tokens - tokens, -self._burst)

    def headers(self, key_id: str) -> list[tuple[bytes, bytes]]:
        """Return what is left, and the policy (draft-ietf-httpapi-ratelimit-headers-10)."""
        bucket = self._filled(key_id)
        remaining = max(0, int(bucket.tokens))
        reset = (self._burst - bucket.tokens) / self._per_second
        window = max(1, round(self._burst / self._per_second))
        return [
            (b"ratelimit-policy", b'"key";q=%d;w=%d' % (int(self._burst), window)),
            (b"ratelimit", b'"key";r=%d;t=%d' % (remaining, -int(-reset // 1))),
        ]

    def _filled(self, key_id: str) -> _Bucket:
        now = self._monotonic()
        bucket = self._buckets.get(key_id)
        if bucket is None:
            bucket = self._buckets[key_id] = _Bucket(self._burst, now)
            if len(self._buckets) > _MOST_KEYS:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key_id)
            gained = (now - bucket.filled_at) * self._per_second
            bucket.tokens = min(self._burst, bucket.tokens + gained)
            bucket.filled_at = now
        return bucket
