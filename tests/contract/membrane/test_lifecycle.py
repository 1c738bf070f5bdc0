"""Sessions from open to close: shared, counted, kept alive, replaced, kept apart by tenant."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import psutil
import pytest

from membrane.calls import CallOptions
from membrane.children import Child
from membrane.errors import ChildLost, SessionConflict
from membrane.fittings import Fittings
from membrane.frames import DEEPEST
from membrane.parent_link import MOST_LANES, ParentLink
from membrane.session import Session
from membrane.sessions import sessions
from tests.contract.membrane.plain_fittings import call
from tests.contract.membrane.plain_sessions import (
    ISOLATIONS,
    Table,
    need,
    open_plain,
    plain_link,
    spec_of,
    watched,
)
from tests.eventually import SECONDS


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_child_is_configured_and_answers(isolation: str) -> None:
    session = open_plain(isolation=need(isolation), settings={"policy": "value"})
    link = session.link()
    assert call(link, "told") == {"policy": "value"}
    assert call(link, "echo", [1, "two", None]) == [1, "two", None]
    assert link.isolation == session.isolation == isolation
    assert link.pid != os.getpid()
    assert psutil.pid_exists(link.pid)
    with watched(link.pid) as is_gone:
        sessions().close(session)
        assert is_gone()
    with pytest.raises(ChildLost, match="closed"):
        session.link()


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_an_error_of_the_child_leaves_the_lane_usable(isolation: str) -> None:
    with plain_link(isolation=need(isolation)) as link:
        with pytest.raises(ValueError, match="on purpose"):
            call(link, "fail", "on purpose")
        assert call(link, "echo", 1) == 1


def test_what_cannot_be_sent_leaves_the_lane_usable() -> None:
    with plain_link() as link:
        with pytest.raises(TypeError):
            call(link, "echo", object())
        assert call(link, "add") == 1


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_calls_nest_in_both_directions_and_stay_in_their_threads(isolation: str) -> None:
    seen: list[int] = []
    links: list[ParentLink] = []

    def nest(depth: int) -> int:
        seen.append(threading.get_ident())
        return 1 + cast("int", call(links[0], "nest", depth - 1)) if depth else 0

    def thread_of_child() -> object:
        return call(links[0], "thread")

    table: Table = {"nest": nest, "thread_of_child": thread_of_child}
    with plain_link(table, isolation=need(isolation)) as link:
        links.append(link)
        assert call(link, "nest", 8) == 8
        assert set(seen) == {threading.get_ident()}
        assert call(link, "ask", "thread_of_child") == call(link, "thread")


def test_calls_that_nest_for_ever_end_in_an_error_and_not_in_a_crash() -> None:
    links: list[ParentLink] = []

    def deeper() -> object:
        return call(links[0], "ask", "deeper")

    with plain_link({"deeper": deeper}) as link:
        links.append(link)
        with pytest.raises(RuntimeError, match=f"nested more than {DEEPEST} deep"):
            call(link, "ask", "deeper")
        assert call(link, "echo", 1) == 1


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_thread_of_the_child_calls_back_on_a_lane_of_its_own(isolation: str) -> None:
    threads: list[int] = []

    def note(value: int) -> int:
        threads.append(threading.get_ident())
        return value + 1

    with plain_link({"note": note}, isolation=need(isolation)) as link:
        assert call(link, "ask_from_thread", "note", 41) == 42
        assert call(link, "ask", "note", 1) == 2
    assert threads[0] != threads[1] == threading.get_ident()


def test_eight_threads_count_to_240_on_one_child() -> None:
    with plain_link() as link:

        def count(_: int) -> list[int]:
            return [cast("int", call(link, "add")) for _ in range(30)]

        with ThreadPoolExecutor(8) as threads:
            found = [number for each in threads.map(count, range(8)) for number in each]
        assert sorted(found) == list(range(1, 241))


def test_more_calls_than_lanes_wait_for_one_another() -> None:
    barrier = threading.Barrier(MOST_LANES, timeout=SECONDS)
    count = MOST_LANES + 20

    def meet(number: int) -> int:
        if number < MOST_LANES:
            barrier.wait()
        return number

    with plain_link({"meet": meet}) as link, ThreadPoolExecutor(count) as threads:
        # The first ones hold every lane until the last of them is there.
        found = threads.map(lambda number: call(link, "ask", "meet", number), range(count))
        assert list(found) == list(range(count))


def test_a_share_key_is_one_child_until_its_last_user_closes() -> None:
    first, second = (open_plain(share_key="lifecycle-shared") for _ in range(2))
    assert first is second
    pid = first.link().pid
    sessions().close(first)
    assert call(second.link(), "add") == 1
    assert second.link().pid == pid
    with watched(pid) as is_gone:
        sessions().close(second)
        assert is_gone()
    third = open_plain(share_key="lifecycle-shared")
    assert third is not first
    assert call(third.link(), "add") == 1
    sessions().close(third)


def test_a_session_that_is_closed_too_often_stays_closed() -> None:
    session = open_plain(share_key="lifecycle-twice")
    other = open_plain(share_key="lifecycle-twice")
    sessions().close(session)
    sessions().close(session)
    sessions().close(session)
    with pytest.raises(ChildLost):
        other.link()
    assert sessions().find("lifecycle-twice") is None


@pytest.mark.parametrize(
    ("change", "setting"),
    [
        ({"deadline": 5.0}, "deadline"),
        ({"settings": ["other"]}, "settings"),
        ({"preload": ("json",)}, "preload"),
        ({"keepalive": 9.0}, "keepalive"),
    ],
)
def test_a_share_key_with_other_settings_is_a_conflict(
    change: dict[str, object], setting: str
) -> None:
    session = open_plain(share_key="lifecycle-conflict")
    try:
        with pytest.raises(SessionConflict) as caught:
            open_plain(share_key="lifecycle-conflict", **change)  # type: ignore[arg-type]
        assert caught.value.setting == setting
        assert "close_session" in str(caught.value)
    finally:
        sessions().close(session)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_seconds_that_are_none_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="keepalive"):
        open_plain(share_key="lifecycle-bad", keepalive=value)
    with pytest.raises(ValueError, match="deadline"):
        open_plain(deadline=value)
    with pytest.raises(TypeError, match="keepalive"):
        open_plain(share_key="lifecycle-bad", keepalive=True)
    with pytest.raises(ValueError, match="share_key"):
        open_plain(keepalive=1)


def test_keepalive_keeps_the_child_for_the_next_user_and_not_for_ever() -> None:
    first = open_plain(share_key="lifecycle-kept", keepalive=30)
    pid = first.link().pid
    sessions().close(first)
    again = open_plain(share_key="lifecycle-kept", keepalive=30)
    assert again.link().pid == pid
    assert sessions().close_key("lifecycle-kept")
    assert not sessions().close_key("lifecycle-kept")
    short = open_plain(share_key="lifecycle-short", keepalive=0.05)
    with watched(short.link().pid) as is_gone:
        sessions().close(short)
        assert is_gone()
    assert sessions().find("lifecycle-short") is None


def test_a_turn_of_keepalive_that_was_overtaken_ends_nothing() -> None:
    held = open_plain(share_key="lifecycle-turn", keepalive=0.05)
    pid = held.link().pid
    sessions().close(held)
    again = open_plain(share_key="lifecycle-turn", keepalive=0.05)
    came = threading.Event()
    # Timers of the service run in order: this one is behind that of the close.
    sessions().service.after(0.2, came.set)
    assert came.wait(SECONDS)
    assert again.link().pid == pid
    sessions().close(again)


def test_tenants_share_neither_a_child_nor_a_zygote_nor_a_key() -> None:
    first = open_plain(share_key="lifecycle-tenants", tenant="a")
    second = open_plain(share_key="lifecycle-tenants", tenant="b")
    assert first is not second
    assert [call(each.link(), "add") for each in (first, first, second)] == [1, 2, 1]
    zygotes = [set(sessions().pool.pids(spec_of(each))) for each in (first, second)]
    assert all(zygotes)
    assert not zygotes[0] & zygotes[1]
    for each, own in zip((first, second), zygotes, strict=True):
        assert psutil.Process(each.link().pid).ppid() in own
    assert sessions().close_key("lifecycle-tenants", tenant="a")
    assert call(second.link(), "add") == 2
    sessions().close(second)


def test_no_child_serves_two_sessions() -> None:
    pids = set()
    for _ in range(6):
        with plain_link() as link:
            assert call(link, "add") == 1
            pids.add(link.pid)
    assert len(pids) == 6


def test_a_lost_child_is_replaced_and_the_key_is_usable_again() -> None:
    session = open_plain(share_key="lifecycle-replaced")
    old = session.link()
    with watched(old.pid) as is_gone:
        os.kill(old.pid, signal.SIGKILL)
        assert is_gone()
    with pytest.raises(ChildLost):
        call(old, "add")
    assert call(session.link(), "add") == 1
    with pytest.raises(ChildLost):
        call(old, "add")
    assert session.link().pid != old.pid
    sessions().close(session)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_close_does_not_wait_for_a_running_call(isolation: str) -> None:
    session = open_plain(isolation=need(isolation), table={"begun": lambda: begun.set()})
    begun = threading.Event()
    link = session.link()

    def run() -> None:
        call(link, "ask", "begun")
        call(link, "sleep", 1000)

    with watched(link.pid) as is_gone, ThreadPoolExecutor() as threads:
        running = threads.submit(run)
        assert begun.wait(SECONDS)
        sessions().close(session)
        with pytest.raises(ChildLost, match="closed"):
            running.result(SECONDS)
        assert is_gone()


def test_a_child_that_ends_before_a_session_has_it_is_replaced() -> None:
    session = open_plain()
    take, taken = session._take, []

    def take_dying() -> Child:
        child = take()
        taken.append(child.pid)
        if len(taken) == 1:
            with watched(child.pid) as is_gone:
                os.kill(child.pid, signal.SIGKILL)
                assert is_gone()
        return child

    session._take = take_dying
    link = session.link()
    assert call(link, "add") == 1
    assert link.pid == taken[1]
    sessions().close(session)


def test_a_session_that_is_closed_while_its_child_starts_keeps_none() -> None:
    session = open_plain()
    fit, pids = session._fit, []

    def fit_closing(link: ParentLink, own: Session) -> Fittings:
        pids.append(link.pid)
        sessions().close(own)
        return fit(link, own)

    session._fit = fit_closing
    with contextlib.ExitStack() as watching:
        link = session.link()
        is_gone = watching.enter_context(watched(*pids))
        with pytest.raises(ChildLost, match="closed"):
            call(link, "add")
        assert is_gone()
    assert len(pids) == 1


def test_what_a_child_started_ends_with_it() -> None:
    with plain_link() as link:
        program = cast("int", call(link, "start_program"))
        with watched(program) as is_gone:
            os.kill(link.pid, signal.SIGKILL)
            assert is_gone()


def test_nonsense_on_control_ends_the_child_and_nobody_else() -> None:
    with plain_link() as other, plain_link() as link, watched(link.pid) as is_gone:
        # It may be gone before its answer is read.
        with contextlib.suppress(ChildLost):
            call(link, "speak_nonsense")
        assert is_gone()
        with pytest.raises(ChildLost, match="protocol"):
            call(link, "echo", 1)
        assert call(other, "echo", 1) == 1


def test_a_call_may_have_options() -> None:
    with plain_link() as link:
        options = CallOptions(policy="reference", returns="value", deadline=SECONDS)
        assert call(link, "echo", 5, options=options) == 5


def test_a_fork_of_the_caller_leaves_its_children_alone() -> None:
    with plain_link() as link:
        told, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            answer = b"asked"
            try:
                call(link, "echo", 1)
            except ChildLost:
                answer = b"refused"
            finally:
                os.write(tell, answer)
                os._exit(0)
        os.close(tell)
        with os.fdopen(told, "rb") as file:
            assert file.read() == b"refused"
        os.waitpid(pid, 0)
        assert call(link, "echo", 2) == 2
