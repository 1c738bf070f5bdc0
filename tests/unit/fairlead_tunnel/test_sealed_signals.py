"""What one peer seals the other one opens, and nothing else: `tests/vectors/sealed_signals.json`
is what another implementation has to write and read.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_tunnel.base64url import base64url, from_base64url
from fairlead_tunnel.sealed_signals import (
    MAX_SEALED,
    MAX_TEXT_BYTES,
    PREFIX,
    Direction,
    NotSealed,
    SealBroken,
    SealedSignals,
    SealError,
    SealsUsedUp,
    SignalKind,
    SignalTooLong,
    is_sealed,
)
from fairlead_tunnel.session_names import SessionNameInvalid

VECTORS = Path(__file__).parents[2] / "vectors" / "sealed_signals.json"
SECRET, SALT, SESSION = bytes(range(32)), bytes(range(16)), base64url(bytes(range(200, 216)))


def end(
    direction: Direction,
    *,
    secret: bytes = SECRET,
    salt: bytes = SALT,
    session: str = SESSION,
    nonce: bytes | None = None,
) -> SealedSignals:
    if nonce is None:
        return SealedSignals(secret=secret, salt=salt, session=session, direction=direction)
    return SealedSignals(
        secret=secret, salt=salt, session=session, direction=direction, randomness=lambda _: nonce
    )


@dataclass(frozen=True)
class Vector:
    name: str
    secret: str
    salt: str
    session: str
    direction: str
    kind: str
    nonce: str
    text: str
    sealed: str

    @property
    def sealing(self) -> SealedSignals:
        return self._end(Direction(self.direction))

    @property
    def opening(self) -> SealedSignals:
        return self._end(Direction(self.direction).other)

    def _end(self, direction: Direction) -> SealedSignals:
        return end(
            direction,
            secret=bytes.fromhex(self.secret),
            salt=bytes.fromhex(self.salt),
            session=self.session,
            nonce=bytes.fromhex(self.nonce),
        )


def vectors() -> list[Vector]:
    return [Vector(**row) for row in json.loads(VECTORS.read_text())["signals"]]


def named(vector: Vector) -> str:
    return vector.name


@pytest.mark.parametrize("vector", vectors(), ids=named)
def test_signals_are_sealed_and_opened_as_the_vectors_say(vector: Vector) -> None:
    kind = SignalKind(vector.kind)
    assert vector.sealing.seal(kind, vector.text) == vector.sealed
    assert vector.opening.open(kind, vector.sealed) == vector.text


def test_the_vectors_have_every_kind_and_direction() -> None:
    assert {vector.kind for vector in vectors()} == set(SignalKind)
    assert {vector.direction for vector in vectors()} == set(Direction)


@settings(deadline=None)
@given(st.sampled_from(Direction), st.sampled_from(SignalKind), st.text(max_size=300))
def test_the_other_peer_reads_what_was_sealed(
    direction: Direction, kind: SignalKind, text: str
) -> None:
    sealed = end(direction).seal(kind, text)
    assert is_sealed(sealed)
    assert end(direction.other).open(kind, sealed) == text


@pytest.mark.parametrize("kind", SignalKind)
@pytest.mark.parametrize("other", SignalKind)
def test_one_kind_is_not_taken_for_another(kind: SignalKind, other: SignalKind) -> None:
    sealed = end(Direction.CLIENT).seal(kind, "v=0")
    if kind is other:
        assert end(Direction.GATEWAY).open(other, sealed) == "v=0"
        return
    with pytest.raises(SealBroken):
        end(Direction.GATEWAY).open(other, sealed)


@pytest.mark.parametrize(
    "opening",
    [
        pytest.param(lambda: end(Direction.CLIENT), id="sent back"),
        pytest.param(lambda: end(Direction.GATEWAY, secret=bytes(32)), id="another secret"),
        pytest.param(lambda: end(Direction.GATEWAY, salt=bytes(16)), id="another salt"),
        pytest.param(lambda: end(Direction.GATEWAY, session="A" * 22), id="another session"),
    ],
)
def test_a_signal_is_good_in_one_place_only(opening: Callable[[], SealedSignals]) -> None:
    sealed = end(Direction.CLIENT).seal(SignalKind.OFFER, "v=0")
    with pytest.raises(SealBroken):
        opening().open(SignalKind.OFFER, sealed)


@settings(deadline=None)
@given(st.data())
def test_a_changed_bit_breaks_the_seal(draw: st.DataObject) -> None:
    sealed = end(Direction.GATEWAY).seal(SignalKind.ANSWER, "v=0\r\n")
    raw = bytearray(from_base64url(sealed.removeprefix(PREFIX)))
    raw[draw.draw(st.integers(0, len(raw) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    with pytest.raises(SealBroken):
        end(Direction.CLIENT).open(SignalKind.ANSWER, PREFIX + base64url(bytes(raw)))


@settings(deadline=None)
@given(st.text(max_size=20), st.data())
def test_what_was_cut_short_does_not_open(text: str, draw: st.DataObject) -> None:
    sealed = end(Direction.CLIENT).seal(SignalKind.CANDIDATE, text)
    cut = draw.draw(st.integers(0, len(sealed) - 1))
    with pytest.raises(SealError):
        end(Direction.GATEWAY).open(SignalKind.CANDIDATE, sealed[:cut])


@settings(deadline=None)
@given(
    st.one_of(st.text(max_size=80), st.text(max_size=80).map(PREFIX.__add__)).filter(
        lambda text: len(text) < 60
    )
)
def test_any_text_is_refused_by_its_type(text: str) -> None:
    with pytest.raises(SealError):
        end(Direction.GATEWAY).open(SignalKind.OFFER, text)


@pytest.mark.parametrize(
    "change",
    [
        lambda sealed: "fl2." + sealed.removeprefix(PREFIX),
        lambda sealed: sealed.removeprefix(PREFIX),
        lambda sealed: sealed + "=",
        lambda sealed: sealed + "\n",
        lambda sealed: sealed.replace("fl1.", "FL1."),
        lambda sealed: sealed + "A" * MAX_SEALED,
        lambda _: PREFIX,
        lambda _: PREFIX + "A" * 36,
        lambda _: "v=0\r\n",
    ],
)
def test_what_has_not_the_form(change: Callable[[str], str]) -> None:
    text = change(end(Direction.CLIENT).seal(SignalKind.OFFER, "v=0"))
    assert not is_sealed(text)
    with pytest.raises(NotSealed):
        end(Direction.GATEWAY).open(SignalKind.OFFER, text)


def test_the_last_character_cannot_be_varied() -> None:
    sealed = end(Direction.CLIENT).seal(SignalKind.OFFER, "v=0")
    opener = end(Direction.GATEWAY)
    for last in set(string.ascii_letters + string.digits + "-_") - {sealed[-1]}:
        with pytest.raises(SealError):
            opener.open(SignalKind.OFFER, sealed[:-1] + last)


def test_the_same_text_is_never_sealed_twice_alike() -> None:
    peer = end(Direction.CLIENT)
    assert len({peer.seal(SignalKind.CANDIDATE, "") for _ in range(100)}) == 100


def test_both_spellings_of_a_session_are_one() -> None:
    standard = SESSION.replace("-", "+").replace("_", "/") + "=="
    assert standard != SESSION
    sealed = end(Direction.CLIENT, session=standard).seal(SignalKind.OFFER, "v=0")
    assert end(Direction.GATEWAY).open(SignalKind.OFFER, sealed) == "v=0"


def test_the_longest_text() -> None:
    longest = "é" * (MAX_TEXT_BYTES // 2)
    sealed = end(Direction.CLIENT).seal(SignalKind.OFFER, longest)
    assert len(sealed) <= MAX_SEALED
    assert end(Direction.GATEWAY).open(SignalKind.OFFER, sealed) == longest
    with pytest.raises(SignalTooLong):
        end(Direction.CLIENT).seal(SignalKind.OFFER, longest + "v")


def test_one_end_does_not_seal_for_ever() -> None:
    peer = end(Direction.CLIENT)
    for _ in range(1 << 16):
        peer.seal(SignalKind.CANDIDATE, "")
    with pytest.raises(SealsUsedUp):
        peer.seal(SignalKind.CANDIDATE, "")


def test_what_is_no_secret_no_salt_and_no_session() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        end(Direction.CLIENT, secret=bytes(31))
    with pytest.raises(ValueError, match="salt 16"):
        end(Direction.CLIENT, salt=b"")
    with pytest.raises(SessionNameInvalid):
        end(Direction.CLIENT, session="no")


def test_reasons_are_each_their_own() -> None:
    errors: list[type[SealError]] = [NotSealed, SealBroken, SignalTooLong, SealsUsedUp]
    assert len({error.reason for error in errors}) == len(errors)
