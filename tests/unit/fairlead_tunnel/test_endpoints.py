"""Endpoints of polls: rotation, slots, workers, back-off, probes and sizes."""

from __future__ import annotations

import pytest

from fairlead_tunnel.endpoints import (
    FIRST_ROOM,
    REMEMBERED_SECONDS,
    Endpoint,
    EndpointPool,
    Lease,
    Outcome,
    Room,
    classify,
)
from fairlead_tunnel.poll_wire import SMALLEST_ROOM


def pool_of(*labels: str) -> EndpointPool:
    """Return a pool of endpoints with these labels."""
    return EndpointPool([Endpoint(f"http://hop{at}", label) for at, label in enumerate(labels)])


def active(pool: EndpointPool, now: float = 0.0) -> Lease:
    """Take an active lease that is there."""
    lease = pool.take_active(now)
    assert lease is not None
    return lease


def idle(pool: EndpointPool, now: float = 0.0) -> Lease:
    """Take an idle lease that is there."""
    lease = pool.take_idle(now)
    assert lease is not None
    return lease


@pytest.mark.parametrize(
    ("labels", "workers"),
    [
        (("",) * 5, 15),
        (("a", "b", "c", "d", "e"), 15),
        (("a", "a", "b", "b", "c", "c", "d", "d", "e"), 27),
        (("",), 3),
    ],
)
def test_workers_grow_with_endpoints_whatever_their_labels(
    labels: tuple[str, ...], workers: int
) -> None:
    pool = pool_of(*labels)
    assert pool.workers == workers
    for _ in range(workers):
        active(pool)
    assert pool.take_active(0.0) is None
    assert not pool.can_take(0.0)


def test_active_polls_rotate_over_healthy_endpoints() -> None:
    pool = pool_of("", "", "")
    assert [active(pool).endpoint.url[-1] for _ in range(4)] == ["0", "1", "2", "0"]
    pool.give_back(active(pool), Outcome.FAILED, 0.0)  # hop1
    assert [active(pool).endpoint.url[-1] for _ in range(2)] == ["2", "0"]


@pytest.mark.parametrize(
    ("labels", "most"), [(("",), 2), (("a", "a", "a"), 2), (("a", "b"), 4), (("", ""), 4)]
)
def test_idle_polls_need_a_slot_of_their_account(labels: tuple[str, ...], most: int) -> None:
    pool = pool_of(*labels)
    for _ in range(most):
        idle(pool)
    assert pool.take_idle(0.0) is None
    assert pool.can_take(0.0)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_slot_is_free_again_whatever_became_of_its_poll(outcome: Outcome) -> None:
    pool = pool_of("a", "a")
    leases = [idle(pool), idle(pool)]
    pool.give_back(leases[0], outcome, 0.0)
    pool.give_back(leases[0], outcome, 0.0)  # once only
    idle(pool, 4000.0)
    assert pool.take_idle(4000.0) is None


def test_failures_are_backed_off_from_ever_longer() -> None:
    pool = pool_of("")
    now = 0.0
    waits = []
    for _ in range(9):
        pool.give_back(active(pool, now), Outcome.FAILED, now)
        wake_at = pool.wake_at(now)
        assert wake_at is not None
        assert pool.take_active(wake_at - 0.001) is None
        waits.append(wake_at - now)
        now = wake_at
    assert waits == [3, 6, 12, 24, 48, 300, 1800, 3600, 3600]
    pool.give_back(active(pool, now), Outcome.ANSWERED, now)
    pool.give_back(active(pool, now), Outcome.FAILED, now)
    assert pool.wake_at(now) == now + 3


@pytest.mark.parametrize(
    ("outcome", "seconds"),
    [
        (Outcome.THROTTLED, 24),
        (Outcome.FORBIDDEN, 300),
        (Outcome.FOREIGN, 24),
        (Outcome.OFFLINE, 15),
        (Outcome.FAILED, 3),
    ],
)
def test_each_fault_has_its_shortest_time(outcome: Outcome, seconds: int) -> None:
    pool = pool_of("")
    pool.give_back(active(pool), outcome, 0.0)
    assert pool.wake_at(0.0) == seconds


