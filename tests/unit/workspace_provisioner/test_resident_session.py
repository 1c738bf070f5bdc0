"""The resident program's calls: beside each other, against credit, gone with the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest

from tests.fakes.virtual_time import run, settle
from workspace_provisioner.errors import WorkspaceNotFound
from workspace_provisioner.resident.calls import Answer, Call, Verb
from workspace_provisioner.resident.frames import (
    INITIAL_CREDIT,
    MAX_CALLS,
    MAX_CHUNK_BYTES,
    Decoder,
    Frame,
    encoded,
)
from workspace_provisioner.resident.session import Outlet, Session

IDLE = 90.0


class Wire(Outlet):
    """A client's end in memory, which takes what the session sends."""

    def __init__(self, verbs: Mapping[str, Verb]) -> None:
        self.reader = asyncio.StreamReader()
        self.frames: list[Frame] = []
        self._decoder = Decoder()
        self.session = Session(reader=self.reader, outlet=self, verbs=verbs, idle_seconds=IDLE)

    async def send(self, frame: bytes) -> None:
        self.frames += self._decoder.feed(frame)

    def say(self, call: int, type_: str, payload: bytes = b"", **fields: object) -> None:
        self.reader.feed_data(encoded(call, type_, payload, **fields))

    def of(self, call: int) -> list[tuple[str, Mapping[str, object]]]:
        return [(frame.type, frame.fields) for frame in self.frames if frame.call == call]


def served(verbs: Mapping[str, Verb], scenario: Callable[[Wire], Awaitable[None]]) -> Wire:
    """Serve a scenario to the end of its channel."""

    async def serve() -> Wire:
        wire = Wire(verbs)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wire.session.serve())
            await scenario(wire)
            wire.reader.feed_eof()
        return wire

    return run(serve())


async def echo(call: Call) -> Answer:
    return {"got": b"".join([chunk async for chunk in call.received()]).decode()}


async def for_ever(call: Call) -> Answer:
    await asyncio.Event().wait()
    return {}


def test_a_later_call_may_answer_first() -> None:
    async def scenario(wire: Wire) -> None:
        wire.say(1, "call", verb="echo")
        wire.say(2, "call", verb="echo")
        wire.say(2, "bytes", b"second")
        wire.say(2, "end")
        await settle()
        assert wire.of(1) == []
        wire.say(1, "bytes", b"fir")
        wire.say(1, "bytes", b"st")
        wire.say(1, "end")
        await settle()

    wire = served({"echo": echo}, scenario)
    assert wire.of(2) == [("answer", {"got": "second"})]
    assert wire.of(1) == [("answer", {"got": "first"})]


def test_an_error_comes_back_with_its_reason() -> None:
    async def fails(call: Call) -> Answer:
        raise WorkspaceNotFound("wsp_x")

    async def breaks(call: Call) -> Answer:
        raise RuntimeError("a secret of the host")

    async def scenario(wire: Wire) -> None:
        for number, verb in enumerate(("fails", "breaks", "absent"), 1):
            wire.say(number, "call", verb=verb)
        await settle()

    wire = served({"fails": fails, "breaks": breaks}, scenario)
    reasons = [(kind, fields["reason"]) for n in (1, 2, 3) for kind, fields in wire.of(n)]
    assert reasons == [
        ("error", "workspace_not_found"),
        ("error", "internal"),
        ("error", "verb_unknown"),
    ]
    assert wire.of(1)[0][1]["kind"] == "not_found"
    assert "secret" not in str(wire.of(2))


def test_a_call_too_many_is_refused_and_the_others_go_on() -> None:
    async def scenario(wire: Wire) -> None:
        for number in range(1, MAX_CALLS + 3):
            wire.say(number, "call", verb="echo")
        wire.say(MAX_CALLS + 1, "bytes", b"crossed")
        await settle()
        for number in range(1, MAX_CALLS + 1):
            wire.say(number, "end")
        await settle()
        wire.say(MAX_CALLS + 3, "call", verb="echo")
        wire.say(MAX_CALLS + 3, "end")
        await settle()

    wire = served({"echo": echo}, scenario)
    answered = [(frame.call, frame.type) for frame in wire.frames]
    assert answered[:2] == [(MAX_CALLS + 1, "error"), (MAX_CALLS + 2, "error")]
    assert [kind for _, kind in answered[2:]] == ["answer"] * (MAX_CALLS + 1)
    refusal = wire.of(MAX_CALLS + 1)[0][1]
    assert (refusal["kind"], refusal["reason"]) == ("unavailable", "too_many_calls")


