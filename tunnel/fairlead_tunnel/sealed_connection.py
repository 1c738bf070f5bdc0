"""A peer connection whose descriptions and candidates leave and come sealed.

The first offer carries the salt in clear, before what is sealed:

    offer = "fl1." base64url(salt ‖ nonce ‖ sealed)

so that it has the form of all that is sealed, and the gateway needs nothing but the secret. What
the connection gives to be passed on is sealed once; who repeats it sends the same text again.
"""

from __future__ import annotations

from collections.abc import Callable

from fairlead_tunnel.base64url import base64url, from_base64url
from fairlead_tunnel.peer_connection import (
    CandidateFound,
    CoreError,
    GatheringDone,
    IceServer,
    PeerChannel,
    PeerConnection,
    PeerEvent,
)
from fairlead_tunnel.sealed_signals import (
    PREFIX,
    SALT_BYTES,
    Direction,
    NotSealed,
    SealBroken,
    SealedSignals,
    SealError,
    SignalKind,
)


class SealRejected(CoreError):
    """What came is not sealed, or the seal does not fit."""

    def __init__(self, cause: SealError) -> None:
        super().__init__(cause.reason, str(cause))


def salted_offer(salt: bytes, sealed: str) -> str:
    """Return a sealed first offer with its salt."""
    return PREFIX + base64url(salt + from_base64url(sealed.removeprefix(PREFIX)))


def salt_of(offer: str) -> tuple[bytes, str]:
    """Return the salt of a first offer, and what is sealed; raises SealRejected."""
    try:
        raw = from_base64url(offer.removeprefix(PREFIX))
    except ValueError:
        raise SealRejected(NotSealed()) from None
    if not offer.startswith(PREFIX) or len(raw) <= SALT_BYTES:
        raise SealRejected(NotSealed())
    return raw[:SALT_BYTES], PREFIX + base64url(raw[SALT_BYTES:])


class SealedConnection:
    """Seals what `connection` says and opens what it is told; see `PeerConnection`.

    A client gives its `salt`; a gateway learns it from the first offer, and `checked` refuses or
    mends an offer once it is open.
    """

    def __init__(
        self,
        *,
        connection: PeerConnection,
        secret: bytes,
        session: str,
        salt: bytes = b"",
        checked: Callable[[str], str] = lambda offer: offer,
    ) -> None:
        self._connection = connection
        self._secret = secret
        self._session = session
        self._salt = salt
        self._checked = checked
        self._signals: SealedSignals | None = None
        self._rounds = 0

    def listen(self, take: Callable[[PeerEvent], None]) -> None:
        """Tell events from now on, candidates and their end sealed."""

        def sealed(event: PeerEvent) -> None:
            match event:
                case CandidateFound(candidate):
                    event = CandidateFound(self._seal(SignalKind.CANDIDATE, candidate))
                case GatheringDone():
                    take(CandidateFound(self._seal(SignalKind.CANDIDATE, "")))
                case _:
                    pass
            take(event)

        self._connection.listen(sealed)

    def use_servers(self, servers: tuple[IceServer, ...]) -> None:
        """Ask these servers from the next round on."""
        self._connection.use_servers(servers)

    async def offer(self) -> str:
        """Return the sealed offer of the first round, with its salt."""
        self._begin(self._salt, Direction.CLIENT)
        sealed = self._seal(SignalKind.OFFER, await self._connection.offer())
        return salted_offer(self._salt, sealed)

    async def restart(self) -> str:
        """Return the sealed offer of one more round."""
        return self._seal(SignalKind.RESTART_OFFER, await self._connection.restart())

    async def answer(self, offer: str) -> str:
        """Return the sealed answer; raises SealRejected, and what the connection refuses."""
        if self._signals is None:
            salt, offer = salt_of(offer)
            self._begin(salt, Direction.GATEWAY)
        is_first = not self._rounds
        plain = self._open(SignalKind.OFFER if is_first else SignalKind.RESTART_OFFER, offer)
        answer = await self._connection.answer(self._checked(plain))
        self._rounds += 1
        return self._seal(SignalKind.ANSWER if is_first else SignalKind.RESTART_ANSWER, answer)

    async def accept(self, answer: str) -> None:
        """Take the sealed answer to the last offer; raises SealRejected."""
        kind = SignalKind.RESTART_ANSWER if self._rounds else SignalKind.ANSWER
        await self._connection.accept(self._open(kind, answer))
        self._rounds += 1

    async def add_candidate(self, candidate: str) -> None:
        """Take a sealed candidate, or the sealed end; what has no fitting seal changes nothing."""
        try:
            plain = self._open(SignalKind.CANDIDATE, candidate)
        except SealRejected:
            return
        if plain:
            await self._connection.add_candidate(plain)
        else:
            await self._connection.end_candidates()

    async def end_candidates(self) -> None:
        """Change nothing: that there are no more is said by the peer, under its seal."""

    def open_channel(self, label: str, protocol: str) -> PeerChannel:
        """Open an ordered and reliable channel."""
        return self._connection.open_channel(label, protocol)

    async def close(self) -> None:
        """Free everything."""
        await self._connection.close()

    def _begin(self, salt: bytes, direction: Direction) -> None:
        self._signals = SealedSignals(
            secret=self._secret, salt=salt, session=self._session, direction=direction
        )

    def _seal(self, kind: SignalKind, text: str) -> str:
        if self._signals is None:
            raise SealRejected(NotSealed())
        try:
            return self._signals.seal(kind, text)
        except SealError as error:
            raise SealRejected(error) from error

    def _open(self, kind: SignalKind, sealed: str) -> str:
        if self._signals is None:
            raise SealRejected(SealBroken())
        try:
            return self._signals.open(kind, sealed)
        except SealError as error:
            raise SealRejected(error) from error