def test_being_offline_is_not_held_against_an_endpoint() -> None:
    pool = pool_of("")
    for now in (0.0, 15.0, 30.0):
        pool.give_back(active(pool, now), Outcome.OFFLINE, now)
        assert pool.wake_at(now) == now + 15


def test_polls_that_fail_together_count_once() -> None:
    pool = pool_of("")
    leases = [active(pool) for _ in range(3)]
    for lease in leases:
        pool.give_back(lease, Outcome.FAILED, 0.0)
    assert pool.wake_at(0.0) == 3


def test_one_poll_probes_an_endpoint_after_its_time() -> None:
    pool = pool_of("")
    pool.give_back(active(pool), Outcome.FAILED, 0.0)
    probe = active(pool, 3.0)
    assert pool.take_active(3.0) is None
    assert pool.take_idle(3.0) is None
    pool.give_back(probe, Outcome.ANSWERED, 3.5)
    active(pool, 3.5)
    idle(pool, 3.5)


def test_nobody_polls_while_all_are_backed_off() -> None:
    pool = pool_of("", "")
    pool.give_back(active(pool), Outcome.FORBIDDEN, 0.0)
    pool.give_back(active(pool), Outcome.THROTTLED, 0.0)
    assert not pool.can_take(23.9)
    assert pool.take_idle(23.9) is None
    assert pool.room(23.9) == 0
    assert pool.wake_at(23.9) == 24


def test_a_lost_poll_does_not_cost_an_endpoint_that_answers_others() -> None:
    pool = pool_of("")
    pool.give_back(active(pool), Outcome.LOST, 1.0)
    assert pool.can_take(1.0)
    for _ in range(5):
        lease = active(pool, 1.9)
        pool.give_back(lease, Outcome.LOST, 1.0)
    assert pool.can_take(1.9)  # after a moment
    pool.give_back(active(pool, 1.9), Outcome.ANSWERED, 1.9)
    pool.give_back(active(pool, 1.9), Outcome.LOST, 1.9)
    assert pool.can_take(1.9)


def test_polls_that_are_lost_for_seconds_are_a_failure() -> None:
    pool = pool_of("")
    now = 0.0
    while now < 2:
        pool.give_back(active(pool, now), Outcome.LOST, now)
        now = max(pool.wake_at(now) or now, now)
    pool.give_back(active(pool, now), Outcome.LOST, now)
    assert (pool.wake_at(now) or 0) >= now + 3


def test_what_did_not_pass_is_halved_and_remembered_for_a_while() -> None:
    room = Room()
    room.halve(FIRST_ROOM, 10.0)
    room.halve(FIRST_ROOM, 10.0)  # it was under way already
    assert room.at(10.0) == FIRST_ROOM // 2
    for _ in range(20):
        room.halve(room.at(11.0), 11.0)
    assert room.at(11.0) == SMALLEST_ROOM
    assert room.at(11.0 + REMEMBERED_SECONDS) == FIRST_ROOM


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (200, b"\x00rest", None),
        (200, b"\x01rest", None),
        (200, b"", Outcome.FOREIGN),
        (200, b"<!doctype html>", Outcome.FOREIGN),
        (200, b"HTTP/1.1 200 OK", Outcome.FOREIGN),
        (200, b"<html>Daily quota exceeded", Outcome.FORBIDDEN),
        (200, b'{"error":"Quota"}', Outcome.FORBIDDEN),
        (200, b"[]", Outcome.FOREIGN),
        (403, b"", Outcome.FORBIDDEN),
        (404, b"", Outcome.FOREIGN),
        (413, b"", Outcome.TOO_LARGE),
        (429, b"quota", Outcome.THROTTLED),
        (502, b"<html>", Outcome.LOST),
        (504, b"", Outcome.LOST),
        (500, b"\x00", Outcome.FOREIGN),
    ],
)
def test_answers_of_others_are_known_for_what_they_are(
    status: int, body: bytes, outcome: Outcome | None
) -> None:
    assert classify(status, body) is outcome


def test_a_pool_without_endpoints_is_none() -> None:
    with pytest.raises(ValueError, match="one endpoint"):
        EndpointPool([])
