"""The table of the protocol, row by row; and both ends against a model, in any order of events."""

from __future__ import annotations

import json
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fairlead_tunnel.byte_channel import (
    INITIAL_WINDOW,
    MAX_MESSAGE_BYTES,
    MAX_WINDOW,
    ByteChannel,
    Message,
    Misuse,
    Over,
    PeerFinished,
    Ready,
    Received,
    Side,
)

STATES = ("opener, not ready", "opener, ready", "acceptor", "after eof")


def channel(state: str) -> ByteChannel:
    match state:
        case "opener, not ready":
            return ByteChannel(side=Side.OPENER)
        case "opener, ready":
            opener = ByteChannel(side=Side.OPENER)
            opener.receive("ready")
            return opener
        case "acceptor":
            return ByteChannel(side=Side.ACCEPTOR)
        case _:
            ended = ByteChannel(side=Side.ACCEPTOR)
            ended.receive("eof")
            return ended


RESET = 'reset {"reason": "port_refused", "message": "No."}'
ROWS: list[tuple[Message, tuple[object, object, object, object]]] = [
    (b"abc", ("P", Received(b"abc"), Received(b"abc"), "P")),
    (b"", ("P", "P", "P", "P")),
    (bytes(MAX_MESSAGE_BYTES + 1), ("P", "P", "P", "P")),
    ("ready", (Ready(), "P", "P", "P")),
    ("credit 1", (None, None, None, None)),
    (f"credit {MAX_WINDOW - INITIAL_WINDOW}", (None, None, None, None)),
    (f"credit {MAX_WINDOW - INITIAL_WINDOW + 1}", ("P", "P", "P", "P")),
    ("credit 0", ("P", "P", "P", "P")),
    ("credit -1", ("P", "P", "P", "P")),
    ("credit 01", ("P", "P", "P", "P")),
    ("credit 1\n", ("P", "P", "P", "P")),
    ("credit \u0663", ("P", "P", "P", "P")),
    ("credit 99999999999999999999", ("P", "P", "P", "P")),
    ("eof", ("P", PeerFinished(), PeerFinished(), "P")),
    (RESET, (Over("port_refused", "No."),) * 4),
    ("reset", ("P", "P", "P", "P")),
    ("reset {", ("P", "P", "P", "P")),
    ('reset {"reason": "Not Snake", "message": ""}', ("P", "P", "P", "P")),
    ('reset {"reason": 1, "message": ""}', ("P", "P", "P", "P")),
    ('reset {"reason": "x"}', ("P", "P", "P", "P")),
    ("reset " + "[" * 4000, ("P", "P", "P", "P")),
    (f'reset {{"reason": "x", "message": "{"m" * 5000}"}}', ("P", "P", "P", "P")),
    ("", ("P", "P", "P", "P")),
    ("READY", ("P", "P", "P", "P")),
    ("something new", ("P", "P", "P", "P")),
]


@pytest.mark.parametrize(("message", "outcomes"), ROWS, ids=lambda value: repr(value)[:40])
@pytest.mark.parametrize("column", range(4), ids=STATES)
def test_the_table(
    message: Message, outcomes: tuple[object, object, object, object], column: int
) -> None:
    end = channel(STATES[column])
    event = end.receive(message)
    sent = end.take_outgoing()
    if outcomes[column] != "P":
        assert event == outcomes[column]
        assert sent == []
        return
    assert isinstance(event, Over)
    assert event.reason == "protocol_error"
    (reset,) = sent
    assert isinstance(reset, str)
    assert json.loads(reset.removeprefix("reset "))["reason"] == "protocol_error"
    assert end.over == event


@pytest.mark.parametrize("message", [b"abc", "ready", "credit 1", "eof", RESET, "nonsense"])
def test_what_comes_when_it_is_over_is_ignored(message: Message) -> None:
    end = channel("acceptor")
    end.reset("session_closed", "Closed.")
    end.take_outgoing()
    assert end.receive(message) is None
    assert end.channel_closed() is None
    end.send(b"x")
    end.finish()
    end.consumed(7)
    end.accept()
    end.reset("other", "Again.")
    assert end.take_outgoing() == []
    assert end.over == Over("session_closed", "Closed.")
    assert end.sendable == 0


