"""Proxies answer as the real classes, objects and errors do."""

from __future__ import annotations

import inspect
import os
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pydantic
import pytest

import membrane
from membrane.errors import ModuleUnreachable
from membrane.sessions import search_path
from membrane.walling import wall_terms
from tests.contract.membrane.conftest import Isolate
from tests.eventually import SECONDS


def test_a_class_is_closed_twice_and_what_shares_its_child_lives_on(isolate: Isolate) -> None:
    shop = isolate("Shop", share_key="twice")
    item = isolate("Item", share_key="twice")
    living = item("kept")
    shop.close()
    shop.close()
    membrane.close(shop)
    assert living.label() == "item kept"
    let_go = item("gone")
    let_go.close()
    let_go.close()
    membrane.close(let_go)
    with pytest.raises(membrane.ChildLost):
        let_go.label()
    assert living.label() == "item kept"
    item.close()
    item.close()


def test_a_class_that_was_isolated_twice_is_closed_twice(isolate: Isolate) -> None:
    first, second = isolate("Shop", share_key="both"), isolate("Shop", share_key="both")
    living = first()
    first.close()
    assert living.ping() == 1
    second.close()
    with pytest.raises(membrane.ChildLost):
        living.ping()


GROUP = """
def fail(kind, text):
    raise kind(text)
def collected(*calls):
    errors = []
    for call in calls:
        try:
            call()
        except Exception as error:
            errors.append(error)
    return errors
inner = ExceptionGroup('inner', collected(lambda: fail(KeyError, 'deep')))
raise ExceptionGroup('outer', [*collected(lambda: fail(ValueError, 'bad')), inner, *passed])
"""


def test_a_group_of_errors_keeps_its_members(isolate: Isolate) -> None:
    own = LookupError("the caller's")
    with pytest.raises(ExceptionGroup) as raised:
        isolate("Shop")().run(GROUP, passed=[own])
    assert isinstance(raised.value, membrane.RemoteError)
    assert raised.value.message == "outer"
    bad, inner, mine = raised.value.exceptions
    assert isinstance(bad, ValueError)
    assert bad.args == ("bad",)
    assert isinstance(inner, ExceptionGroup)
    assert isinstance(inner.exceptions[0], KeyError)
    assert mine is own
    matched, rest = raised.value.split(KeyError)
    assert matched is not None
    assert rest is not None
    assert "deep" in "".join(traceback.format_exception(raised.value))


def test_an_error_keeps_what_it_came_from(isolate: Isolate) -> None:
    shop = isolate("Shop")()
    with pytest.raises(ValueError, match="on top") as raised:
        shop.fail("cause")
    assert isinstance(raised.value.__cause__, KeyError)
    assert raised.value.__cause__.args == ("deep",)
    assert raised.value.__suppress_context__
    with pytest.raises(ValueError, match="second") as raised:
        shop.run("try:\n    [].pop()\nexcept IndexError:\n    raise ValueError('second')")
    assert isinstance(raised.value.__context__, IndexError)
    assert not raised.value.__suppress_context__
    with pytest.raises(ValueError, match="alone") as raised:
        shop.run("try:\n    [].pop()\nexcept IndexError:\n    raise ValueError('alone') from None")
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_errors_in_circles_and_long_chains_come_to_an_end(isolate: Isolate) -> None:
    shop = isolate("Shop")()
    circle = "a, b = KeyError('a'), ValueError('b')\na.__cause__, b.__cause__ = b, a\nraise a"
    with pytest.raises(KeyError) as raised:
        shop.run(circle)
    assert isinstance(raised.value.__cause__, ValueError)
    assert raised.value.__cause__.__cause__ is None
    chain = (
        "error = ValueError(0)\n"
        "for n in range(500):\n"
        "    top = ValueError(n)\n    top.__cause__ = error\n    error = top\n"
        "raise error"
    )
    with pytest.raises(ValueError, match="499") as top:
        shop.run(chain)
    length, error = 0, top.value.__cause__
    while error is not None:
        length, error = length + 1, error.__cause__
    assert 8 <= length <= 64


def test_what_a_callback_raises_says_nothing_of_what_it_came_from(isolate: Isolate) -> None:
    def refuse() -> None:
        try:
            raise KeyError("secret")
        except KeyError as error:
            raise ValueError("told") from error

    code = (
        "try:\n    passed()\n"
        "except ValueError as error:\n"
        "    result = [error.__cause__ is None, 'secret' in repr(vars(error))]"
    )
    assert isolate("Shop")().run(code, passed=refuse) == [True, False]


