"""Offers, answers and candidates that only the two peers can read and make.

Client and gateway share a secret that signalling does not have. Each direction of each session has
a key of its own, and what is sealed says what it is:

    key        = HKDF-SHA256(secret, salt, info)                              RFC 5869
    info       = "fairlead sealed signals 1" 00 direction 00 session
    additional = "fl1" 00 kind 00 direction 00 session
    sealed     = "fl1." base64url(nonce ‖ AES-256-GCM(key, nonce, additional, UTF-8 text))

`secret` has 32 bytes, `salt` 16 that the client picks for each session and tells in clear. `nonce`
has 12 bytes and is random, so a peer that starts anew under the same key needs no memory of what it
used: two of 2^32 are the same with a chance below 2^-32 (NIST SP 800-38D, section 8.3), and one
object here makes no more than 2^16. The tag has 16 bytes. `direction` is `client` or `gateway`, who
seals; `session` is the session's one spelling (`session_names`).

What is sealed twice differs: who repeats a call sends the text again that it has. Signalling can
still drop what it carries or deliver it again, which the negotiation has to bear anyway.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from enum import StrEnum
from typing import ClassVar, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fairlead_tunnel.base64url import base64url, from_base64url
from fairlead_tunnel.session_names import session_name

PREFIX: Final = "fl1."
SECRET_BYTES: Final = 32
SALT_BYTES: Final = 16
MAX_TEXT_BYTES: Final = 64 * 1024
MAX_SEALED: Final = len(PREFIX) + (12 + MAX_TEXT_BYTES + 16 + 2) // 3 * 4

_NONCE_BYTES = 12
_TAG_BYTES = 16
_MAX_SEALS = 1 << 16


class Direction(StrEnum):
    """Who seals."""

    CLIENT = "client"
    GATEWAY = "gateway"

    @property
    def other(self) -> Direction:
        """Return who opens."""
        return Direction.GATEWAY if self is Direction.CLIENT else Direction.CLIENT


class SignalKind(StrEnum):
    """What is sealed; `CANDIDATE` with an empty text is the end of candidates."""

    OFFER = "offer"
    ANSWER = "answer"
    CANDIDATE = "candidate"
    RESTART_OFFER = "restart_offer"
    RESTART_ANSWER = "restart_answer"


class SealError(Exception):
    """Something cannot be sealed or opened; `reason` is stable and in lower snake case."""

    reason: ClassVar[str] = "seal_error"


class NotSealed(SealError):
    """A text has not the form of something sealed."""

    reason = "not_sealed"

    def __init__(self) -> None:
        super().__init__("This is nothing sealed, or sealed in a version that is not known here.")


class SealBroken(SealError):
    """A sealed text was changed, or is of another kind, direction, session or secret."""

    reason = "seal_broken"

    def __init__(self) -> None:
        super().__init__("The seal does not fit: another secret, or the text was tampered with.")


class SignalTooLong(SealError):
    """A text has more than 64 KiB in UTF-8."""

    reason = "signal_too_long"

    def __init__(self) -> None:
        super().__init__("What is sealed has at most 64 KiB.")


class SealsUsedUp(SealError):
    """One end has sealed as often as one key allows."""

    reason = "seals_used_up"

    def __init__(self) -> None:
        super().__init__(f"{_MAX_SEALS} signals were sealed in this session; open another one.")


class SealedSignals:
    """One peer's end of a sealed session: it seals its own direction and opens the other one."""

    def __init__(
        self,
        *,
        secret: bytes,
        salt: bytes,
        session: str,
        direction: Direction,
        randomness: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """Derive both keys. `session` is an id in any spelling; raises ValueError for a secret or a
        salt of the wrong length, and SessionNameInvalid.
        """
        if len(secret) != SECRET_BYTES or len(salt) != SALT_BYTES:
            raise ValueError(f"A secret has {SECRET_BYTES} bytes, a salt {SALT_BYTES}.")
        self._session = session_name(session)
        self._direction = direction
        self._randomness = randomness
        self._sealing = AESGCM(self._key(secret, salt, direction))
        self._opening = AESGCM(self._key(secret, salt, direction.other))
        self._seals = 0

    def seal(self, kind: SignalKind, text: str) -> str:
        """Return `text` sealed as `kind`; raises SignalTooLong and SealsUsedUp."""
        plain = text.encode()
        if len(plain) > MAX_TEXT_BYTES:
            raise SignalTooLong
        if self._seals == _MAX_SEALS:
            raise SealsUsedUp
        self._seals += 1
        nonce = self._randomness(_NONCE_BYTES)
        sealed = self._sealing.encrypt(nonce, plain, self._additional(kind, self._direction))
        return PREFIX + base64url(nonce + sealed)

    def open(self, kind: SignalKind, sealed: str) -> str:
        """Return what the other peer sealed as `kind`; raises NotSealed and SealBroken."""
        raw = _raw(sealed)
        nonce, body = raw[:_NONCE_BYTES], raw[_NONCE_BYTES:]
        try:
            plain = self._opening.decrypt(
                nonce, body, self._additional(kind, self._direction.other)
            )
        except InvalidTag:
            raise SealBroken from None
        try:
            return plain.decode()
        except UnicodeDecodeError:
            raise NotSealed from None

    def _key(self, secret: bytes, salt: bytes, direction: Direction) -> bytes:
        label = _fields("fairlead sealed signals 1", direction, self._session)
        return HKDF(algorithm=SHA256(), length=32, salt=salt, info=label).derive(secret)

    def _additional(self, kind: SignalKind, direction: Direction) -> bytes:
        return _fields("fl1", kind, direction, self._session)


def is_sealed(text: str) -> bool:
    """Say whether a text has the form of something sealed, which is all that signalling can see."""
    try:
        _raw(text)
    except NotSealed:
        return False
    return True


def _fields(*fields: str) -> bytes:
    # None of them can hold a NUL: kinds and directions are ours, and a session's name is base64url.
    return b"\0".join(field.encode() for field in fields)


def _raw(sealed: str) -> bytes:
    """Return nonce, ciphertext and tag; there is one text for each, so that none can be varied."""
    if len(sealed) > MAX_SEALED or not sealed.startswith(PREFIX):
        raise NotSealed
    try:
        raw = from_base64url(sealed.removeprefix(PREFIX))
    except ValueError:
        raise NotSealed from None
    if len(raw) < _NONCE_BYTES + _TAG_BYTES:
        raise NotSealed
    return raw
