"""Posts polls, and says of what comes back what it means for the endpoint."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Final, NamedTuple, Protocol

from fairlead_tunnel.endpoints import Endpoint, Lease, Outcome, classify
from fairlead_tunnel.http_posts import Answer, NotConnected, PostCut
from fairlead_tunnel.outbox import SMALLEST_BATCH
from fairlead_tunnel.poll_pace import PollPace
from fairlead_tunnel.poll_wire import MOST_BODY_BYTES, POLL_PATH

BODY_RESERVE: Final = 2 * SMALLEST_BATCH
"""So much of a body is kept for what is not batches, and for the last of them."""

_LOSSES_TO_HALVE: Final = 3
_REFUSED_UNREAD: Final = (413, 429)
"""Who answers this has passed nothing on. Others may have: a hop that gets no good answer says 502,
and one that lets none through 403.
"""
_OFFLINE: Final = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN)


class Posts(Protocol):
    """Posts whole bodies; `http_posts` over HTTP."""

    async def post(
        self, url: str, target: str, body: bytes, *, first_seconds: float, most_bytes: int
    ) -> Answer:
        """Post a body to `target` below `url` and return the answer; OSError, TimeoutError."""
        ...


class Posted(NamedTuple):
    """How a post went, with the answer if it may be one of this protocol; without `reached` no
    gateway can have got it.
    """

    outcome: Outcome
    answer: Answer | None = None
    reached: bool = True


class PollPosts:
    """The posts of one carrier."""

    def __init__(self, *, posts: Posts, pace: PollPace) -> None:
        self._posts = posts
        self._pace = pace
        self._loop = asyncio.get_running_loop()

    async def post(self, lease: Lease, body: bytes, *, hold: float) -> Posted:
        """Post a body that may be held for `hold` seconds."""
        endpoint = lease.endpoint
        started = self._loop.time()
        try:
            answer = await self._posts.post(
                endpoint.url,
                POLL_PATH,
                body,
                first_seconds=hold + self._pace.margin,
                most_bytes=MOST_BODY_BYTES,
            )
        except PostCut as cut:
            self._unanswered(started, hold, was_cut=True)
            if cut.received:
                endpoint.down.halve(cut.received, self._loop.time())
            else:
                self._note_lost(endpoint, len(body))
            return Posted(Outcome.LOST)
        except NotConnected as error:
            return Posted(self._failed(started, hold, error.fault), reached=False)
        except OSError as error:
            if not isinstance(error, TimeoutError) or self._pace.answered_since(started):
                self._note_lost(endpoint, len(body))
            return Posted(self._failed(started, hold, error))
        outcome = classify(answer.status, answer.body)
        if outcome is None:
            return Posted(Outcome.ANSWERED, answer)
        if outcome is Outcome.TOO_LARGE:
            endpoint.up.halve(len(body) - BODY_RESERVE, self._loop.time())
        elif outcome is Outcome.LOST:
            self._unanswered(started, hold, was_cut=True)
        return Posted(outcome, reached=answer.status not in _REFUSED_UNREAD)

    def _failed(self, started: float, hold: float, error: OSError) -> Outcome:
        if isinstance(error, TimeoutError | ConnectionResetError | BrokenPipeError):
            self._unanswered(started, hold, was_cut=not isinstance(error, TimeoutError))
            return Outcome.LOST
        is_offline = isinstance(error, socket.gaierror) or error.errno in _OFFLINE
        return Outcome.OFFLINE if is_offline else Outcome.FAILED

    def _unanswered(self, started: float, hold: float, *, was_cut: bool) -> None:
        now = self._loop.time()
        self._pace.unanswered(elapsed=now - started, hold=hold, was_cut=was_cut, now=now)

    def _note_lost(self, endpoint: Endpoint, size: int) -> None:
        """Send less where long bodies get lost again and again, though others pass."""
        now = self._loop.time()
        if size > endpoint.up.at(now) // 2:
            endpoint.losses += 1
            if endpoint.losses >= _LOSSES_TO_HALVE:
                endpoint.losses = 0
                endpoint.up.halve(size - BODY_RESERVE, now)