def test_signatures_and_docstrings_are_those_of_the_class(isolate: Isolate) -> None:
    kind = isolate("Shop")
    shop = kind()
    assert str(inspect.signature(shop.add)) == "(number: int, *, times: int = 1) -> int"
    assert str(inspect.signature(kind)).startswith("(name: str = 'corner', *, stock: int = 0)")
    assert str(inspect.signature(kind.double)) == "(number: int) -> int"
    assert list(inspect.signature(kind.add).parameters) == ["self", "number", "times"]
    assert list(inspect.signature(shop.see("lambda a, b=[1]: 0")).parameters) == ["a", "b"]
    assert inspect.signature(shop.add).bind(1, times=2).arguments == {"number": 1, "times": 2}
    assert inspect.getdoc(shop.count_to) == "Count, as a generator."
    assert inspect.getdoc(kind.double) == "Double a number."
    assert inspect.getdoc(kind) == "A shop behind the wall."
    assert shop.ping.__doc__ is None


def test_a_hostile_signature_is_bounded(isolate: Isolate) -> None:
    shop = isolate("Shop")()
    code = (
        "class Loud:\n    def __repr__(self): return 'x' * 10**6\n"
        "def function(a=Loud(), *, b: Loud() = 'y' * 10**6): pass\n"
        "function.__doc__ = 'z' * 10**6\n"
        "result = function"
    )
    function = shop.run(code)
    assert len(str(inspect.signature(function))) < 5000
    assert len(function.__doc__) <= 64 * 1024


@dataclass
class Point:
    """A dataclass of the caller."""

    x: int
    rest: Any = None

    def __post_init__(self) -> None:
        made.append(self)


@dataclass(frozen=True, slots=True)
class Fixed:
    """One that is a key."""

    name: str


class Pair(NamedTuple):
    """A named tuple of the caller."""

    left: Any
    right: Any = None


made: list[object] = []
BY_VALUE = [(Point, "value"), (Fixed, "value"), (Pair, "value")]


def test_dataclasses_and_named_tuples_go_by_value(isolate: Isolate) -> None:
    shop = isolate("Shop", type_rules=BY_VALUE)()
    point = Point(1, [Pair(Fixed("a"), {Fixed("b"): 2})])
    made.clear()
    code = (
        "pair = passed.rest[0]\n"
        "number = pair[1][type(pair.left)('b')]\n"
        "seen = [passed.x, pair.left.name, number, len(pair), type(passed).__name__]\n"
        "passed.x = 5\n"
        "result = [seen, passed, type(passed)(7, None), pair._replace(right=3), *passed.rest]"
    )
    seen, back, fresh, changed, same = shop.run(code, passed=point)
    assert seen == [1, "a", 2, 2, "Point"]
    assert point.x == 1
    assert back == Point(5, point.rest)
    assert (fresh.x, fresh.rest) == (7, None)
    assert changed == Pair(Fixed("a"), 3)
    assert (type(back), type(same), type(same.left)) == (Point, Pair, Fixed)
    # Nothing of the class runs for what the child makes; the one here is made above.
    assert len(made) == 1
    assert shop.apply(lambda got: got, point) == point
    shared = [1]
    first, second = shop.echo([Point(1, shared), Point(2, shared), shared])[:2]
    assert first.rest == second.rest == shared


def test_without_a_rule_and_in_circles_records_do_not_go_by_value(isolate: Isolate) -> None:
    shop = isolate("Shop")()
    point = Point(1)
    assert shop.echo(point) is point
    copied = shop.echo.with_options(policy="value")(point)
    assert copied == point
    assert copied is not point
    ruled = isolate("Shop", type_rules=BY_VALUE)()
    assert ruled.echo.with_options(policy="reference", returns="reference")(point) is point
    point.rest = [point]
    with pytest.raises(membrane.UnsupportedUse, match="by reference"):
        ruled.echo(point)
    assert ruled.ping() == 1


FORGE = """
from membrane import records
def bond_of(proxy): return object.__getattribute__(proxy, '_membrane_bond')
marshal = bond_of(callback).marshal
kind = records.RecordClass(type(passed))
class Odd:
    pass
plain = marshal.export
def forge(payload):
    codec = bond_of(callback).codec
    codec._export = lambda value: payload if type(value) is Odd else plain(value)
    try:
        return callback(Odd())
    finally:
        codec._export = plain
home = plain(kind)
told = []
for payload in (home, [6, 10**6], [5, home[1], None], [6, True]):
    try:
        told.append(str(forge(payload)))
    except BaseException as error:
        told.append(type(error).__name__)
        break
result = told
"""