def test_the_end_of_the_channel_ends_every_call() -> None:
    ended = []

    async def waits(call: Call) -> Answer:
        try:
            return await for_ever(call)
        finally:
            ended.append(call.number)

    async def scenario(wire: Wire) -> None:
        wire.say(1, "call", verb="waits")
        wire.say(2, "call", verb="waits")
        await settle()

    wire = served({"waits": waits}, scenario)
    assert sorted(ended) == [1, 2]
    assert wire.frames == []


def test_a_cancelled_call_ends_alone_and_says_nothing() -> None:
    async def scenario(wire: Wire) -> None:
        wire.say(1, "call", verb="for_ever")
        wire.say(2, "call", verb="echo")
        await settle()
        wire.say(1, "cancel")
        wire.say(1, "bytes", b"crossed")
        wire.say(2, "end")
        await settle()

    wire = served({"for_ever": for_ever, "echo": echo}, scenario)
    assert wire.of(1) == []
    assert wire.of(2) == [("answer", {"got": ""})]


def test_a_client_that_falls_silent_is_given_up() -> None:
    async def serve() -> float:
        wire = Wire({"for_ever": for_ever})
        wire.say(1, "call", verb="for_ever")
        await wire.session.serve()
        return asyncio.get_running_loop().time()

    assert run(serve()) == IDLE


def test_output_waits_for_credit_and_other_calls_do_not() -> None:
    async def pours(call: Call) -> Answer:
        await call.send(b"x" * (INITIAL_CREDIT + 10), stream="stdout")
        return {}

    def poured(wire: Wire) -> int:
        return sum(len(frame.payload) for frame in wire.frames if frame.call == 1)

    async def scenario(wire: Wire) -> None:
        wire.say(1, "call", verb="pours")
        await settle()
        assert poured(wire) == INITIAL_CREDIT
        wire.say(2, "call", verb="echo")
        wire.say(2, "end")
        await settle()
        assert wire.of(2) == [("answer", {"got": ""})]
        wire.say(1, "credit", credit=10)
        await settle()

    wire = served({"pours": pours, "echo": echo}, scenario)
    assert poured(wire) == INITIAL_CREDIT + 10
    assert wire.of(1)[-1] == ("answer", {})
    assert {fields["stream"] for kind, fields in wire.of(1) if kind == "bytes"} == {"stdout"}


def test_bytes_that_were_taken_give_credit_back() -> None:
    async def scenario(wire: Wire) -> None:
        wire.say(1, "call", verb="echo")
        for _ in range(INITIAL_CREDIT // 4 // MAX_CHUNK_BYTES):
            wire.say(1, "bytes", b"x" * MAX_CHUNK_BYTES)
        await settle()
        assert wire.of(1) == [("credit", {"credit": INITIAL_CREDIT // 4})]
        wire.say(1, "end")
        await settle()

    served({"echo": echo}, scenario)


def flood(wire: Wire) -> None:
    wire.say(1, "call", verb="for_ever")
    for _ in range(INITIAL_CREDIT // MAX_CHUNK_BYTES + 1):
        wire.say(1, "bytes", b"x" * MAX_CHUNK_BYTES)


def same_number(wire: Wire) -> None:
    wire.say(1, "call", verb="for_ever")
    wire.say(1, "call", verb="for_ever")


def no_number(wire: Wire) -> None:
    wire.say(0, "call", verb="for_ever")


def bad_credit(wire: Wire) -> None:
    wire.say(1, "call", verb="for_ever")
    wire.say(1, "credit", credit=2**40)


def unknown_type(wire: Wire) -> None:
    wire.say(1, "call", verb="for_ever")
    wire.say(1, "dance")


def no_frame(wire: Wire) -> None:
    wire.reader.feed_data(b"GET / HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize(
    "broken", [flood, same_number, no_number, bad_credit, unknown_type, no_frame]
)
def test_a_broken_rule_ends_the_connection_with_a_reason(broken: Callable[[Wire], None]) -> None:
    async def serve() -> Wire:
        wire = Wire({"for_ever": for_ever})
        broken(wire)
        await wire.session.serve()
        return wire

    wire = run(serve())
    assert [(kind, fields["reason"]) for kind, fields in wire.of(0)] == [
        ("error", "protocol_error")
    ]
