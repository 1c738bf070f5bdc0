"""Sealed batches: what a carrier of a tunnel transports, once `handshake` has made its keys.

Each direction of each carrier connection has a key of its own and counts its records from 0:

    sealed = AEAD(key_e, nonce, batch), no additional data, 16 bytes of tag at its end
    nonce  = 00000000 ‖ n u64        big-endian for AES-GCM, little-endian for ChaCha20-Poly1305
    key_0  = the handshake's key, key_(e+1) = REKEY(key_e), e = n >> 16

(Noise, sections 4.2, 5.1, 11.3 and 12). A key seals at most 2^16 records of at most 256 KiB, 2^30
blocks, far below what AES-GCM bears (RFC 8446, section 5.5); what is sent again is a new record
with a new number, so no nonce is ever used for other bytes.

Where a carrier keeps order, `n` is the place in the stream and a record is

    record = length u32 of sealed ‖ sealed

and whatever is missing, doubled, changed or out of order fails to open and ends the connection.
Where it does not (polls), `n` is told, and each is taken once, in a window of 1024 below the
highest (RFC 4303, section 3.4.3; RFC 6479):

    record = n u64 ‖ length u32 of sealed ‖ sealed
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from fairlead_tunnel.frames import Content

MAX_BATCH_BYTES: Final = 256 * 1024
TAG_BYTES: Final = 16
LENGTH_BYTES: Final = 4
KEY_BYTES: Final = 32
LAST_RECORD: Final = 2**48 - 1
REPLAY_WINDOW: Final = 1024

_NONCE_BYTES = 12
_EPOCH_BITS = 16
_REKEY_NONCE = 2**64 - 1
_SEEN = (1 << REPLAY_WINDOW) - 1


class Suite(IntEnum):
    """The AEAD of a tunnel's records and of its handshake."""

    AES_256_GCM = 1
    CHACHA20_POLY1305 = 2


class RecordInvalid(ValueError):
    """A record that was changed, cut, doubled, or is older than what is remembered."""


class _Aead(Protocol):
    def encrypt(self, nonce: Content, batch: Content, additional: None, /) -> bytes: ...

    def encrypt_into(
        self, nonce: Content, batch: Content, additional: None, place: memoryview, /
    ) -> int: ...

    def decrypt(self, nonce: Content, sealed: Content, additional: None, /) -> bytes: ...


def _cipher(suite: Suite, key: bytes) -> _Aead:
    return AESGCM(key) if suite is Suite.AES_256_GCM else ChaCha20Poly1305(key)


def nonce_of(suite: Suite, number: int) -> bytes:
    """Return the 12 bytes of nonce of a record."""
    if suite is Suite.AES_256_GCM:
        return number.to_bytes(_NONCE_BYTES, "big")
    return (number << 32).to_bytes(_NONCE_BYTES, "little")


def rekey(suite: Suite, key: bytes) -> bytes:
    """Return the key that follows another (Noise, section 4.2)."""
    sealed = _cipher(suite, key).encrypt(nonce_of(suite, _REKEY_NONCE), bytes(KEY_BYTES), None)
    return sealed[:KEY_BYTES]


class _Keys:
    """The ciphers of one direction: the newest epoch asked for, and the one before."""

    def __init__(self, suite: Suite, key: bytes) -> None:
        self._suite = suite
        self._key = key
        self._epoch = 0
        self._now = _cipher(suite, key)
        self._before: _Aead | None = None

    def at(self, epoch: int) -> _Aead:
        """Return the cipher of this epoch, the next or the one before; RecordInvalid: others."""
        if epoch == self._epoch:
            return self._now
        if epoch == self._epoch - 1 and self._before is not None:
            return self._before
        if epoch != self._epoch + 1:
            raise RecordInvalid("a record has a number far from those before it")
        return _cipher(self._suite, rekey(self._suite, self._key))

    def reach(self, epoch: int) -> None:
        """Go on to the next epoch, once something of it was sealed or opened."""
        if epoch == self._epoch + 1:
            self._before = self._now
            self._key = rekey(self._suite, self._key)
            self._now = _cipher(self._suite, self._key)
            self._epoch = epoch


class Sealer:
    """Seals the batches of one direction; each gets the next number."""

    def __init__(self, *, suite: Suite, key: bytes) -> None:
        self._suite = suite
        self._keys = _Keys(suite, key)
        self._next = 0

    def seal(self, batch: Content) -> tuple[int, bytes]:
        """Return a record's number and its sealed bytes; RecordInvalid when no number is left."""
        number, nonce, cipher = self._use(batch)
        return number, cipher.encrypt(nonce, batch, None)

    def seal_in_order(self, batch: Content) -> bytearray:
        """Return a whole record for a carrier that keeps order, sealed in its place."""
        _, nonce, cipher = self._use(batch)
        size = len(batch) + TAG_BYTES
        record = bytearray(LENGTH_BYTES + size)
        record[:LENGTH_BYTES] = size.to_bytes(LENGTH_BYTES, "big")
        with memoryview(record) as view:
            cipher.encrypt_into(nonce, batch, None, view[LENGTH_BYTES:])
        return record

    def _use(self, batch: Content) -> tuple[int, bytes, _Aead]:
        """Take the next number; returns it, its nonce and its cipher."""
        number = self._next
        if number > LAST_RECORD or len(batch) > MAX_BATCH_BYTES:
            raise RecordInvalid("a batch is too long, or the key has sealed all that it may")
        self._next += 1
        self._keys.reach(number >> _EPOCH_BITS)
        return number, nonce_of(self._suite, number), self._keys.at(number >> _EPOCH_BITS)


class Opener:
    """Opens the records of one direction, each number once."""

    def __init__(self, *, suite: Suite, key: bytes) -> None:
        self._suite = suite
        self._keys = _Keys(suite, key)
        self._highest = -1
        self._seen = 0

    @property
    def next(self) -> int:
        """The number after the highest that was opened: the next one where order is kept."""
        return self._highest + 1

    def open(self, number: int, sealed: Content) -> bytes:
        """Return the batch; RecordInvalid leaves everything as it was."""
        age = self._highest - number
        is_late = age >= 0 and (age >= REPLAY_WINDOW or self._was(age))
        if is_late or not 0 <= number <= LAST_RECORD:
            raise RecordInvalid("a record came twice, or too late")
        epoch = number >> _EPOCH_BITS
        cipher = self._keys.at(epoch)
        if not TAG_BYTES <= len(sealed) <= MAX_BATCH_BYTES + TAG_BYTES:
            raise RecordInvalid("a record has no length that a record has")
        try:
            batch = cipher.decrypt(nonce_of(self._suite, number), sealed, None)
        except InvalidTag:
            raise RecordInvalid("a record was changed, or is not of this connection") from None
        self._keys.reach(epoch)
        self._note(number)
        return batch

    def _was(self, age: int) -> bool:
        return bool(self._seen >> age & 1)

    def _note(self, number: int) -> None:
        ahead = number - self._highest
        if ahead > 0:
            self._seen = (self._seen << min(ahead, REPLAY_WINDOW)) & _SEEN
            self._highest = number
            ahead = 0
        self._seen |= 1 << -ahead
