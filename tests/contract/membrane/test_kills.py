"""kill -9 of every side in every window: what is left is a typed error, and no process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from membrane.calls import CallOptions
from membrane.errors import ChildLost
from membrane.frames import CALL
from membrane.parent_link import ParentLink
from membrane.pool import READY
from membrane.sessions import sessions
from tests.contract.membrane.plain_fittings import call
from tests.contract.membrane.plain_sessions import (
    ISOLATIONS,
    need,
    open_plain,
    plain_link,
    spec_of,
    watched,
)
from tests.eventually import SECONDS

ROOT = Path(__file__).parents[3]
LONG = CallOptions(deadline=SECONDS)

PARENT = """
import json, os, sys, threading
import psutil
from membrane.sessions import sessions
from tests.contract.membrane.plain_fittings import call
from tests.contract.membrane.plain_sessions import open_plain

isolation, window = sys.argv[1:]
told = threading.Event()

def tell():
    pids = [each.pid for each in psutil.Process().children(recursive=True)]
    sys.stdout.write(json.dumps(pids) + "\\n")
    sys.stdout.flush()
    told.wait()

if window == "preloading":
    session = open_plain(isolation=isolation, preload=("tests.contract.membrane.targets.endless",))
    threading.Thread(target=session.link).start()
    while not psutil.Process().children():
        pass
    tell()
session = open_plain(table={"tell": tell}, isolation=isolation)
link = session.link()
call(link, "start_program")
if window == "call":
    threading.Thread(target=call, args=(link, "hold")).start()
    tell()
elif window == "callback":
    call(link, "ask", "tell")
elif window == "idle":
    tell()
elif window == "exit":
    pids = [each.pid for each in psutil.Process().children(recursive=True)]
    print(json.dumps(pids), flush=True)
