"""Which endpoint takes the next poll: rotation, idle slots, back-off and sizes, without I/O.

An endpoint is a gateway's address or a hop that forwards to it. Endpoints of one account carry the
same label and share its idle slots; one without a label is a group of its own. Whoever wants a poll
takes a lease and gives it back with how it went. Time is seconds that callers pass.

    outcome     what it means for the endpoint
    answered    it is healthy, whatever was before
    lost        no answer: nothing at first, a moment's pause from the second one on; counts as
                failed once three followed each other and there was no answer for 2 s
    failed      3, 6, 12, 24, 48 s, 5 min, 30 min and then 1 h without it
    throttled   as failed, 24 s at least (429)
    forbidden   as failed, 5 min at least (403, a page that speaks of a quota)
    foreign     as failed, 24 s at least (an answer that is none of this protocol)
    too_large   as lost, with bodies half as long (413)
    offline     15 s without it, without counting: this machine has no network
    abandoned   nothing: the poll was cancelled

After a back-off one poll probes the endpoint; the others follow once it was answered. While all are
backed off nobody polls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from fairlead_tunnel.poll_wire import SMALLEST_ROOM

WORKERS_PER_ENDPOINT: Final = 3
IDLE_SLOTS: Final = 2
FIRST_ROOM: Final = 1024 * 1024
REMEMBERED_SECONDS: Final = 600.0

_RAMP: Final = (3.0, 6.0, 12.0, 24.0, 48.0, 300.0, 1800.0, 3600.0)
_OFFLINE_SECONDS: Final = 15.0
_LOSSES_TO_FAIL: Final = 3
_SILENCE_TO_FAIL: Final = 2.0
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.64


class Outcome(StrEnum):
    """How a poll went; the module's table says what follows."""

    ANSWERED = "answered"
    LOST = "lost"
    FAILED = "failed"
    THROTTLED = "throttled"
    FORBIDDEN = "forbidden"
    FOREIGN = "foreign"
    TOO_LARGE = "too_large"
    OFFLINE = "offline"
    ABANDONED = "abandoned"


_FLOORS: Final = {
    Outcome.FAILED: 0.0,
    Outcome.THROTTLED: 24.0,
    Outcome.FORBIDDEN: 300.0,
    Outcome.FOREIGN: 24.0,
}


def classify(status: int, body: bytes) -> Outcome | None:
    """Return what an answer means that may be none of this protocol; None: it is to be opened."""
    if status == 200 and body[:1] in (b"\x00", b"\x01"):
        return None
    if status == 413:
        return Outcome.TOO_LARGE
    if status == 429:
        return Outcome.THROTTLED
    if status == 403 or b"quota" in body[:4096].lower():
        return Outcome.FORBIDDEN
    if status in (408, 502, 503, 504):
        return Outcome.LOST
    return Outcome.FOREIGN


