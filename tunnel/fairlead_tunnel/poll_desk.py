"""The gateway's side of polls: held until there is something to answer, or their time is over."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from fairlead_tunnel.carriers import TUNNEL_UNKNOWN, GatewayAttach, TunnelDesk
from fairlead_tunnel.driver_sides import CarrierDriver
from fairlead_tunnel.frames import Alive, Content, FrameInvalid, Range, decode
from fairlead_tunnel.handshake import (
    MAX_EARLY_BYTES,
    MAX_HELLO_BYTES,
    AttachRefused,
    HandshakeInvalid,
    Keys,
    refusal,
)
from fairlead_tunnel.outbox import SMALLEST_BATCH, Batch
from fairlead_tunnel.poll_carrier import POLL_CUT, POLL_REPLAYED
from fairlead_tunnel.poll_pace import ACTIVE_HOLD
from fairlead_tunnel.poll_wire import (
    MOST_BODY_BYTES,
    Ask,
    PollCut,
    PollInvalid,
    open_request,
    read_head,
    seal_record,
    seal_said,
)
from fairlead_tunnel.records import MAX_BATCH_BYTES, Opener, RecordInvalid, Sealer

LONGEST_HOLD: Final = 30.0
MOST_WAITING: Final = 64
"""So many polls of a carrier may wait; the one that waits for longest makes room."""

CARRIER_UNKNOWN: Final = "carrier_unknown"
"""The gateway has given up the polls of a tunnel that it still has."""

_IDLE_SECONDS: Final = 60.0
_MOST_ANSWERS: Final = 256
_ACTIVE_MS: Final = round(ACTIVE_HOLD * 1000)

_Key: TypeAlias = tuple[bytes, int]


class HeldPoll:
    """One poll at the gateway; `answer` is done with the body."""

    def __init__(self, line: PollLine, ask: Ask) -> None:
        loop = asyncio.get_running_loop()
        self._line = line
        self.number = ask.poll
        self.is_active = ask.hold_ms <= _ACTIVE_MS
        self.due = loop.time() + min(ask.hold_ms / 1000, LONGEST_HOLD)
        self.records: list[bytes] = []
        self.answer: asyncio.Future[bytes] = loop.create_future()
        self._room = min(max(ask.most, 2 * SMALLEST_BATCH), MOST_BODY_BYTES // 2)

    @property
    def can_send(self) -> bool:
        """Say whether a batch may be added: to the first that is due, until it is full."""
        return (
            self._line.first is self
            and not self.answer.done()
            and self.most_bytes >= SMALLEST_BATCH
        )

    @property
    def takes_last(self) -> bool:
        """Say whether the batch that ends the tunnel may be added."""
        return self.can_send

    @property
    def most_bytes(self) -> int:
        """How long that batch may be."""
        return min(self._room, MAX_BATCH_BYTES)

    def send(self, batch: Batch) -> None:
        """Add a batch, and answer once what the tunnel has now is in it."""
        if not self.records:
            asyncio.get_running_loop().call_soon(self.close)
        self.add(b"".join(batch.pieces))

    def add(self, batch: bytes) -> None:
        """Seal a batch into the answer."""
        self.records.append(self._line.seal(batch))
        self._room -= len(batch)

    def close(self) -> None:
        """Answer with what there is."""
        self._line.finish(self)

    def abort(self) -> None:
        """Be forgotten: the client does not wait any more."""
        self._line.forget(self)


class PollLine:
    """All polls of one attached carrier, in the order in which they have to be answered."""

    can_send = False
    takes_last = False
    most_bytes = MAX_BATCH_BYTES

    def __init__(
        self, *, driver: CarrierDriver, number: int, keys: Keys, ended: Callable[[], None]
    ) -> None:
        self._driver = driver
        self._sealer = Sealer(suite=keys.suite, key=keys.send)
        self._opener = Opener(suite=keys.suite, key=keys.receive)
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._waiting: list[HeldPoll] = []
        self._numbers = {number}
        self._timer: asyncio.TimerHandle | None = None
        self._seen_at = self._loop.time()
        self._is_over = False
        self._alive: Sequence[Range] = ()
        self.first: HeldPoll | None = None
        """The poll that what the tunnel has to send goes to."""
        self._look()

    def greet(self, hello: bytes) -> None:
        """Send nothing: the handshake is done."""

    def send(self, batch: Batch) -> None:
        """Send nothing: the polls do."""

    def seal(self, batch: bytes) -> bytes:
        """Return a record with its number."""
        return seal_record(self._sealer, batch)

    def take(self, body: Content) -> HeldPoll:
        """Take a request; AttachRefused: it came before, or cut, or is of somebody else."""
        try:
            ask, batches = open_request(self._opener, body)
        except PollCut as error:
            raise AttachRefused(POLL_CUT, f"This poll did not come whole: {error}.") from None
        except (RecordInvalid, PollInvalid) as error:
            raise AttachRefused(POLL_REPLAYED, f"This poll is not taken: {error}.") from None
        self._seen_at = self._loop.time()
        poll = HeldPoll(self, ask)
        self._note_alive(batches)
        self._waiting.append(poll)
        if self._is_over:  # the tunnel ended while nobody polled: say why
            self._answer(poll)
            self._end()
            return poll
        self._waiting.sort(key=lambda each: each.due)
        for batch in batches:
            self._driver.take(batch)
        if len(self._waiting) > MOST_WAITING:
            self.finish(self._waiting[0])
        self._drop_dead()
        self._lose_dead()
        self._look()
        return poll

    def _note_alive(self, batches: list[bytes]) -> None:
        """Note which polls the client waits for, and answer the others: what is put into those from
        now on would be lost, and nobody would tell.
        """
        for batch in batches[-1:]:
            with contextlib.suppress(FrameInvalid):  # as the tunnel will find too
                for frame in decode(batch)[2]:
                    if isinstance(frame, Alive) and _newest(frame.ranges) > _newest(self._alive):
                        self._alive = frame.ranges
        self._drop_dead()

    def _drop_dead(self) -> None:
        for poll in [each for each in self._waiting if self._is_dead(each.number)]:
            self._waiting.remove(poll)
            poll.answer.set_result(b"\x00" + seal_said(self._sealer, poll.number, 0))

    def _lose_dead(self) -> None:
        """Send again what was put in polls that nobody waits for: the tunnel leaves out the batch
        that says so when a later one overtook it over another carrier.
        """
        for number in [each for each in self._numbers if self._is_dead(each)]:
            self._numbers.discard(number)
            self._driver.detach(number)

    def _is_dead(self, number: int) -> bool:
        is_named = any(first <= number <= last for first, last in self._alive)
        return number < _newest(self._alive) and not is_named

    def drop(self, poll: HeldPoll) -> None:
        """Note that nobody waits for a poll's answer any more."""
        if poll in self._waiting:
            self._waiting.remove(poll)
            poll.answer.cancel()
            self._look()

    def finish(self, poll: HeldPoll) -> None:
        """Answer a poll; nothing when it was."""
        if poll in self._waiting:
            self._answer(poll)
            self._look()

    def forget(self, poll: HeldPoll) -> None:
        """Note that the tunnel knows a poll no more."""
        self._numbers.discard(poll.number)
        self.finish(poll)

    def close(self) -> None:
        """Answer all polls and take no more: the tunnel is over, or its client gone."""
        if self._is_over:
            return
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        is_told = bool(self._waiting)
        for poll in [*self._waiting]:
            self._answer(poll)
        if is_told or not self._driver.is_over:
            self._ended()
        else:
            self._timer = self._loop.call_later(_IDLE_SECONDS, self._end)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._ended()

    def abort(self) -> None:
        """Do the same."""
        self.close()

    def _answer(self, poll: HeldPoll) -> None:
        self._waiting.remove(poll)
        if (poll.is_active or self._is_over) and not poll.records:
            # It brought something: say that it came.
            batch = self._driver.answer_batch(poll.number, MAX_EARLY_BYTES, restate=True)
            if batch:
                self._numbers.add(poll.number)
                poll.add(batch)
        said = seal_said(self._sealer, poll.number, len(poll.records))
        poll.answer.set_result(b"".join((b"\x00", said, *poll.records)))

    def _look(self) -> None:
        """Answer what is due now, and lead the tunnel to what is due next."""
        if self._is_over:
            return
        now = self._loop.time()
        while self._waiting and self._waiting[0].due <= now:
            self._answer(self._waiting[0])
        first = self._waiting[0] if self._waiting else None
        if first is not self.first:
            self.first = first
            if first is not None:
                self._numbers.add(first.number)
                self._driver.attach(first.number, first)
        if self._timer is not None:
            self._timer.cancel()
        due = first.due if first is not None else self._seen_at + _IDLE_SECONDS
        self._timer = self._loop.call_at(due, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if not self._waiting and self._loop.time() >= self._seen_at + _IDLE_SECONDS:
            self.close()
            for number in self._numbers:
                self._driver.detach(number)
        else:
            self._look()


def _newest(alive: Sequence[Range]) -> int:
    return alive[-1][1] if alive else 0


class _Hello:
    """What a handshake answers, until there are keys."""

    can_send = False
    takes_last = False
    most_bytes = MAX_BATCH_BYTES

    def __init__(self) -> None:
        self.answer = b""

    def greet(self, hello: bytes) -> None:
        """Keep it."""
        self.answer = hello

    def send(self, batch: Batch) -> None:
        """Send nothing."""

    def close(self) -> None:
        """End nothing."""

    def abort(self) -> None:
        """End nothing."""


class PollDesk:
    """The carriers by polls of one start of a gateway."""

    def __init__(self, *, desk: TunnelDesk) -> None:
        self._desk = desk
        self._lines: dict[_Key, PollLine] = {}
        self._answers: OrderedDict[bytes, tuple[_Key, bytes]] = OrderedDict()

    def knows(self, start: bytes) -> bool:
        """Say whether a body with this start, of 24 bytes or more, may be one of a carrier."""
        try:
            return start.startswith(b"FLT") or read_head(start) in self._lines
        except PollInvalid:
            return False

    def meet(self, body: bytes) -> bytes | tuple[PollLine, HeldPoll]:
        """Take a body: a hello, of which the answer is returned, or a poll that is held now."""
        try:
            if body.startswith(b"FLT"):
                return self._attach(body)
            key = read_head(body)
            line = self._lines.get(key)
            if line is not None:
                return line, line.take(body)
            if self._desk.holds(key[0]):
                message = "Nobody polled for too long: another carrier is needed."
                return refusal(CARRIER_UNKNOWN, message)
            message = "The gateway does not have this tunnel any more."
            return refusal(TUNNEL_UNKNOWN, message)
        except AttachRefused as error:
            return refusal(error.reason, error.message)
        except (HandshakeInvalid, PollInvalid) as error:
            return refusal("hello_invalid", f"This is none of a carrier: {error}.")

    def _attach(self, body: bytes) -> bytes:
        """Return the answer to a hello, the same one to the same hello: the first may be lost."""
        known = hashlib.sha256(body).digest()
        if known in self._answers and self._answers[known][0] in self._lines:
            return self._answers[known][1]
        attach = GatewayAttach(self._desk)
        hello = _Hello()
        attach.stream = hello
        found = attach.greet(body) if len(body) <= MAX_HELLO_BYTES else None
        if found is None or found[1] != len(body) or attach.held is None:
            raise HandshakeInvalid("a hello is not one body")
        key = bytes.fromhex(attach.held.grant.tunnel), attach.number

        def ended() -> None:
            self._lines.pop(key, None)

        line = PollLine(driver=attach.held.driver, number=attach.number, keys=found[0], ended=ended)
        self._lines[key] = line
        attach.stream = line
        attach.opened()
        self._answers[known] = key, hello.answer
        if len(self._answers) > _MOST_ANSWERS:
            self._answers.popitem(last=False)
        return hello.answer