"""


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("window", ["idle", "call", "callback", "preloading", "exit"])
def test_nothing_is_left_of_a_parent_that_ends(isolation: str, window: str) -> None:
    need(isolation)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, isolation, window],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )
    try:
        assert parent.stdout is not None
        pids = json.loads(parent.stdout.readline())
        assert pids
        with watched(*pids) as is_gone:
            if window != "exit":
                parent.kill()
            parent.wait(SECONDS)
            assert is_gone()
    finally:
        parent.kill()
        parent.wait()
        assert parent.stdout is not None
        parent.stdout.close()


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_child_that_is_killed_during_a_call(isolation: str) -> None:
    session = open_plain(isolation=need(isolation), table={"kill": lambda: os.kill(pid, 9)})
    link = session.link()
    pid = link.pid

    def use() -> None:
        call(link, "ask", "kill")
        # The walls fall with their first process, and that may be a moment after it is killed.
        call(link, "sleep", 1000)

    with pytest.raises(ChildLost):
        use()
    assert call(session.link(), "add") == 1
    sessions().close(session)


def test_a_child_that_is_killed_during_a_callback_of_eight_threads() -> None:
    barrier = threading.Barrier(8)
    outcomes: list[str] = []

    def meet() -> None:
        if barrier.wait(SECONDS) == 0:
            os.kill(link.pid, signal.SIGKILL)

    session = open_plain(table={"meet": meet})
    link = session.link()

    def work() -> None:
        try:
            call(link, "ask", "meet")
            call(link, "sleep", 1000)
        except ChildLost:
            outcomes.append("lost")
        outcomes.append(str(call(session.link(), "echo", "again")))

    with ThreadPoolExecutor(8) as threads:
        for each in [threads.submit(work) for _ in range(8)]:
            each.result(SECONDS)
    assert sorted(outcomes) == ["again"] * 8 + ["lost"] * 8
    sessions().close(session)


def test_a_child_that_is_killed_while_lanes_are_being_made() -> None:
    session = open_plain()
    for spin in range(6):
        link = session.link()
        go = threading.Barrier(9)

        def work(link: ParentLink = link, go: threading.Barrier = go) -> None:
            go.wait(SECONDS)
            with contextlib.suppress(ChildLost):
                for _ in range(20):
                    call(link, "sleep", 0.001, options=LONG)

        with ThreadPoolExecutor(8) as threads:
            working = [threads.submit(work) for _ in range(8)]
            pid = link.pid
            go.wait(SECONDS)
            time.sleep(spin * 0.0005)
            os.kill(pid, signal.SIGKILL)
            for each in working:
                each.result(SECONDS)
    assert call(session.link(), "add") == 1
    sessions().close(session)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_children_that_are_killed_in_the_pool_are_not_handed_out(isolation: str) -> None:
    session = open_plain(isolation=need(isolation), tenant="killed in the pool")
    assert call(session.link(), "add") == 1
    waiting = sessions().pool._kinds[spec_of(session)].ready
    ends_at = time.monotonic() + SECONDS
    while len(waiting) < READY:
        assert time.monotonic() < ends_at
        time.sleep(0.01)
    pids = [each.pid for each in waiting]
    # The first process of a namespace is gone when all others of it are.
    with watched(*pids) as are_gone:
        for each in pids:
            os.kill(each, signal.SIGKILL)
        assert are_gone()
    for _ in range(4):
        other = open_plain(isolation=isolation, tenant="killed in the pool")
        assert call(other.link(), "add") == 1
        sessions().close(other)
    assert call(session.link(), "add") == 2
    sessions().close(session)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_zygote_that_is_killed_takes_its_children_and_is_replaced(isolation: str) -> None:
    session = open_plain(isolation=need(isolation), tenant="killed zygote")
    link = session.link()
    (zygote,) = sessions().pool.pids(spec_of(session))
    with watched(link.pid, zygote) as are_gone:
        os.kill(zygote, signal.SIGKILL)
        assert are_gone()
    assert call(session.link(), "add") == 1
    with pytest.raises(ChildLost):
        call(link, "add")
    sessions().close(session)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_zygote_that_is_killed_under_a_fork_leaves_nothing(isolation: str) -> None:
    need(isolation)
    tenant = f"killed under a fork {isolation}"
    for spin in range(8):
        session = open_plain(isolation=isolation, tenant=tenant)
        assert call(session.link(), "add") == 1
        zygote = sessions().pool.pids(spec_of(session))[-1]
        others = [open_plain(isolation=isolation, tenant=tenant) for _ in range(3)]
        threads = ThreadPoolExecutor(3)
        linking = [threads.submit(each.link) for each in others]
        ends = time.monotonic() + spin * 0.0002
        while time.monotonic() < ends:
            """Spun: the windows are shorter than a sleep."""
        below = [each.pid for each in psutil.Process(zygote).children(recursive=True)]
        with watched(*below, zygote) as are_gone:
            os.kill(zygote, signal.SIGKILL)
            assert are_gone()
        threads.shutdown()
        for linked in linking:
            assert isinstance(linked.exception(), (ChildLost, type(None)))
        assert call(session.link(), "echo", 1) == 1
        for each in (session, *others):
            # One that was born meanwhile may be found dead by its first call, once.
            with contextlib.suppress(ChildLost):
                call(each.link(), "echo", 1)
            assert call(each.link(), "echo", 1) == 1
            sessions().close(each)


def test_a_zygote_that_is_killed_at_a_birth_leaves_no_child() -> None:
    for spin in range(12):
        tenant = f"killed at a birth {spin}"
        session = open_plain(tenant=tenant)
        link = session.link()
        (zygote,) = sessions().pool.pids(spec_of(session))
        other = open_plain(tenant=tenant)
        child = sessions().pool._fork(spec_of(other), sessions().pool._kinds[spec_of(other)])
        pid = child.pid
        ends = time.monotonic() + spin * 0.0001
        while time.monotonic() < ends:
            """Spun: it may not have asked yet to die with its parent."""
        with watched(pid, link.pid) as are_gone:
            os.kill(zygote, signal.SIGKILL)
            assert are_gone()
        child.close()
        sessions().close(session)
        sessions().close(other)


def test_nothing_stays_open_of_children_that_are_gone() -> None:
    session = open_plain(tenant="descriptors")
    session.link()
    process = psutil.Process()

    def turn() -> None:
        with plain_link() as link:
            call(link, "echo", 1)
            gone = link.pid
        with watched(gone) as is_gone:
            assert is_gone()

    for _ in range(5):
        turn()
    before = process.num_fds()
    for _ in range(30):
        turn()
    # Those of the few that wait in the pool, and of one that is just being buried.
    ends = time.monotonic() + SECONDS
    while process.num_fds() > before + 12 and time.monotonic() < ends:
        """Until those are buried that are gone."""
    assert process.num_fds() <= before + 12
    sessions().close(session)


def test_a_call_to_a_killed_child_fails_at_once_and_not_by_its_deadline() -> None:
    with plain_link() as link:
        with watched(link.pid) as is_gone:
            os.kill(link.pid, signal.SIGKILL)
            assert is_gone()
        with pytest.raises(ChildLost):
            link.request(CALL, 0, "echo", None, [1], options=LONG)
        assert not link.alive
