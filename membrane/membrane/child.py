"""The child's side of a link: its lanes, each served by a thread, and what its own threads ask."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import queue
import select
import signal
import socket
import sys
import threading
from _thread import get_ident, start_new_thread
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import msgspec

from membrane.errors import ChildLost, ProtocolError, UnsupportedUse
from membrane.frames import (
    CANCEL,
    CONFIGURE,
    ERROR,
    FREED,
    LANE,
    LENT,
    PROBE,
    REPLY,
    REQUEST,
    RUNS,
    WANTED,
)
from membrane.framing import FramedEnd, LaneLost
from membrane.lane import Cancelled, Lane
from membrane.packets import pack, receive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from membrane.calls import CallOptions
    from membrane.fittings import Fittings

_END_SECONDS = 0.5
_LENT_SECONDS = 10.0
_INTERRUPT = signal.SIGRTMAX
"""Reaches the main thread where it waits in a system call, which an asynchronous exception waits
for. Other threads' waits cannot be interrupted: their child is killed."""


class ChildLink:
    """The link as the child's code has it; `pid` and `isolation` are the child's own."""

    alive = True

    def __init__(
        self, *, control: socket.socket, isolation: str, shares_memory: bool = True
    ) -> None:
        self.pid = os.getpid()
        self.isolation = isolation
        self.fittings: Fittings
        self._shares_memory = shares_memory
        self._control = control
        self._serving: dict[int, Lane] = {}
        # The lanes that are to be served, with their threads: 0 where that has not begun.
        self._threads: dict[int, int] = {0: 0}
        self._cancelled: set[int] = set()
        # Re-entrant: what is collected under it may ask the parent.
        self._lock = threading.RLock()
        self._watcher = 0
        self._for_main: queue.SimpleQueue[Lane | None] = queue.SimpleQueue()
        self._main_lane = 0
        self._main_is_idle = False
        self._main = get_ident()
        self._free: deque[Lane] = deque()
        self._tickets: dict[int, queue.SimpleQueue[int]] = {}
        self._asked = 0

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
        """Ask the parent; raises what that raised, ProtocolError and ChildLost.

        On the lane on which this thread serves a call; else, and for what is collected in the
        middle of a frame of that, on one that the parent lends.
        """
        policy = returns = 0
        if options is not None:
            policy, returns = options.sent, options.returned
        lane = self._serving.get(get_ident())
        if lane is not None and not lane.is_amid:
            try:
                return lane.exchange(op, target, name, extra, values, policy, returns)
            except LaneLost:
                # Nobody waits for this call any more.
                raise Cancelled from None
        try:
            lane = self._free.pop()
        except IndexError:
            lane = self._borrow()
        try:
            answer = lane.exchange(op, target, name, extra, values, policy, returns)
        except LaneLost:
            lane.close()
            raise ChildLost("the caller is gone, or has closed this session") from None
        except BaseException:
            if lane.is_whole:
                self._free.append(lane)
            else:
                lane.close()
            raise
        self._free.append(lane)
        return answer

    def watch(self) -> None:
        """Serve control until the parent goes away, then end the process."""
        self._watcher = get_ident()
        while True:
            packet = receive(self._control)
            if packet is None:
                break
            fields, descriptors = packet
            match fields:
                case [int(kind), int(number)] if kind == LANE and descriptors:
                    self._start(self._lane(number, descriptors[0]))
                case [int(kind), int(number)] if kind == CANCEL:
                    self._cancel(number)
                case [int(kind), int(number)] if kind == PROBE:
                    with contextlib.suppress(OSError):
                        self._control.send(pack(RUNS, number), socket.MSG_NOSIGNAL)
                case [int(kind), int(ticket)] if kind == LENT:
                    waiting = self._tickets.pop(ticket, None)
                    if waiting is not None:
                        waiting.put(descriptors[0] if descriptors else -1)
        # The main thread ends in order if it can; a call that is under way is not waited for.
        self._for_main.put(None)
        ended = threading.Event()
        ended.wait(_END_SECONDS)
        os._exit(0)

    def run(self, lane: Lane) -> None:
        """Be the main thread: serve the first lane, and others that come when that is gone."""
        following: Lane | None = lane
        while following is not None:
            with self._lock:
                self._main_is_idle = False
                self._main_lane = following.number
            self._serve(following)
            with self._lock:
                self._main_is_idle = True
            following = self._for_main.get()

    def on_interrupt(self, _number: int, _frame: object) -> None:
        """End what the main thread waits for, if its lane is cancelled."""
        lane = self._main_lane
        if lane in self._cancelled and self._threads.get(lane) == self._main:
            raise Cancelled

    def _lane(self, number: int, descriptor: int) -> Lane:
        return Lane(
            number=number,
            end=socket.socket(fileno=descriptor),
            fittings=self.fittings,
            serving=self._serving,
            is_child=True,
            shares_memory=self._shares_memory,
        )

    def _start(self, lane: Lane) -> None:
        with self._lock:
            # Before its thread runs: a cancellation may be the next packet.
            self._threads[lane.number] = 0
            if self._main_is_idle:
                self._main_is_idle = False
                self._for_main.put(lane)
                return
        try:
            start_new_thread(self._serve, (lane,))
        except RuntimeError:
            # No memory is left for its stack: the caller sees the end of this child.
            os._exit(1)

    def _serve(self, lane: Lane) -> None:
        """Serve a lane until the parent drops it, and say so.

        Its one cancellation may arrive anywhere in here, until `_leave` is through.
        """
        try:
            try:
                if self._enter(lane):
                    lane.serve()
            except (LaneLost, Cancelled):
                pass
            except ProtocolError:
                os._exit(1)
            self._leave(lane)
        except Cancelled:
            self._leave(lane)
        lane.close()
        with contextlib.suppress(OSError):
            self._control.send(pack(FREED, lane.number), socket.MSG_NOSIGNAL)

    def _enter(self, lane: Lane) -> bool:
        """Have cancellations of this lane reach this thread; False where one came before."""
        with self._lock:
            self._threads[lane.number] = get_ident()
            return lane.number not in self._cancelled

    def _leave(self, lane: Lane) -> None:
        """Let no cancellation of this lane reach this thread any more."""
        while True:
            try:
                with self._lock:
                    self._threads.pop(lane.number, None)
                    self._cancelled.discard(lane.number)
                    _raise_in(get_ident(), None)
                self._serving.pop(get_ident(), None)
                return
            except Cancelled:
                continue

    def _cancel(self, number: int) -> None:
        with self._lock:
            thread = self._threads.get(number)
            if thread is None or number in self._cancelled:
                return
            self._cancelled.add(number)
            if thread == self._main:
                signal.pthread_kill(thread, _INTERRUPT)
            elif thread:
                _raise_in(thread, Cancelled)

    def _borrow(self) -> Lane:
        """Get a lane that the parent serves."""
        if get_ident() == self._watcher:
            # A finalizer, of what was collected here. The answer would come to this very thread.
            raise UnsupportedUse("the thread that the child is told on cannot ask its caller")
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        with self._lock:
            self._asked += 1
            ticket = self._asked
            self._tickets[ticket] = waiting
        try:
            self._control.send(pack(WANTED, ticket), socket.MSG_NOSIGNAL)
            descriptor = waiting.get(timeout=_LENT_SECONDS)
        except (OSError, queue.Empty):
            raise ChildLost("the caller lends no lane to this thread") from None
        if descriptor < 0:
            raise ChildLost("too many threads of this child ask its caller at one time")
        return self._lane(-ticket, descriptor)


