"""Token buckets of keys, on a clock that the test moves."""

from __future__ import annotations

import pytest

from signalling.rate_limits import RateLimited, RateLimits


class Limits:
    """Ten requests at once, two a second."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.subject = RateLimits(per_second=2, burst=10, monotonic=lambda: self.now)

    def taken(self, key_id: str = "key_a") -> int:
        """How many requests pass until one does not."""
        for number in range(100):
            try:
                self.subject.take(key_id)
            except RateLimited:
                return number
        raise AssertionError("no limit")


def test_a_key_has_its_burst_and_then_its_rate() -> None:
    limits = Limits()
    assert limits.taken() == 10
    assert limits.taken("key_b") == 10
    with pytest.raises(RateLimited) as caught:
        limits.subject.take("key_a")
    assert caught.value.retry_seconds == 0.5
    limits.now += 0.5
    assert limits.taken() == 1
    limits.now += 3600
    assert limits.taken() == 10


def test_what_cost_more_is_owed_up_to_one_burst() -> None:
    limits = Limits()
    limits.subject.take("key_a")
    limits.subject.charge("key_a", 1e9)
    with pytest.raises(RateLimited) as caught:
        limits.subject.take("key_a")
    assert caught.value.retry_seconds == 5.5
    limits.now += 5.5
    assert limits.taken() == 1
    assert limits.taken("key_b") == 10


def test_what_is_left_is_said_with_the_policy() -> None:
    limits = Limits()
    limits.subject.take("key_a")
    limits.subject.take("key_a")
    limits.subject.take("key_a")
    assert limits.subject.headers("key_a") == [
        (b"ratelimit-policy", b'"key";q=10;w=5'),
        (b"ratelimit", b'"key";r=7;t=2'),
    ]
