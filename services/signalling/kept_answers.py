"""Answers to mutations with an idempotency key, kept so that a retry gets the same one. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from chassis.errors import AlreadyExists, Unavailable


class AnswerConflict(AlreadyExists):
    """The key was used for another request to the same route."""

    def __init__(self) -> None:
        super().__init__(
            "The idempotency key was used with another body.",
            reason="idempotency_conflict",
            remedy="Use a new key for a new request.",
        )


class AnswerPending(Unavailable):
    """The first request with the key is still being worked on."""

    def __init__(self) -> None:
        super().__init__(
            "The first request with this idempotency key is not answered yet.",
            reason="idempotency_pending",
            remedy="Try again in a moment.",
        )


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """A request by its digest, with its answer once there is one (`status` is 0 before)."""

    digest: str
    status: int = 0
    media_type: str = ""
    body: str = ""

    @property
    def is_pending(self) -> bool:
        """Say whether the request is still being worked on."""
        return self.status == 0


class KeptAnswers(Protocol):
    """The answers that all replicas share."""

    async def claim(self, name: str, digest: str, *, ttl_seconds: int) -> KeptAnswer | None:
        """Take a name for a request, and return None; or return what has the name already."""
        ...

    async def keep(self, name: str, answer: KeptAnswer, *, ttl_seconds: int) -> None:
        """Keep the answer of a request that has the name."""
        ...

    async def drop(self, name: str) -> None:
        """Give a name back; the request failed and may be tried again."""
        ...
