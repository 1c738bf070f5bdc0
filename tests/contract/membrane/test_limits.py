"""What a process, a zygote and a child have at most, and what is told beyond it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from membrane import lending, pool, spawning
from membrane.errors import ChildLost
from membrane.service import service
from membrane.sessions import Sessions
from membrane.spawning import Uids
from tests.contract.membrane.plain_fittings import call
from tests.contract.membrane.plain_sessions import open_plain, spec_of, watched
from tests.eventually import SECONDS


@pytest.fixture
def own() -> Iterator[Sessions]:
    """Sessions of this test's own, and so a pool."""
    made = Sessions(service=service())
    try:
        yield made
    finally:
        made.on_exit()


def test_a_process_has_so_many_children_and_no_more(
    own: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "MOST_CHILDREN", 2)
    monkeypatch.setattr(pool, "READY", 0)
    first, second, third = (open_plain(among=own) for _ in range(3))
    pid = first.link().pid
    assert call(second.link(), "add") == 1
    with pytest.raises(ChildLost, match="2 children are in use; close sessions"):
        third.link()
    with watched(pid) as is_gone:
        own.close(first)
        assert is_gone()
    over = threading.Event()
    # Behind what the service does about the end of a child.
    own.service.after(0.0, lambda: own.service.soon(over.set))
    assert over.wait(SECONDS)
    assert call(third.link(), "add") == 1


def test_a_zygote_forks_so_often_and_the_next_one_goes_on(
    own: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawning, "MOST_FORKS", 2)
    monkeypatch.setattr(pool, "READY", 0)
    sessions = [open_plain(among=own) for _ in range(3)]
    spec = spec_of(sessions[0])
    for each in sessions[:2]:
        each.link()
    (old,) = own.pool.pids(spec)
    assert call(sessions[2].link(), "add") == 1
    assert own.pool.pids(spec)[0] == old
    assert len(own.pool.pids(spec)) == 2
    with watched(old) as is_gone:
        for each in sessions[:2]:
            assert call(each.link(), "add") == 1
            own.close(each)
        assert is_gone(), "nobody needs it any more"
    assert call(sessions[2].link(), "add") == 2


def test_nobody_waits_where_nobody_comes(own: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.0)
    session = open_plain(among=own)
    spec = spec_of(session)
    assert call(session.link(), "add") == 1
    zygotes = own.pool.pids(spec)
    with watched(*zygotes) as is_gone:
        own.close(session)
        assert is_gone()
    again = open_plain(among=own)
    assert call(again.link(), "add") == 1


def test_each_user_is_given_once_until_it_comes_back() -> None:
    uids = Uids(first=100, count=3)
    taken = {uids.take() for _ in range(3)}
    assert taken == {100, 101, 102}
    with pytest.raises(ChildLost, match="every host uid"):
        uids.take()
    uids.give_back(101)
    assert uids.take() == 101


@pytest.mark.parametrize("isolation", ["process"], indirect=True)
def test_so_many_threads_of_a_child_ask_at_one_time(
    shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "MOST_LENT", 1)
    entered, leave = threading.Event(), threading.Event()

    def first() -> str:
        entered.set()
        assert leave.wait(SECONDS)
        return "answered"

    code = (
        "import threading\n"
        "told = []\n"
        "def ask(callback):\n"
        "    try:\n"
        "        told.append(callback())\n"
        "    except Exception as error:\n"
        "        told.append(f'{type(error).__name__}: {error}')\n"
        "one = threading.Thread(target=ask, args=(first,))\n"
        "one.start()\n"
        "entered(50)\n"
        "two = threading.Thread(target=ask, args=(first,))\n"
        "two.start()\n"
        "two.join()\n"
        "leave()\n"
        "one.join()\n"
        "result = told\n"
    )
    told = shop.run(code, first=first, entered=entered.wait, leave=leave.set)
    assert told == [
        "ChildLost: too many threads of this child ask its caller at one time",
        "answered",
    ]