@dataclass(slots=True)
class Room:
    """How many bytes of batches a body has; what was found too much is remembered for a while."""

    most: int = FIRST_ROOM
    _until: float = 0.0

    def at(self, now: float) -> int:
        """Return how many there may be now."""
        if now >= self._until:
            self.most = FIRST_ROOM
        return self.most

    def halve(self, size: int, now: float) -> None:
        """Note that a body of `size` bytes did not pass."""
        if size <= self.at(now):  # what was sent before the last halving says nothing new
            self.most = max(min(self.most, size) // 2, SMALLEST_ROOM)
            self._until = now + REMEMBERED_SECONDS


@dataclass(slots=True)
class Health:
    """Whether an endpoint may be asked."""

    blocked_until: float = 0.0
    failures: int = 0
    losses: int = 0
    answered_at: float = float("-inf")

    def note(self, outcome: Outcome, now: float) -> None:
        """Note how a poll went."""
        match outcome:
            case Outcome.ABANDONED:
                return
            case Outcome.ANSWERED:
                self.blocked_until = 0.0
                self.failures = self.losses = 0
                self.answered_at = now
            case Outcome.LOST | Outcome.TOO_LARGE:
                self._on_lost(now)
            case Outcome.OFFLINE:
                self.blocked_until = max(self.blocked_until, now + _OFFLINE_SECONDS)
            case _:
                self._on_failed(_FLOORS[outcome], now)

    def _on_lost(self, now: float) -> None:
        self.losses += 1
        is_silent = now - self.answered_at >= _SILENCE_TO_FAIL
        if self.failures or (self.losses >= _LOSSES_TO_FAIL and is_silent):
            self._on_failed(0.0, now)
        elif self.losses > 1:
            pause = min(_FIRST_PAUSE * 2 ** (self.losses - 2), _LONGEST_PAUSE)
            self.blocked_until = max(self.blocked_until, now + pause)

    def _on_failed(self, floor: float, now: float) -> None:
        if self.failures and now < self.blocked_until:
            # Polls that were under way together fail together, and once.
            self.blocked_until = max(self.blocked_until, now + floor)
            return
        wait = max(_RAMP[min(self.failures, len(_RAMP) - 1)], floor)
        self.failures += 1
        self.blocked_until = now + wait


@dataclass(slots=True)
class Endpoint:
    """One address; `label` names the account whose idle slots it shares."""

    url: str
    label: str = ""
    health: Health = field(default_factory=Health)
    up: Room = field(default_factory=Room)
    down: Room = field(default_factory=Room)
    polls: int = 0
    losses: int = 0
    """How many long bodies in a row did not pass."""

    @property
    def group(self) -> str:
        """The group that it belongs to."""
        return f"account:{self.label}" if self.label else f"url:{self.url}"

    def usable(self, now: float) -> bool:
        """Say whether a poll may be sent now: while it is probed, no other is."""
        return now >= self.health.blocked_until and not (self.health.failures and self.polls)


@dataclass(slots=True, eq=False)
class Lease:
    """One poll's use of an endpoint."""

    endpoint: Endpoint
    is_idle: bool
    is_back: bool = False


class EndpointPool:
    """The endpoints of one client."""

    def __init__(
        self, endpoints: Sequence[Endpoint], *, idle_slots: int = IDLE_SLOTS, now: float = 0.0
    ) -> None:
        if not endpoints:
            raise ValueError("a pool has one endpoint or more")
        self._endpoints = list(endpoints)
        for each in self._endpoints:
            each.health.answered_at = now  # it has 2 s to show itself
        self._idle_slots = idle_slots
        self._idle: Counter[str] = Counter()
        self._active = 0
        self._turn = 0

    @property
    def workers(self) -> int:
        """How many active polls there may be at once."""
        return WORKERS_PER_ENDPOINT * len(self._endpoints)

    @property
    def idle(self) -> int:
        """How many idle polls there are."""
        return self._idle.total()

    def can_take(self, now: float) -> bool:
        """Say whether an active poll may be sent now."""
        return self._active < self.workers and any(each.usable(now) for each in self._endpoints)

    def room(self, now: float) -> int:
        """Return how many bytes of batches pass wherever a poll may be sent now."""
        return min((each.up.at(now) for each in self._endpoints if each.usable(now)), default=0)

    def take_active(self, now: float) -> Lease | None:
        """Take the next healthy endpoint; None: none is, or all workers are busy."""
        if self._active >= self.workers:
            return None
        endpoint = self._next(now, is_idle=False)
        if endpoint is None:
            return None
        self._active += 1
        endpoint.polls += 1
        return Lease(endpoint, is_idle=False)

    def take_idle(self, now: float) -> Lease | None:
        """Take the next healthy endpoint whose group has a free idle slot; None: none has."""
        endpoint = self._next(now, is_idle=True)
        if endpoint is None:
            return None
        self._idle[endpoint.group] += 1
        endpoint.polls += 1
        return Lease(endpoint, is_idle=True)

    def give_back(self, lease: Lease, outcome: Outcome, now: float) -> None:
        """Free what a lease took, and note how its poll went; only the first time counts."""
        if lease.is_back:
            return
        lease.is_back = True
        lease.endpoint.polls -= 1
        if lease.is_idle:
            self._idle[lease.endpoint.group] -= 1
        else:
            self._active -= 1
        lease.endpoint.health.note(outcome, now)

    def wake_at(self, now: float) -> float | None:
        """Return when an endpoint that is blocked now may be asked again; None: none is."""
        times = [each.health.blocked_until for each in self._endpoints]
        return min((each for each in times if each > now), default=None)

    def _next(self, now: float, *, is_idle: bool) -> Endpoint | None:
        count = len(self._endpoints)
        for step in range(count):
            endpoint = self._endpoints[(self._turn + step) % count]
            is_full = is_idle and self._idle[endpoint.group] >= self._idle_slots
            if endpoint.usable(now) and not is_full:
                self._turn = (self._turn + step + 1) % count
                return endpoint
        return None
