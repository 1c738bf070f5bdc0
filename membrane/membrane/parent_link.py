"""The parent's side of a link: one living child, its lanes, and what its caller's threads ask."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from _thread import get_ident
from collections import deque
from typing import TYPE_CHECKING

from membrane.configuring import configure
from membrane.errors import ChildLost, DeadlineExceeded, ProtocolError
from membrane.frames import (
    CALL,
    CANCEL,
    FREED,
    LANE,
    MOST_SHARED,
    PROBE,
    RUNS,
    WANTED,
)
from membrane.framing import LaneLost
from membrane.lane import Lane
from membrane.lending import Lending
from membrane.packets import pack, receive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from membrane.calls import CallOptions
    from membrane.children import Child
    from membrane.fittings import Fittings
    from membrane.service import Service

MOST_LANES = 128
"""Calls that one child serves at a time; more wait."""

MOST_STUCK = 16
"""Cancelled calls of one child that may go on in code that cannot be interrupted."""

_GRACE_SECONDS = 1.0


class ParentLink:
    """A living child as its callers have it; used from any thread.

    A call takes a free lane, and makes one where all are busy: an append and a pop of a deque are
    all that two calls have in common.
    """

    def __init__(
        self, *, child: Child, isolation: str, service: Service, deadline: float | None
    ) -> None:
        """`deadline` is that of calls which have none of their own, in seconds."""
        self.isolation = isolation
        self.fittings: Fittings
        self.child = child
        self._service = service
        self._deadline = deadline
        self._lost = ""
        self._serving: dict[int, Lane] = {}
        self._free: deque[Lane] = deque()
        self._lanes: set[Lane] = set()
        self._cancelled: set[int] = set()
        # Those of them that cannot be interrupted, in a child that answers otherwise.
        self._stuck: set[int] = set()
        self._freed = 0
        self._numbers = itertools.count(1)
        self._lending = Lending(
            tell=self._tell, admit=self._admit, end=self.end, drop=self._drop, service=service
        )
        self._waiting = 0
        # Re-entrant: what is collected under it may use the link, or end it.
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return not self._lost

    def look_alive(self) -> bool:
        """Say whether it can be asked, by a look at the process: its end may be news."""
        if not self._lost and self.child.is_gone():
            self._on_ended("the child ended")
        return not self._lost

    @property
    def pid(self) -> int:
        """The child's process id; raises ChildLost where it was never born."""
        return self.child.pid

    def open(self, settings: object, fit: Callable[[ParentLink], Fittings]) -> None:
        """Make the child a session's; raises ChildLost."""
        self._service.watch(self.child.control.fileno(), self._on_control)
        self.child.ended = lambda: self._on_ended("the child ended")
        try:
            configure(self.child.lane, settings)
            self.fittings = fit(self)
        except BaseException as error:
            is_lost = isinstance(error, (LaneLost, DeadlineExceeded))
            if is_lost:
                self.child.wait_born()
            self.end(f"the child did not start: {self.child.fault or error}")
            self.child.lane.close()
            if is_lost:
                raise ChildLost(self._lost) from None
            raise
        self._free.append(self._admit(0, self.child.lane))
        if self.child.is_over:
            self._on_ended("the child ended")
        if self._lost:
            self._settle()
            raise ChildLost(self._lost)

    def request(
        self,
        op: int,
        target: int,
        name: str,
        extra: object,
        values: Sequence[object],
        *,
        options: CallOptions | None = None,
    ) -> tuple[object, list[object]]:
        """Ask the child, and return `extra` and `values` of its reply.

        Raises what the child raised, DeadlineExceeded, ChildLost, ProtocolError and what a value
        that cannot be sent raises. What a callback asks goes on the lane of the callback, into the
        same thread of the child, unless its deadline is before that of the call around it.
        """
        policy = returns = 0
        seconds = self._deadline
        if options is not None:
            policy, returns = options.sent, options.returned
            if options.deadline is not None:
                seconds = options.deadline
        ends_at = None if seconds is None else time.monotonic() + seconds
        if self._serving and (lane := self._serving.get(get_ident())) and not lane.is_amid:
            around = lane.ends_at
            if ends_at is None or (around is not None and around <= ends_at):
                return self._nested(lane, op, target, name, extra, values, policy, returns)
        try:
            lane = self._free.pop()
        except IndexError:
            lane = self._take(ends_at, seconds)
        lane.ends_at, lane.seconds = ends_at, seconds
        try:
            answer = lane.exchange(op, target, name, extra, values, policy, returns)
        except BaseException as error:
            self._after(lane, error, seconds)
            raise
        self._free.append(lane)
        if self._lost or self._waiting:
            self._settle()
        return answer

    def call(self, target: int, name: str, values: Sequence[object]) -> list[object]:
        """Do what `request` does for a call with nothing beside, and return the values: see
        `Lane.call`.
        """
        if self._deadline is not None or (self._serving and get_ident() in self._serving):
            return self.request(CALL, target, name, None, values)[1]
        try:
            lane = self._free.pop()
        except IndexError:
            lane = self._take(None, None)
        lane.ends_at = None
        try:
            found = lane.call(target, name, values)
        except BaseException as error:
            self._after(lane, error, None)
            raise
        self._free.append(lane)
        if self._lost or self._waiting:
            self._settle()
        return found

    def end(self, reason: str, *, kill: bool = True) -> None:
        """Be lost, for this reason: calls under way and later ones raise ChildLost. Never waits.

        Without `kill` the child has a second to end by itself.
        """
        with self._lock:
            if self._lost:
                return
            self._lost = reason
            for lane in list(self._lanes):
                lane.shut()
            self._service.forget(self.child.control.fileno())
            self.child.control.close()
        if not self._lanes:
            with contextlib.suppress(OSError):  # closed by `open`, which may be reading it
                self.child.lane.shutdown(socket.SHUT_RDWR)
        self._settle()
        if kill:
            self.child.kill()
        else:
            self._service.after(_GRACE_SECONDS, self.child.kill)

    def _on_ended(self, what: str) -> None:
        """Be lost because the child is, and say why where that is known."""
        fault = self.child.fault
        self.end(f"{what}: {fault}" if fault else what)

    def abandon(self) -> None:
        """Be lost in a fork of this process, whose child it is not."""
        self._lost = "this process is a fork of the one whose child it was"
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        for lane in list(self._lanes):
            lane.close()
        self._free.clear()
        self.child.close()

    def _settle(self) -> None:
        """Let those see a change who wait for a lane, and close the free ones of a lost link."""
        with self._room:
            self._room.notify_all()
        if self._lost:
            with self._lock, contextlib.suppress(IndexError):
                while True:
                    self._close(self._free.pop())

    def _close(self, lane: Lane) -> None:
        self._lanes.discard(lane)
        lane.close()

    def _nested(
        self,
        lane: Lane,
        op: int,
        target: int,
        name: str,
        extra: object,
        values: Sequence[object],
        policy: int,
        returns: int,
    ) -> tuple[object, list[object]]:
        """Ask on a lane on which a callback is being served."""
        depth = lane.depth
        try:
            return lane.exchange(op, target, name, extra, values, policy, returns)
        except BaseException as error:
            if lane.depth != depth:
                # The call around it cannot go on either.
                lane.is_given_up = True
                lane.shut()
            if isinstance(error, LaneLost):
                raise ChildLost(self._lost or "the child ended during a call") from None
            raise

    def _after(self, lane: Lane, error: BaseException, seconds: float | None) -> None:
        """See to a lane after a call on it failed; raises what the caller is to see instead."""
        if lane.is_whole:
            self._free.append(lane)
            self._settle()
            return
        late = lane.ends_at is not None and time.monotonic() >= lane.ends_at
        if late and isinstance(error, (LaneLost, DeadlineExceeded)):
            self._cancel(lane)
            raise DeadlineExceeded(seconds=seconds or 0.0) from None
        if isinstance(error, LaneLost) and lane.is_given_up:
            self._cancel(lane)
            raise ChildLost("the call was given up while it called back") from None
        if isinstance(error, LaneLost):
            # The child's end of a lane is closed by nothing but its own end.
            self._on_ended("the child ended during a call")
            self._drop(lane)
            raise ChildLost(self._lost) from None
        if isinstance(error, ProtocolError):
            self.end(f"the child broke the protocol: {error}")
            self._drop(lane)
        else:
            self._cancel(lane)

    def _drop(self, lane: Lane) -> None:
        with self._lock:
            self._close(lane)

    def _cancel(self, lane: Lane) -> None:
        """Give up a lane whose call goes on in the child, and have the child end it."""
        self._cancelled.add(lane.number)
        self._drop(lane)
        self._settle()
        try:
            self._tell(pack(CANCEL, lane.number))
        except OSError:
            self.end("the child does not read what it is told")
        self._await_freed(lane.number)
        # Where nobody else looks after it: the caller itself, until the child is free or killed.
        self._service.turn_while(
            lambda: (
                not self._lost and lane.number in self._cancelled and lane.number not in self._stuck
            ),
            2 * self.child.free_seconds + _GRACE_SECONDS,
        )

    def _await_freed(self, number: int) -> None:
        """Give the child its time to end a cancelled call."""
        freed = self._freed
        self._service.after(self.child.free_seconds, lambda: self._check_cancelled(number, freed))

    def _check_cancelled(self, number: int, freed: int) -> None:
        """Ask a child that has not ended a cancelled call whether anything else runs in it, unless
        it has ended others meanwhile: it does one after another then. What it can gain by that has
        an end, as these calls have.
        """
        if number not in self._cancelled:
            return
        if self._freed != freed:
            self._await_freed(number)
            return
        try:
            self._tell(pack(PROBE, number))
        except OSError:
            self.end("the child does not read what it is told")
            return
        self._service.after(self.child.free_seconds, lambda: self._check_runs(number))

    def _check_runs(self, number: int) -> None:
        """Kill a child in which a cancelled call lets nothing else run: the others in it, and the
        objects of whoever shares it, are lost already.
        """
        if number in self._cancelled and number not in self._stuck:
            self.end("a call that was cancelled did not end, so the child was killed")

    def _on_runs(self, number: int) -> None:
        """Leave a call in code that cannot be interrupted to end by itself; a child that has too
        many of these is killed.
        """
        if number not in self._cancelled:
            return
        self._stuck.add(number)
        if len(self._stuck) > MOST_STUCK:
            self.end(f"more than {MOST_STUCK} cancelled calls did not end: the child was killed")

    def _tell(self, packet: bytes, end: socket.socket | None = None) -> None:
        """Write to control; raises OSError, also where the child has not read for long."""
        flags = socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT
        with self._lock:
            if self._lost:
                return
            if end is None:
                self.child.control.send(packet, flags)
            else:
                socket.send_fds(self.child.control, [packet], [end.fileno()], flags)

    def _take(self, ends_at: float | None, seconds: float | None) -> Lane:
        """Make a lane, or wait for one; raises ChildLost and DeadlineExceeded."""
        self._service.pump()
        with self._room:
            self._waiting += 1
            try:
                while True:
                    if self._lost:
                        raise ChildLost(self._lost)
                    with contextlib.suppress(IndexError):
                        return self._free.pop()
                    if len(self._lanes) < MOST_LANES:
                        return self._make()
                    left = None if ends_at is None else ends_at - time.monotonic()
                    if left is not None and left <= 0:
                        raise DeadlineExceeded(
                            seconds=seconds or 0.0, what="a call that waited for others"
                        )
                    self._room.wait(left)
            finally:
                self._waiting -= 1

    def _make(self) -> Lane:
        number = next(self._numbers)
        near, far = socket.socketpair()
        try:
            with far:
                self._tell(pack(LANE, number), far)
        except OSError:
            near.close()
            self.end("the child does not read what it is told")
            raise ChildLost(self._lost) from None
        return self._admit(number, near)

    def _admit(self, number: int, end: socket.socket) -> Lane:
        """Make a lane of an end; raises ChildLost."""
        lane = Lane(
            number=number,
            end=end,
            fittings=self.fittings,
            serving=self._serving,
            is_child=False,
            may_map=self._may_map,
            shares_memory=self.child.shares_memory,
        )
        with self._lock:
            if self._lost:
                lane.close()
                raise ChildLost(self._lost)
            self._lanes.add(lane)
        return lane

    def _may_map(self, size: int) -> bool:
        """Say whether the child may have this much more shared memory mapped here."""
        with self._lock:
            mapped = sum(each.regions.incoming_bytes for each in list(self._lanes) if each.regions)
            return size + mapped <= MOST_SHARED

    def _on_control(self) -> None:
        """Take a packet of the child, which may be hostile; on the service thread."""
        try:
            packet = receive(self.child.control, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if packet is None:
            self._on_ended("the child ended")
            return
        fields, descriptors = packet
        for descriptor in descriptors:
            os.close(descriptor)
        match fields:
            case [int(kind), int(number)] if kind == FREED:
                if number in self._cancelled:
                    self._cancelled.remove(number)
                    self._stuck.discard(number)
                    self._freed += 1
            case [int(kind), int(number)] if kind == RUNS:
                self._on_runs(number)
            case [int(kind), int(ticket)] if kind == WANTED:
                self._lending.lend(ticket)
            case _:
                self.end("the child broke the protocol of control")