def test_more_bytes_than_granted_are_a_protocol_error() -> None:
    end = channel("acceptor")
    for _ in range(INITIAL_WINDOW // MAX_MESSAGE_BYTES):
        assert isinstance(end.receive(bytes(MAX_MESSAGE_BYTES)), Received)
    assert isinstance(end.receive(b"x"), Over)


def test_credit_is_granted_a_quarter_window_at_a_time() -> None:
    end = channel("acceptor")
    quarter = INITIAL_WINDOW // 4
    for _ in range(quarter // MAX_MESSAGE_BYTES):
        end.receive(bytes(MAX_MESSAGE_BYTES))
    end.consumed(quarter - 1)
    assert end.take_outgoing() == []
    end.consumed(1)
    assert end.take_outgoing() == [f"credit {quarter}"]


def test_no_credit_is_granted_to_a_peer_that_has_finished() -> None:
    end = channel("acceptor")
    for _ in range(INITIAL_WINDOW // MAX_MESSAGE_BYTES):
        end.receive(bytes(MAX_MESSAGE_BYTES))
    end.receive("eof")
    end.consumed(INITIAL_WINDOW)
    assert end.take_outgoing() == []


@pytest.mark.parametrize("state", STATES)
def test_a_lost_data_channel_is_told_once(state: str) -> None:
    end = channel(state)
    lost = end.channel_closed()
    assert lost is not None
    assert lost.reason == "channel_lost"
    assert end.channel_closed() is None


def test_a_complete_stream_is_not_lost_but_can_still_be_reset() -> None:
    end = channel("opener, ready")
    end.finish()
    end.receive("eof")
    assert end.is_complete
    assert end.channel_closed() is None
    assert isinstance(end.receive(RESET), Over)
    assert not end.is_complete


def test_misuse_is_a_fault_of_the_program() -> None:
    acceptor = channel("acceptor")
    with pytest.raises(Misuse):
        acceptor.send(b"x")
    with pytest.raises(Misuse):
        acceptor.finish()
    with pytest.raises(Misuse):
        acceptor.consumed(1)
    with pytest.raises(Misuse):
        acceptor.reset("Not Snake", "")
    acceptor.accept()
    with pytest.raises(Misuse):
        acceptor.accept()
    opener = channel("opener, ready")
    with pytest.raises(Misuse):
        opener.accept()
    for content in (b"", bytes(MAX_MESSAGE_BYTES + 1)):
        with pytest.raises(Misuse):
            opener.send(content)
    opener.finish()
    with pytest.raises(Misuse):
        opener.send(b"x")
    with pytest.raises(Misuse):
        opener.finish()


@given(st.text(max_size=600))
def test_a_reset_of_any_sentence_is_understood(message: str) -> None:
    one, other = channel("opener, ready"), channel("acceptor")
    one.reset("some_reason", message)
    (reset,) = one.take_outgoing()
    assert other.receive(reset) == Over("some_reason", message[:256])


MESSAGES = st.one_of(
    st.binary(max_size=64),
    st.sampled_from(["ready", "eof", "credit 5", RESET, "credit 0"]),
    st.text(max_size=20),
    st.integers(1, 99).map(lambda count: f"credit {count}"),
)


@given(st.sampled_from(list(Side)), st.lists(MESSAGES, max_size=30))
def test_no_messages_break_it(side: Side, messages: list[Message]) -> None:
    end = ByteChannel(side=side)
    got = 0
    for message in messages:
        was_over = end.over
        event = end.receive(message)
        if was_over:
            assert event is None
            assert end.over == was_over
        if isinstance(event, Received):
            got += len(event.content)
            end.consumed(len(event.content))
    assert got <= sum(len(message) for message in messages if isinstance(message, bytes))
    assert (end.over is None) or end.sendable == 0


class TwoEnds(RuleBasedStateMachine):
    """Two ends with a queue each way, and a model that knows which bytes must come out."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = {side: ByteChannel(side=side) for side in Side}
        self.wires: dict[Side, deque[Message]] = {side: deque() for side in Side}
        self.sent = {side: bytearray() for side in Side}
        self.got = {side: bytearray() for side in Side}
        self.unconsumed = dict.fromkeys(Side, 0)
        self.finished = dict.fromkeys(Side, False)
        self.saw_end = dict.fromkeys(Side, False)
        self.accepted = False
        self.was_reset = False
        self.count = 0

    def other(self, side: Side) -> Side:
        return Side.ACCEPTOR if side is Side.OPENER else Side.OPENER

    def flush(self, side: Side) -> None:
        self.wires[self.other(side)].extend(self.ends[side].take_outgoing())

    @precondition(lambda self: not self.accepted)
    @rule()
    def accept(self) -> None:
        self.accepted = True
        self.ends[Side.ACCEPTOR].accept()
        self.flush(Side.ACCEPTOR)

    @rule(side=st.sampled_from(list(Side)), size=st.integers(1, MAX_MESSAGE_BYTES))
    def send(self, side: Side, size: int) -> None:
        room = min(size, self.ends[side].sendable)
        if room == 0:
            return
        self.count += 1
        content = (self.count.to_bytes(4, "big") * (room // 4 + 1))[:room]
        self.ends[side].send(content)
        self.sent[side] += content
        self.flush(side)

    @rule(side=st.sampled_from(list(Side)))
    def finish(self, side: Side) -> None:
        if self.finished[side] or (side is Side.ACCEPTOR and not self.accepted):
            return
        self.ends[side].finish()
        self.finished[side] = True
        self.flush(side)

    @rule(side=st.sampled_from(list(Side)))
    def deliver(self, side: Side) -> None:
        if not self.wires[side]:
            return
        match self.ends[side].receive(self.wires[side].popleft()):
            case Received(content):
                self.got[side] += content
                self.unconsumed[side] += len(content)
            case PeerFinished():
                self.saw_end[side] = True
            case Over(reason, _):
                assert reason == "session_closed"
        self.flush(side)

    @rule(side=st.sampled_from(list(Side)), share=st.floats(0, 1))
    def consume(self, side: Side, share: float) -> None:
        count = int(self.unconsumed[side] * share)
        self.ends[side].consumed(count)
        self.unconsumed[side] -= count
        self.flush(side)

    @precondition(lambda self: not self.was_reset and self.count > 20)
    @rule(side=st.sampled_from(list(Side)))
    def reset(self, side: Side) -> None:
        self.was_reset = True
        self.ends[side].reset("session_closed", "Closed.")
        self.flush(side)

    @invariant()
    def bytes_come_out_in_order_and_bounded(self) -> None:
        for side in Side:
            sent = self.sent[self.other(side)]
            assert sent.startswith(self.got[side])
            assert self.unconsumed[side] <= INITIAL_WINDOW
            if not self.was_reset:
                assert self.ends[side].over is None
                flying = len(sent) - len(self.got[side]) + self.unconsumed[side]
                assert flying <= INITIAL_WINDOW
            if self.saw_end[side]:
                assert self.got[side] == sent

    def teardown(self) -> None:
        """Let everything arrive: then nothing is missing, and both ends agree."""
        for _ in range(4):
            for side in Side:
                while self.wires[side]:
                    self.deliver(side)
                self.consume(side, 1.0)
        if self.was_reset:
            assert all(end.over is not None for end in self.ends.values())
        else:
            for side in Side:
                assert self.got[side] == self.sent[self.other(side)]
                assert self.saw_end[side] == self.finished[self.other(side)]
            complete = all(self.finished.values())
            assert all(end.is_complete == complete for end in self.ends.values())


TestTwoEnds = TwoEnds.TestCase
TestTwoEnds.settings = settings(max_examples=25, stateful_step_count=50, deadline=None)
