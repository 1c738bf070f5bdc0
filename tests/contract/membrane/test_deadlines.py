"""Deadlines: the caller goes on at once, the child ends the call, and nobody else notices."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import FrameType
from typing import cast

import pytest

from membrane.calls import CallOptions
from membrane.errors import ChildLost, DeadlineExceeded
from membrane.parent_link import ParentLink
from membrane.sessions import sessions
from tests.contract.membrane.plain_fittings import call
from tests.contract.membrane.plain_sessions import (
    ISOLATIONS,
    need,
    open_plain,
    plain_link,
    watched,
)
from tests.eventually import SECONDS

SHORT = CallOptions(deadline=0.1)
LONG = CallOptions(deadline=SECONDS)


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize(("name", "values"), [("sleep", (1000.0,)), ("spin", ())])
def test_a_call_ends_in_the_main_thread_and_its_child_lives_on(
    name: str, values: tuple[object, ...], isolation: str
) -> None:
    with plain_link(isolation=need(isolation), free_seconds=SECONDS) as link:
        assert call(link, "add") == 1
        for _ in range(3):
            with pytest.raises(DeadlineExceeded) as caught:
                call(link, name, *values, options=SHORT)
            assert caught.value.seconds == 0.1
            assert "deadline" in str(caught.value)
        assert cast("int", call(link, "add", options=LONG)) == 2
        assert link.alive


def test_a_python_loop_in_another_thread_ends_and_other_calls_do_not_notice() -> None:
    go_on = threading.Event()
    begun = threading.Event()

    def wait() -> str:
        begun.set()
        return str(go_on.wait(SECONDS))

    with plain_link({"wait": wait}, free_seconds=SECONDS) as link, ThreadPoolExecutor() as threads:
        # It has the main thread of the child, so that the loop goes to another one.
        waiting = threads.submit(call, link, "ask", "wait")
        assert begun.wait(SECONDS)
        for _ in range(3):
            with pytest.raises(DeadlineExceeded):
                call(link, "spin", options=SHORT)
            assert call(link, "echo", 1) == 1
        go_on.set()
        assert waiting.result(SECONDS) == "True"
        assert link.alive


def test_a_call_that_is_cancelled_before_the_child_begins_it_never_begins() -> None:
    go_on = threading.Event()
    begun = threading.Event()

    def wait() -> str:
        begun.set()
        return str(go_on.wait(SECONDS))

    with plain_link({"wait": wait}, free_seconds=SECONDS) as link, ThreadPoolExecutor() as threads:
        waiting = threads.submit(call, link, "ask", "wait")
        assert begun.wait(SECONDS)
        for _ in range(3):
            # Its lane and its cancellation are there together when the child goes on.
            os.kill(link.pid, signal.SIGSTOP)
            with pytest.raises(DeadlineExceeded):
                call(link, "spin", options=CallOptions(deadline=0.0))
            os.kill(link.pid, signal.SIGCONT)
            while link._cancelled and link.alive:
                """Until the child says that it is free, or is killed."""
        go_on.set()
        assert waiting.result(SECONDS) == "True"


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_child_that_cannot_end_a_call_is_killed_and_replaced(isolation: str) -> None:
    begun = threading.Event()
    session = open_plain(isolation=need(isolation), table={"begin": begun.set})
    link = session.link()
    with watched(link.pid) as is_gone:
        # A busy machine may not begin it in time.
        while not begun.is_set():
            with pytest.raises(DeadlineExceeded):
                call(link, "hold", "begin", options=SHORT)
        assert is_gone()
    fresh = session.link()
    assert fresh is not link
    assert call(fresh, "add") == 1
    with pytest.raises(ChildLost, match="cancelled"):
        call(link, "add")
    sessions().close(session)


def test_a_child_that_is_stopped_is_killed() -> None:
    with plain_link() as link, watched(link.pid) as is_gone:
        os.kill(link.pid, signal.SIGSTOP)
        # More than the socket holds: the caller may not wait to be read either.
        with pytest.raises(DeadlineExceeded):
            call(link, "echo", "x" * 8_000_000, options=SHORT)
        assert is_gone()


def test_a_child_with_many_calls_that_do_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("membrane.parent_link.MOST_STUCK", 1)
    begun = threading.Event()
    go_on = threading.Event()

    def wait() -> None:
        begun.set()
        go_on.wait(SECONDS)

    with plain_link({"wait": wait}) as link, ThreadPoolExecutor() as threads:
        occupying = threads.submit(call, link, "ask", "wait")
        assert begun.wait(SECONDS)
        link.child.free_seconds = 0.05
        while link.alive:
            with pytest.raises((DeadlineExceeded, ChildLost)):
                call(link, "sleep", 1000, options=SHORT)
        go_on.set()
        with pytest.raises(ChildLost, match="cancelled"):
            occupying.result(SECONDS)


def test_a_reply_after_the_deadline_reaches_no_other_call() -> None:
    late = CallOptions(deadline=0.02)
    with plain_link(free_seconds=SECONDS) as link:
        answered = missed = 0
        for number in range(150):
            try:
                # Some are in time and some are not, on a quick machine and on a slow one.
                seconds = 0.015 + number * 0.0001
                assert call(link, "sleep", seconds, options=late) == "slept"
                answered += 1
            except DeadlineExceeded:
                missed += 1
            assert call(link, "echo", number) == number
        assert answered + missed == 150
        assert missed


def test_calls_of_eight_threads_with_deadlines_get_their_own_replies() -> None:
    with plain_link(free_seconds=SECONDS) as link:
        faults: list[str] = []

        def work(own: int) -> None:
            for number in range(25):
                try:
                    call(link, "spin", options=CallOptions(deadline=0.005))
                except DeadlineExceeded:
                    pass
                except ChildLost:
                    return
                try:
                    if call(link, "echo", [own, number]) != [own, number]:
                        faults.append(f"{own} {number}")
                except ChildLost:
                    return

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(work, range(8)))
        assert not faults


def test_the_deadline_of_a_call_holds_for_what_its_callbacks_ask() -> None:
    links: list[ParentLink] = []

    def again() -> object:
        return call(links[0], "sleep", 1000)

    with plain_link({"again": again}, free_seconds=SECONDS) as link:
        links.append(link)
        with pytest.raises(DeadlineExceeded):
            call(link, "ask", "again", options=SHORT)
        assert call(link, "echo", 1, options=LONG) == 1


def test_a_shorter_deadline_inside_of_a_callback_ends_only_its_own_call() -> None:
    links: list[ParentLink] = []

    def again() -> str:
        try:
            call(links[0], "spin", options=SHORT)
        except DeadlineExceeded:
            return "caught"
        return "answered"

    with plain_link({"again": again}, free_seconds=SECONDS) as link:
        links.append(link)
        assert call(link, "ask", "again", options=LONG) == "caught"
        assert call(link, "echo", 1) == 1


def test_a_callback_that_takes_too_long_is_told_when_it_comes_back() -> None:
    def late() -> str:
        time.sleep(0.15)
        return "late"

    with plain_link({"late": late}, free_seconds=SECONDS) as link:
        with pytest.raises(DeadlineExceeded):
            call(link, "ask", "late", options=SHORT)
        assert call(link, "echo", 1, options=LONG) == 1


def test_a_session_has_a_deadline_for_calls_without_one() -> None:
    with plain_link(deadline=0.1, free_seconds=SECONDS) as link:
        with pytest.raises(DeadlineExceeded):
            call(link, "spin")
        assert call(link, "sleep", 0.2, options=LONG) == "slept"


def test_an_interrupt_of_the_caller_gives_the_call_up() -> None:
    begun, interrupted = threading.Event(), threading.Event()
    main = threading.get_ident()

    def once(number: int, frame: FrameType | None) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    def interrupt() -> None:
        assert begun.wait(SECONDS)
        # Python does not see one that comes just before it sleeps in the kernel, until it wakes.
        signal.pthread_kill(main, signal.SIGINT)
        while not interrupted.wait(0.5):
            signal.pthread_kill(main, signal.SIGINT)

    with (
        ExitStack() as after,
        plain_link({"begin": begun.set}, free_seconds=SECONDS) as link,
        ThreadPoolExecutor() as threads,
    ):
        after.callback(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, once))
        call(link, "add")
        interrupting = threads.submit(interrupt)

        def wait() -> None:
            call(link, "ask", "begin")
            call(link, "sleep", 1000)

        with pytest.raises(KeyboardInterrupt):
            wait()
        interrupting.result(SECONDS)
        assert call(link, "add", options=LONG) == 2
