"""A lane: one conversation between the two sides, on one stream socket, in turns.

The thread that asks writes the request and reads the reply itself. While it waits it answers what
the other side asks meanwhile, so that calls nest to any depth on one lane and in one thread.
"""

from __future__ import annotations

import os
from _thread import get_ident
from typing import TYPE_CHECKING

from membrane.errors import ProtocolError, UnsupportedUse
from membrane.extensions import NOT_PLAIN, PLAIN, encode_plain
from membrane.frames import (
    CALL,
    DEEPEST,
    ERROR,
    HEADER_BYTES,
    LARGEST_FRAME,
    MOST_SHARED,
    REGION,
    REPLY,
    REQUEST,
    RETURNS_VIEWS,
)
from membrane.framing import QUIET, FramedEnd, LaneLost, pack_length, unpack_length
from membrane.regions import make_region

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from membrane.fittings import Fittings


_FEW = 64
"""Values that are looked at one by one; the codec knows better ways for many."""


class Cancelled(BaseException):
    """The call that a thread serves is to end: its caller does not wait any more."""


class Lane(FramedEnd):
    """One end of a lane, whose turn it is by the protocol alone: no lock guards it.

    `is_whole` says that no request is under way, so that the lane may be used again; `depth` counts
    those of this side. One that is given up was left by a call inside of another one.
    """

    __slots__ = (
        "_asked", "_decode", "_due", "_encode", "_fittings", "_is_child", "_may_map", "_owed",
        "_received", "_serving", "_threads", "depth", "is_given_up", "number", "regions",
    )  # fmt: skip

    def __init__(
        self,
        *,
        number: int,
        end: socket.socket,
        fittings: Fittings,
        serving: dict[int, Lane],
        is_child: bool,
        may_map: Callable[[int], bool] = bool,
        shares_memory: bool = True,
    ) -> None:
        """`serving` is where a thread is found with the lane on which it serves a request;
        `may_map` says whether the other side gets shared memory of so many bytes. Without
        `shares_memory` large buffers travel in the messages.
        """
        super().__init__(end=end)
        self.number = number
        self._fittings = fittings
        self._serving = serving
        self._is_child = is_child
        self._may_map = may_map
        self._encode = fittings.codec.encode
        self._decode = fittings.codec.decode
        self._due = fittings.imports.due
        self._received = fittings.marshal.received
        self._threads = fittings.marshal.threads
        self._asked = 0
        self.depth = 0
        self.is_given_up = False
        self._owed: list[int] | None = None
        self.regions = fittings.codec.make_regions(self) if shares_memory else None

    @property
    def is_whole(self) -> bool:
        """Whether no request is under way on it."""
        return self.depth == 0

    def exchange(
        self,
        op: int,
        target: int,
        name: str,
        extra: object,
        values: Sequence[object],
        policy: int,
        returns: int,
    ) -> tuple[object, list[object]]:
        """Ask, and return what the reply holds: `extra` and `values`.

        Raises what the other side raised, LaneLost, ProtocolError and DeadlineExceeded.
        """
        self._asked = call = self._asked + 1
        released = self._releases() if self._due or self._owed else None
        try:
            frame = self._encoded(
                [REQUEST, call, op, released, target, name, extra, returns, values], policy
            )
            if len(frame) > LARGEST_FRAME:
                raise too_large(len(frame))
        except BaseException:
            self._owed = released
            self._fittings.marshal.undo()
            raise
        self.depth += 1
        self.write_frame(frame)
        views = returns >= RETURNS_VIEWS
        return self._answered(call, self._read(views), views)

    def call(self, target: int, name: str, values: Sequence[object]) -> list[object]:
        """Do what `exchange` does for a call with nothing beside and no `ends_at`, and return the
        values.

        All in one frame of the interpreter where values and reply are plain: after a switch of
        process its caches are cold, and each frame costs some 0.5 us.
        """
        if self._due or self._owed:
            return self.exchange(CALL, target, name, None, values, 0, 0)[1]
        self._asked = call = self._asked + 1
        request: list[object] = [REQUEST, call, CALL, None, target, name, None, 0, values]
        try:
            if len(values) < _FEW and PLAIN.issuperset(map(type, values)):
                try:
                    frame = encode_plain(request)
                except NOT_PLAIN:
                    frame = self._encoded(request, 0)
            else:
                frame = self._encoded(request, 0)
            if len(frame) > LARGEST_FRAME:
                raise too_large(len(frame))
        except BaseException:
            self._fittings.marshal.undo()
            raise
        size = len(frame)
        self.depth += 1
        try:
            sent = self._send(pack_length(size) + frame, QUIET)
        except OSError as error:
            raise LaneLost(str(error)) from None
        if sent != size + HEADER_BYTES:
            self.write_rest(pack_length(size) + frame, sent)
        message = self._read()
        is_plain = len(message) == 5 and message[0] == REPLY and message[2] is None
        if is_plain and type(message[1]) is int and message[1] == call:
            self.depth -= 1
            return message[4]  # type: ignore[return-value]
        return self._answered(call, message, False)[1]

    def _answered(
        self, call: int, message: list[object], views: bool
    ) -> tuple[object, list[object]]:
        """Take the reply to a request: `message`, or what comes once those nested in it have been
        answered.
        """
        while True:
            kind = message[0]
            if kind == REPLY:
                if len(message) != 5:
                    break
                _, answered, freed, extra, found = message
                if type(answered) is not int or answered != call:
                    break
                self.depth -= 1
                if freed is not None:
                    self._fittings.exports.release(freed)  # type: ignore[arg-type]
                return extra, found  # type: ignore[return-value]
            if kind == REQUEST:
                self._answer_nested(message)
            elif kind == ERROR:
                if len(message) != 5:
                    break
                _, answered, freed, extra, found = message
                if type(answered) is not int or answered != call:
                    break
                if freed is not None:
                    self._fittings.exports.release(freed)  # type: ignore[arg-type]
                error = self._fittings.unpack_error(extra, found)  # type: ignore[arg-type]
                self.depth -= 1
                raise error
            elif kind == REGION:
                self._take_region(message)
            else:
                break
            message = self._read(views)
        raise ProtocolError(f"a message of kind {message[0]!r} is no answer to request {call}")

    def serve(self) -> None:
        """Answer requests until the other side goes away, with LaneLost."""
        self._serving[get_ident()] = self
        try:
            while True:
                message = self._read()
                if message[0] == REQUEST:
                    self._answer(message)
                elif message[0] == REGION:
                    self._take_region(message)
                else:
                    raise ProtocolError(f"a message of kind {message[0]!r} where none was asked")
        finally:
            self._serving.pop(get_ident(), None)

    def share(self, size: int) -> tuple[int, int]:
        """Get memory of at least `size` bytes for what this side sends: a descriptor and its size.

        The other side knows it when this returns. Only while a message is being encoded. The memory
        is always of the parent's making, so that no child can take it back under a reader.
        """
        if size > MOST_SHARED:
            raise UnsupportedUse(
                f"a message needs {size} bytes of shared memory and {MOST_SHARED} is the most; "
                "send it in several calls"
            )
        announcement = self._encode([REGION, size, []], policy=0, regions=None)
        # What fails from here on leaves the two sides at odds.
        self.depth += 1
        self.write_frame(announcement)
        if self._is_child:
            descriptor = self.take_descriptor()
            if descriptor < 0:
                self.depth -= 1
                raise UnsupportedUse("the caller has no more shared memory for this child")
        # The child answers once it reads no more frames: a plain read would drop the descriptor.
        elif self.read_frame() != announcement:
            raise ProtocolError("shared memory was announced and not awaited")
        else:
            descriptor = self._give_region(size)
        self.depth -= 1
        return descriptor, size

    def close(self) -> None:
        """Let go of it; by the thread whose lane it is, or when nobody has it."""
        self.depth += 1
        self._end.close()
        if self.regions is not None:
            self.regions.close()

    def _answer_nested(self, message: list[object]) -> None:
        """Answer, and let what this thread asks meanwhile go on this lane too."""
        thread = get_ident()
        outer = self._serving.get(thread)
        self._serving[thread] = self
        try:
            self._answer(message)
        finally:
            if outer is None:
                self._serving.pop(thread, None)
            else:
                self._serving[thread] = outer

    def _answer(self, message: list[object]) -> None:
        try:
            _, call, op, released, target, name, extra, returns, values = message
        except ValueError:
            raise ProtocolError(f"a request of {len(message)} parts; it has nine") from None
        if type(returns) is not int or not 0 <= returns < 2 * RETURNS_VIEWS:
            raise ProtocolError(f"{returns!r} is no policy")
        fittings = self._fittings
        if released is not None:
            fittings.exports.release(released)  # type: ignore[arg-type]
        released, is_begun = None, False
        try:
            if self.depth > DEEPEST:
                raise RecursionError(f"calls back and forth are nested more than {DEEPEST} deep")
            told, found = fittings.serve(op, target, name, extra, values)  # type: ignore[arg-type]
            if self._due or self._owed:
                released = self._releases()
            is_begun = True
            reply = [REPLY, call, released, told, found]
            if len(found) < _FEW and PLAIN.issuperset(map(type, found)):
                try:
                    frame = encode_plain(reply)
                except NOT_PLAIN:
                    frame = self._encoded(reply, returns)
            else:
                frame = self._encoded(reply, returns)
            if len(frame) > LARGEST_FRAME:
                raise too_large(len(frame))
        except Cancelled:
            raise
        except BaseException as error:
            # In the parent, an interrupt is its own; a child has nobody else to tell of one.
            if not self._is_child and not isinstance(error, Exception):
                raise
            if is_begun:
                self._owed = released
                fittings.marshal.undo()
            frame = self._refusal(call, error)
        self.write_frame(frame)

    def _refusal(self, call: object, error: BaseException) -> bytes:
        """Write an error; the error of that where it cannot be written."""
        fittings = self._fittings
        released = self._releases()
        try:
            payload, values = fittings.pack_error(error)
            return self._encoded([ERROR, call, released, payload, values], 0)
        except Exception as unwritable:
            fittings.marshal.undo()
            payload, _ = fittings.pack_error(ProtocolError(f"an error has no form: {unwritable}"))
            return self._encoded([ERROR, call, released, payload, []], 0)

    def _encoded(self, message: list[object], policy: int) -> bytes:
        """Encode a message; what is collected meanwhile, and asks, does so on another lane."""
        travelling = self._threads.travelling
        travelling.encoding = self.is_amid = True
        try:
            return self._encode(message, policy=policy, regions=self.regions)
        finally:
            travelling.encoding = self.is_amid = False

    def _releases(self) -> list[int] | None:
        released = self._fittings.imports.drain()
        if self._owed is not None:
            released = self._owed + (released or [])
            self._owed = None
        return released

    def _read(self, views: bool = False) -> list[object]:
        """Read one message; all that a small one takes is done here, without further calls."""
        if self.ends_at is None:
            try:
                count = self._receive(self._buffer)
            except OSError as error:
                raise LaneLost(str(error)) from None
            if count > HEADER_BYTES and unpack_length(self._buffer)[0] == count - HEADER_BYTES:
                frame = self._view[HEADER_BYTES:count]
            else:
                frame = self.read_on(count)
        else:
            frame = self.read_frame()
        travelling = self._threads.travelling
        if travelling.kept or travelling.told or travelling.payloads:
            self._received()
        travelling.replying = False
        travelling.decoding = True
        try:
            message = self._decode(frame, self.regions, views)
        finally:
            travelling.decoding = False
        if not message or type(message[0]) is not int:
            raise ProtocolError("a message without a kind")
        return message

    def _take_region(self, message: list[object]) -> None:
        """Take part in the other side's `share`."""
        regions = self.regions
        if regions is None:
            raise ProtocolError("shared memory between two machines")
        if len(message) != 3 or type(size := message[1]) is not int:
            raise ProtocolError(f"shared memory of {message[1:]!r}")
        if not 0 < size <= MOST_SHARED:
            raise ProtocolError(f"shared memory of {size} bytes; {MOST_SHARED} is the most")
        self.is_amid = True
        if self._is_child:
            self.write_frame(self._encode(message, policy=0, regions=None))
            self.is_amid = True
            descriptor = self.take_descriptor()
            if descriptor < 0:
                raise ProtocolError("shared memory was announced and did not come")
            regions.attached(descriptor, size)
        elif self._may_map(size):
            regions.attached(self._give_region(size), size)
        else:
            self.give_descriptor(-1)
        self.is_amid = False

    def _give_region(self, size: int) -> int:
        descriptor = make_region(size)
        try:
            self.give_descriptor(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def too_large(size: int) -> UnsupportedUse:
    """Return what to raise for a message of so many bytes."""
    return UnsupportedUse(
        f"a message of {size} bytes; {LARGEST_FRAME} is the most. Send it in several calls; bytes "
        "and arrays to a child of this machine travel through shared memory"
    )
