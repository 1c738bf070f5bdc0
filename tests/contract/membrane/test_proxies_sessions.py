"""Sessions as `isolate` shows them: shared and own children, prewarming, closing, deadlines."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import membrane
from membrane import ChildLost, DeadlineExceeded
from tests.contract.membrane.conftest import ROOT, SHOP, Isolate


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex


def pid(proxy: Any) -> int:
    """Give the child's process id as this process sees it: walled children see another."""
    found: int = type(proxy).__membrane__.pid
    return found


def test_classes_have_children_of_their_own_unless_they_share_a_key(
    isolate: Isolate, key: str
) -> None:
    one, two = isolate("Shop")(), isolate("Shop")()
    assert pid(one) != pid(two)
    shared, also = isolate("Shop", share_key=key)(), isolate("Shop", share_key=key)()
    assert pid(shared) == pid(also)
    rack = isolate("tests.contract.membrane.targets.shelves:Rack", share_key=key)
    assert rack.__membrane__.share_key == key
    assert rack().wood() == "oak"
    other = isolate("Shop", share_key=key, tenant="other")()
    assert pid(other) != pid(shared)


def test_the_last_close_ends_a_shared_session(isolate: Isolate, key: str) -> None:
    one, two = isolate("Shop", share_key=key), isolate("Shop", share_key=key)
    made = two()
    one.close()
    assert made.ping() == 1
    two.close()
    with pytest.raises(ChildLost):
        made.ping()
    assert membrane.close_session(key) is False


def test_keepalive_keeps_the_child_for_the_next(isolate: Isolate, key: str, local: None) -> None:
    first = isolate("Shop", share_key=key, keepalive=60.0)
    before = pid(first())
    first.close()
    assert pid(isolate("Shop", share_key=key, keepalive=60.0)()) == before
    assert membrane.close_session(key) is True
    assert membrane.close_session(key) is False


def test_a_session_is_prewarmed_once(isolation: str, key: str) -> None:
    settings: dict[str, Any] = {"isolation": isolation, "paths": [str(ROOT)]}
    assert membrane.prewarm(key, **settings) is True
    assert membrane.prewarm(key, **settings) is False
    kind = membrane.isolate(f"{SHOP}:Shop", share_key=key, **settings)
    assert kind().ping() == 1
    assert membrane.close_session(key) is True
    with pytest.raises(TypeError, match="share_key"):
        membrane.prewarm(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="share_key"):
        membrane.prewarm("")


def test_state_of_one_tenant_is_not_that_of_another(isolate: Isolate, key: str) -> None:
    one = isolate("Shop", share_key=key, tenant="one")
    two = isolate("Shop", share_key=key, tenant="two")
    one.limit = 99
    assert two.limit == 10


def test_a_deadline_of_the_session_is_that_of_each_call(isolate: Isolate) -> None:
    # Long enough for a busy machine to make an object in.
    kind = isolate("Shop", deadline=4.5)
    with pytest.raises(DeadlineExceeded, match=r"4\.5 s"):
        kind().see("__import__('time').sleep(100)")
    assert kind().ping() == 1


def test_a_callback_may_take_its_time_beside_other_calls(shop: Any) -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow() -> str:
        entered.set()
        leave.wait(30)
        return "slow"

    with ThreadPoolExecutor() as threads:
        applying = threads.submit(shop.apply, slow)
        assert entered.wait(30)
        assert shop.ping() == 1
        leave.set()
        assert applying.result() == "slow"


def test_closing_does_not_wait_for_a_running_call(isolate: Isolate) -> None:
    kind = isolate("Shop")
    made = kind()
    entered = threading.Event()
    code = "entered(); __import__('time').sleep(1000)"
    with ThreadPoolExecutor() as threads:
        running = threads.submit(made.run, code, entered=entered.set)
        assert entered.wait(30)
        kind.close()
        with pytest.raises(ChildLost):
            running.result(60)


@pytest.mark.parametrize("isolated", [True, False])
def test_a_sub_interpreter_uses_a_membrane(isolation: str, isolated: bool) -> None:
    folders = [str(ROOT), *(str(Path(place)) for place in sys.path if place)]
    inner = (
        f"import sys; sys.path[:] = {folders!r}\n"
        "import membrane\n"
        f"target, isolation, root = {SHOP + ':Shop'!r}, {isolation!r}, {str(ROOT)!r}\n"
        "Shop = membrane.isolate(target, isolation=isolation, paths=[root])\n"
        "shop = Shop('inner')\n"
        "assert shop.add(2) == 2\n"
        "assert shop.apply(lambda number: number + 1, 3) == 4\n"
        "Shop.close()\n"
        "print('used', shop.__class__.__name__)\n"
    )
    outer = (
        "import _xxsubinterpreters as interpreters\n"
        f"inner = {inner!r}\n"
        f"made = interpreters.create(isolated={isolated})\n"
        "interpreters.run_string(made, inner)\n"
        "interpreters.destroy(made)\n"
        "exec(inner)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", outer], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout.split("\n")[:2] == ["used Shop", "used Shop"], done.stderr
    assert done.returncode == 0, done.stderr


def test_a_child_that_answers_without_a_result_is_a_protocol_error(shop: Any) -> None:
    code = (
        "bond = object.__getattribute__(cb, '_membrane_bond')\n"
        "bond.serve = lambda *request: (None, ())"
    )
    shop.run(code, cb=print)
    with pytest.raises(membrane.ProtocolError, match="without a result"):
        shop.ping()
