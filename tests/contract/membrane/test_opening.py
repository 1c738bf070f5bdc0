"""What comes while a link is opened: the child may end between the question and its answer."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import msgspec
import pytest

from membrane.child import run
from membrane.errors import ChildLost, MembraneError
from membrane.fittings import Fittings
from membrane.frames import CONFIGURE, FREED, REPLY, REQUEST
from membrane.framing import FramedEnd
from membrane.packets import pack
from membrane.parent_link import ParentLink
from membrane.service import Service, service
from tests.contract.membrane.plain_fittings import fit_child
from tests.eventually import SECONDS

CONFIGURED = msgspec.msgpack.encode([REQUEST, 1, CONFIGURE, None, 0, "", None, 0, []])


class SilentChild:
    """A child that is asked and does not answer."""

    pid = 0
    shares_memory = False
    free_seconds = 1.0
    has_numpy = False
    fault = ""
    is_over = False
    refusal: MembraneError | None = None

    def __init__(self) -> None:
        self.control, self.far_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.lane, self.far_lane = socket.socketpair()
        self.ended: Callable[[], None] | None = None
        self.kills = 0

    def wait_born(self) -> None:
        """It is born."""

    def is_gone(self) -> bool:
        return self.kills > 0

    def kill(self) -> None:
        self.kills += 1

    def close(self) -> None:
        for end in (self.control, self.far_control, self.lane, self.far_lane):
            end.close()


def test_a_child_that_ends_while_it_is_asked_is_lost_and_its_lane_is_closed() -> None:
    child = SilentChild()
    link = ParentLink(child=child, isolation="process", service=service(), deadline=None)
    with ThreadPoolExecutor(1) as threads:
        opening = threads.submit(
            link.open, None, lambda _: cast("Fittings", pytest.fail("it answered"))
        )
        assert select.select([child.far_lane], [], [], SECONDS)[0]
        assert child.ended is not None
        child.ended()
        with pytest.raises(ChildLost, match="the child ended"):
            opening.result(SECONDS)
    assert child.kills == 1
    assert child.lane.fileno() == child.control.fileno() == -1
    child.close()


class Timers(Service):
    """A service whose times come when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], None]] = []

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.calls.append(call)


def test_a_child_that_ends_one_cancelled_call_after_another_has_time_for_each() -> None:
    child, timers = SilentChild(), Timers()
    link = ParentLink(child=child, isolation="process", service=timers, deadline=None)
    link._cancelled |= {1, 2, 3}
    for number in (1, 2, 3):
        link._await_freed(number)
    # Of one that is free there is no more to await; of one that never was asked, nothing to gain.
    for told in (3, 9):
        child.far_control.send(pack(FREED, told))
        link._on_control()
    first, second, third = timers.calls
    third()
    assert len(timers.calls) == 3
    first()
    second()
    assert child.kills == 0
    again, last = timers.calls[3:]
    child.far_control.send(pack(FREED, 2))
    link._on_control()
    child.far_control.send(pack(FREED, 9))
    link._on_control()
    last()
    again()
    assert child.kills == 0
    (final,) = timers.calls[5:]
    child.far_control.send(pack(FREED, 2))
    link._on_control()
    final()
    # It is asked whether anything else runs in it, and does not answer.
    assert child.kills == 0
    (unanswered,) = timers.calls[6:]
    unanswered()
    assert child.kills == 1
    assert not link.alive
    child.close()


@pytest.mark.parametrize("is_waited_for", [True, False])
def test_a_child_prepares_only_while_nobody_waits_for_it(is_waited_for: bool) -> None:
    control, far_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lane, far_lane = socket.socketpair()
    told, tell = os.pipe()
    if is_waited_for:
        FramedEnd(end=lane).write_frame(CONFIGURED)
    pid = os.fork()
    if pid == 0:
        control.close()
        lane.close()
        run(
            control=far_control,
            lane=far_lane,
            fit=fit_child,
            isolation="process",
            prepare=lambda _: os.write(tell, b"prepared"),
        )
    os.close(tell)
    far_control.close()
    far_lane.close()
    with os.fdopen(told, "rb", buffering=0) as file, control, lane:
        if not is_waited_for:
            assert file.read(100) == b"prepared"
            FramedEnd(end=lane).write_frame(CONFIGURED)
        end = FramedEnd(end=lane)
        end.ends_at = time.monotonic() + SECONDS
        assert msgspec.msgpack.decode(end.read_frame())[:2] == [REPLY, 1]
        control.close()
        assert file.read(100) == b""
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