def test_a_class_of_records_is_not_given_away(isolate: Isolate) -> None:
    kind = isolate("Shop", type_rules=BY_VALUE)
    got: list[object] = []

    def callback(value: object) -> str:
        got.append(value)
        return type(value).__name__

    with pytest.raises((membrane.ProtocolError, membrane.ChildLost)):
        kind().run(FORGE, passed=Point(1), callback=callback)
    assert not any(isinstance(each, type) for each in got)


def test_slots_are_those_of_the_class(isolate: Isolate) -> None:
    plain = isolate("Shop", share_key="slots")
    shop = plain()
    assert not hasattr(plain, "__slots__")
    assert not hasattr(shop, "__slots__")
    slotted = shop.run("class Slotted:\n    __slots__ = ('a', 'b')\nresult = Slotted")
    below = shop.run("class Below(type(shop)):\n    pass\nresult = Below()")
    assert slotted.__slots__ == ("a", "b")
    assert not hasattr(type(below), "__slots__")


def test_a_pydantic_model_refers_to_a_class_in_the_child(isolate: Isolate) -> None:
    shelf = isolate("Shelf", share_key="models")
    item = isolate("Item", share_key="models")
    model = pydantic.create_model("Model", shelf=(shelf, ...), shelves=(list[shelf], ...))  # type: ignore[valid-type]
    made = shelf("a", "b")
    held: Any = model(shelf=made, shelves=[made])
    assert held.shelf is made
    assert held.shelves[0] is made
    for wrong in (item("x"), "text", None):
        with pytest.raises(pydantic.ValidationError, match="instance of Shelf"):
            model(shelf=wrong, shelves=[])


def test_a_deadline_in_c_leaves_what_shares_the_child_alone(isolate: Isolate) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> str:
        begun.set()
        return str(go_on.wait(SECONDS))

    shop = isolate("Shop", share_key="sleepers")()
    item = isolate("Item", share_key="sleepers")("kept")
    link = item._membrane_bond.link
    # Nothing ends the child but what is done here.
    link.child.free_seconds = SECONDS
    with ThreadPoolExecutor(1) as threads:
        # It has the main thread of the child, where a sleep is interrupted.
        occupying = threads.submit(shop.apply, wait)
        assert begun.wait(SECONDS)
        while not link._stuck:
            # A busy machine may not begin it in time.
            with pytest.raises(membrane.DeadlineExceeded):
                shop.run.with_options(deadline=0.2)("import time\ntime.sleep(1000)")
            for number in list(link._cancelled):
                link._check_cancelled(number, link._freed)
                while number in link._cancelled and number not in link._stuck:
                    assert link.alive
                link._check_runs(number)
        assert item.label() == "item kept"
        go_on.set()
        assert occupying.result(SECONDS) == "True"
    assert item._membrane_bond.link.alive


@pytest.mark.skipif(os.getuid() != 0, reason="only a caller that is root gives its child a user")
@pytest.mark.parametrize("closed", ["tree", "tree/pack", "tree/pack/part.py"])
def test_a_module_where_the_child_may_not_look_is_reported(closed: str, tmp_path: Path) -> None:
    if not wall_terms(None, search_path(None)).uids:
        pytest.skip("children have no users of their own here")
    pack = tmp_path / "tree" / "pack"
    pack.mkdir(parents=True)
    (pack / "__init__.py").write_text("")
    (pack / "part.py").write_text("class Made: pass\n")
    for place in (tmp_path, tmp_path / "tree", pack):
        place.chmod(0o755)
    kind = membrane.isolate("pack.part:Made", isolation="walled", paths=[str(tmp_path / "tree")])
    kind.close()
    target = tmp_path / closed
    target.chmod(0o700 if target.is_dir() else 0o600)
    with pytest.raises(ModuleUnreachable, match="paths=") as raised:
        membrane.isolate("pack.part:Made", isolation="walled", paths=[str(tmp_path / "tree")])
    assert isinstance(raised.value, ImportError)
    assert f"chmod o+r{'x' if target.is_dir() else ''} {target}" in str(raised.value)
    assert "pack" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        membrane.isolate("no_such_package:Made", isolation="walled")
