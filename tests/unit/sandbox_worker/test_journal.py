"""The journal's frames: what goes in comes out, and a torn tail is found wherever it begins."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from sandbox_worker.execution import Exit, ExitReason, OutputRecord, Stream
from sandbox_worker.journal import FRAME_BYTES, encode_exit, encode_record, frames

records = st.builds(
    OutputRecord,
    sequence=st.integers(1, 2**63),
    stream=st.sampled_from(Stream),
    content=st.binary(min_size=1, max_size=300),
    written_at=st.integers(0, 2**62),
)
exits = st.builds(
    Exit,
    reason=st.sampled_from(ExitReason),
    last_sequence=st.integers(0, 2**63),
    ended_at=st.datetimes(
        min_value=datetime(2020, 1, 1),  # noqa: DTZ001 - hypothesis wants naive bounds
        max_value=datetime(2100, 1, 1),  # noqa: DTZ001
        timezones=st.just(UTC),
    ).map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)),
    code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
)


def encoded(entry: OutputRecord | Exit) -> bytes:
    return encode_exit(entry) if isinstance(entry, Exit) else encode_record(entry)


@given(st.lists(records | exits, max_size=6))
def test_what_goes_in_comes_out(entries: list[OutputRecord | Exit]) -> None:
    found = list(frames(b"".join(encoded(entry) for entry in entries)))
    for frame, entry in zip(found, entries, strict=True):
        if isinstance(entry, Exit) and isinstance(frame.entry, Exit):
            # A float of seconds since the epoch is exact to some hundred nanoseconds.
            assert abs((frame.entry.ended_at - entry.ended_at).total_seconds()) < 1e-5
            assert (frame.entry.reason, frame.entry.code, frame.entry.signal) == (
                entry.reason,
                entry.code,
                entry.signal,
            )
            assert frame.entry.last_sequence == entry.last_sequence
        else:
            assert frame.entry == entry


@given(st.lists(records, min_size=1, max_size=4), st.data())
def test_a_torn_tail_begins_after_the_last_whole_frame(
    entries: list[OutputRecord], data: st.DataObject
) -> None:
    whole = [encoded(entry) for entry in entries]
    cut = data.draw(st.integers(1, len(whole[-1])))
    found = list(frames(b"".join(whole)[:-cut]))
    assert [frame.entry for frame in found] == entries[:-1]
    assert [frame.end for frame in found] == [
        sum(map(len, whole[: index + 1])) for index in range(len(entries) - 1)
    ]


@given(records, st.data())
def test_a_flipped_bit_ends_the_reading(record: OutputRecord, data: st.DataObject) -> None:
    content = bytearray(encode_record(record))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    assert list(frames(bytes(content))) == []


def test_frames_add_what_they_say() -> None:
    record = OutputRecord(sequence=1, stream=Stream.STDOUT, content=b"x" * 10, written_at=5)
    assert len(encode_record(record)) == FRAME_BYTES + 10
