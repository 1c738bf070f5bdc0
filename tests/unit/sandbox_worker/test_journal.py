"""The journal's frames: what goes in comes out, and a torn tail is found wherever it begins."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from sandbox_worker.execution import Exit, ExitReason, OutputRecord, Stream, Usage
from sandbox_worker.journals.encoding import (
    FRAME_BYTES,
    Description,
    Ending,
    Entry,
    encode_description,
    encode_ending,
    encode_record,
    frames,
)

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
    usage=st.none()
    | st.builds(
        Usage,
        cpu_seconds=st.floats(0, 1e9, allow_nan=False),
        peak_memory_bytes=st.integers(0, 2**50),
    ),
)
endings = st.builds(Ending, exit=exits, size=st.integers(0, 2**62))
descriptions = st.builds(Description, st.binary(max_size=300))


def encoded(entry: Entry) -> bytes:
    match entry:
        case OutputRecord():
            return b"".join(encode_record(entry))
        case Ending():
            return encode_ending(entry)
        case Description():
            return encode_description(entry)


@given(st.lists(records | endings | descriptions, max_size=6))
def test_what_goes_in_comes_out(entries: list[Entry]) -> None:
    found = list(frames(b"".join(encoded(entry) for entry in entries)))
    for frame, entry in zip(found, entries, strict=True):
        if isinstance(entry, Ending) and isinstance(frame.entry, Ending):
            back, exit_ = frame.entry.exit, entry.exit
            # A float of seconds since the epoch is exact to some hundred nanoseconds.
            assert abs((back.ended_at - exit_.ended_at).total_seconds()) < 1e-5
            assert (back.reason, back.code, back.signal, back.usage, back.last_sequence) == (
                exit_.reason,
                exit_.code,
                exit_.signal,
                exit_.usage,
                exit_.last_sequence,
            )
            assert frame.entry.size == entry.size
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


@given(records | endings | descriptions, st.data())
def test_a_flipped_bit_ends_the_reading(entry: Entry, data: st.DataObject) -> None:
    content = bytearray(encoded(entry))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    assert list(frames(bytes(content))) == []


def test_frames_add_what_they_say() -> None:
    record = OutputRecord(sequence=1, stream=Stream.STDOUT, content=b"x" * 10, written_at=5)
    assert len(encoded(record)) == FRAME_BYTES + 10