Fit = Callable[[ChildLink, object], "Fittings"]
"""What plugs the operations and objects of a child in: the settings are its session's."""


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise an error in a thread, or take one back that it has not seen yet."""
    argument = ctypes.py_object(error) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), argument)


Prepare = Callable[[ChildLink], object]
"""What a child does ahead, as long as no session has it."""


def run(
    *,
    control: socket.socket,
    lane: socket.socket,
    fit: Fit,
    isolation: str,
    shares_memory: bool = True,
    prepare: Prepare | None = None,
) -> NoReturn:
    """Be a child until the parent goes away; never returns."""
    status = 1
    try:
        link = ChildLink(control=control, isolation=isolation, shares_memory=shares_memory)
        signal.signal(_INTERRUPT, link.on_interrupt)
        start_new_thread(link.watch, ())
        if prepare is not None and not select.select([lane], [], [], 0)[0]:
            # What goes wrong here goes wrong in a session as well, and is told there.
            with contextlib.suppress(Exception):
                prepare(link)
        if _configure(link, lane, fit):
            link.run(link._lane(0, lane.detach()))
        status = 0
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(status)


def _configure(link: ChildLink, lane: socket.socket, fit: Fit) -> bool:
    """Wait until a session takes this child; False when the parent goes away instead.

    The first request is plain: what reads others is made by what it says.
    """
    end = FramedEnd(end=lane)
    try:
        request = msgspec.msgpack.decode(end.read_frame())
        kind, call, op, _, _, _, settings, *_ = request
        if kind != REQUEST or op != CONFIGURE:
            raise ProtocolError("a session configures its child before anything else")
        try:
            link.fittings = fit(link, settings)
            answer = [REPLY, call, None, os.getpid(), []]
        except Exception as error:
            answer = [ERROR, call, None, f"{type(error).__name__}: {error}", []]
        end.write_frame(msgspec.msgpack.encode(answer))
    except LaneLost:
        return False
    return bool(answer[0] == REPLY)
