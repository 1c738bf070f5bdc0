"""One-time tokens for connections to ports inside sandboxes."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from chassis.clock import Clock
from sandbox_worker.errors import ArgumentInvalid, TokensExhausted
from sandbox_worker.sandboxes import Sandboxes

TOKEN_BYTES = 32
TOKEN_SECONDS = 30.0
_HIGHEST_PORT = 65535
_MOST_TOKENS = 65536


@dataclass(frozen=True, slots=True)
class PortGrant:
    """What a token allows: one connection to one port of one sandbox."""

    tenant: str
    sandbox_id: str
    port: int
    ends_at: float


class PortTokens:
    """Gives out tokens and takes each of them back once.

    Only their SHA-256 is kept, as the key of a dictionary: how long a look-up takes says nothing
    about a token that is nearly right.
    """

    def __init__(self, *, sandboxes: Sandboxes, clock: Clock) -> None:
        self._sandboxes = sandboxes
        self._clock = clock
        self._grants: dict[bytes, PortGrant] = {}

    def open_port(self, *, tenant: str, sandbox_id: str, port: int) -> bytes:
        """Return a token; raises SandboxNotFound, TokensExhausted."""
        if not 1 <= port <= _HIGHEST_PORT:
            raise ArgumentInvalid("port", f"is from 1 to {_HIGHEST_PORT}")
        self._sandboxes.enter(tenant, sandbox_id)
        self._drop_ended()
        if len(self._grants) >= _MOST_TOKENS:
            raise TokensExhausted(_MOST_TOKENS)
        token = secrets.token_bytes(TOKEN_BYTES)
        self._grants[_digest(token)] = PortGrant(
            tenant=tenant,
            sandbox_id=sandbox_id,
            port=port,
            ends_at=self._clock.monotonic() + TOKEN_SECONDS,
        )
        return token

    def redeem(self, token: bytes) -> PortGrant | None:
        """Return what the token allows and use it up; None when it is unknown, used or too old."""
        grant = self._grants.pop(_digest(token), None)
        if grant is None or grant.ends_at <= self._clock.monotonic():
            return None
        return grant

    def _drop_ended(self) -> None:
        now = self._clock.monotonic()
        # All live equally long, so that the oldest come first.
        for digest, grant in list(self._grants.items()):
            if grant.ends_at > now:
                break
            del self._grants[digest]


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
