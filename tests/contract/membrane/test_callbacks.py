"""The caller's objects in the child: callbacks, classes, errors that pass through."""

from __future__ import annotations

import enum
import functools
import gc
import os
import threading
import weakref
from dataclasses import dataclass
from typing import Any, cast

import pytest

import membrane
from membrane import AccessRefused, RemoteError
from membrane.forwarding import bond_of
from tests.contract.membrane.conftest import Isolate

CALLS: list[object] = []


def module_level(number: int) -> int:
    """Note that it ran, and where."""
    CALLS.append((number, os.getpid()))
    return number + 1


class OwnError(ValueError):
    """An exception of the caller."""


class Parent:
    """A class of the caller."""

    tag = "parent"

    def __init__(self, name: str = "", size: int = 0) -> None:
        self.name = name
        self.size = size

    def greet(self, word: str) -> str:
        return f"{word} {self.name}"


class Heir(Parent):
    """A derived class of the caller."""


@dataclass
class Point:
    """A dataclass of the caller."""

    x: int
    y: int = 0


class Colour(enum.Enum):
    """An enumeration of the caller."""

    RED = 1


def test_closures_and_module_level_functions_run_in_the_caller(shop: Any) -> None:
    seen: list[int] = []

    def closure(number: int, *, more: int = 0) -> int:
        seen.append(os.getpid())
        return number + more

    CALLS.clear()
    assert shop.apply(closure, 1, more=2) == 3
    assert shop.apply(module_level, 4) == 5
    assert seen == [os.getpid()]
    assert [(4, os.getpid())] == CALLS


def test_all_kinds_of_callables_call_back(shop: Any) -> None:
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def __call__(self, step: int) -> int:
            self.count += step
            return self.count

        def method(self, step: int) -> int:
            return self(step)

    counter = Counter()
    assert shop.apply(counter, 2) == 2
    assert shop.apply(counter.method, 3) == 5
    assert shop.apply(functools.partial(counter, step=1)) == 6
    assert shop.apply(len, [1, 2]) == 2
    assert shop.apply(lambda: None) is None
    assert shop.see("callable(f) and f.__name__", f=module_level) == "module_level"


def test_a_callback_is_batched_in_one_round_trip(shop: Any) -> None:
    served = []
    guard: Any = cast("Any", bond_of(shop))._guard
    plain = guard.serve

    def noting(*request: object) -> object:
        served.append(request[0])
        return plain(*request)

    guard.serve = noting
    seen: list[int] = []

    def callback(number: int) -> int:
        seen.append(number)
        return number * number

    assert shop.apply_batch(callback, 75) == [n * n for n in range(75)]
    assert seen == list(range(75))
    assert len(served) == 1


def test_a_batch_of_callbacks_stops_or_goes_on(shop: Any) -> None:
    ran: list[int] = []

    def callback(number: int) -> int:
        ran.append(number)
        if number == 1:
            raise OwnError("one")
        return number

    code = (
        "outcomes = callback.batch([((n,), {}) for n in range(3)], on_error=how)\n"
        "result = [(one.ran, one.ok) for one in outcomes]"
    )
    assert shop.run(code, callback=callback, how="stop") == [
        (True, True),
        (True, False),
        (False, False),
    ]
    assert ran == [0, 1]
    ran.clear()
    assert shop.apply_batch(callback, 3, "continue") == [0, "one", 2]
    assert ran == [0, 1, 2]
    with pytest.raises(OwnError) as raised:
        shop.run("callback.batch([((1,), {})]).values()", callback=callback)
    assert str(raised.value) == "one"


def test_calls_nest_to_any_depth(shop: Any) -> None:
    threads = set()

    def down(depth: int) -> int:
        threads.add(threading.get_ident())
        return 0 if not depth else 1 + shop.apply(down, depth - 1)

    assert shop.apply(down, 20) == 20
    assert threads == {threading.get_ident()}


def test_a_callers_error_that_passes_through_is_the_same_object(shop: Any) -> None:
    error = OwnError("mine")

    def fail() -> None:
        raise error

    with pytest.raises(OwnError) as raised:
        shop.apply(fail)
    assert raised.value is error

    def deep() -> None:
        shop.apply(fail)

    with pytest.raises(OwnError) as nested:
        shop.apply(deep)
    assert nested.value is error


def test_the_child_catches_a_callers_error_by_its_builtin_type(shop: Any) -> None:
    def fail(text: str) -> None:
        raise KeyError(text)

    assert shop.apply_safely(fail, "gone") == "caught RemoteKeyError: 'gone'"
    assert shop.apply_safely(lambda: None) == "nothing"


def test_the_child_catches_a_callers_error_by_its_class(shop: Any) -> None:
    def fail() -> None:
        raise OwnError("own")

    code = (
        "try:\n    fail()\n"
        "except OwnError as error:\n    result = str(error), isinstance(error, ValueError)"
    )
    assert shop.run(code, fail=fail, OwnError=OwnError) == ("own", True)


def test_the_callers_frames_stay_with_the_caller(shop: Any) -> None:
    def fail() -> None:
        raise KeyError("x")

    code = "try:\n    fail()\nexcept KeyError as error:\n    result = error.remote_traceback"
    assert shop.run(code, fail=fail) == ""


def test_an_object_passed_comes_back_as_itself(shop: Any) -> None:
    thing = Parent("p")
    for value in (thing, module_level, Parent, Colour.RED, [thing]):
        assert shop.echo(value) == value
    assert shop.echo(thing) is thing
    assert shop.echo({"deep": (thing,)})["deep"][0] is thing
    assert shop.echo(Parent) is Parent
    shop.keep(thing)
    assert shop.given() is thing
    assert shop.is_kept(thing)


def test_the_text_of_a_callers_object_is_not_its_own(shop: Any) -> None:
    assert shop.see("repr(thing)", thing=Parent("secret")).startswith("<remote object of ")
    assert "secret" not in shop.see("str(thing)", thing=Parent("secret"))


def test_builtin_types_are_the_same_types_there(shop: Any) -> None:
    for kind in (int, dict, KeyError, object, type(None)):
        assert shop.echo(kind) is kind
    assert shop.see("isinstance(3, kind)", kind=int) is True


def test_the_child_lets_go_of_what_it_was_passed(shop: Any) -> None:
    thing = Parent("p")
    gone = weakref.ref(thing)
    shop.echo(thing)
    shop.run("import gc; gc.collect()")
    shop.ping()
    del thing
    gc.collect()
    assert gone() is None


def test_the_callers_classes_are_real_types_there(shop: Any) -> None:
    names = {"Parent": Parent, "Heir": Heir, "heir": Heir("h"), "Point": Point, "RED": Colour.RED}
    for truth in (
        "isinstance(Parent, type)",
        "issubclass(Heir, Parent)",
        "not issubclass(Parent, Heir)",
        "isinstance(heir, Heir) and isinstance(heir, Parent)",
        "type(heir) is Heir",
        "type(heir).__mro__.index(Parent) == 1",
        "(Parent.__name__, Parent.__qualname__) == ('Parent', 'Parent')",
        "Parent.__doc__ == 'A class of the caller.'",
        "Parent.__module__.endswith('test_callbacks')",
        "repr(Parent).startswith('<class ')",
        "Point.__annotations__ == {'x': 'int', 'y': 'int'}",
        "__import__('typing').get_type_hints(Point) == {'x': int, 'y': int}",
        "__import__('typing').get_type_hints(Heir) == {}",
        "[f.name for f in __import__('dataclasses').fields(Point)] == ['x', 'y']",
        "__import__('dataclasses').is_dataclass(Point)",
        "not hasattr(Parent, '_no_such_thing')",
        "type(RED).__name__ == 'Colour'",
        "isinstance(heir, object) and not isinstance(3, Parent)",
    ):
        assert shop.see(truth, **names) is True, truth


def test_the_child_derives_from_a_class_of_the_caller(shop: Any) -> None:
    code = (
        "class Own(Parent):\n"
        "    def __init__(self): self.word = 'own'\n"
        "    def say(self): return self.word\n"
        "made = Own()\n"
        "below = Own.__mro__[1] is Parent and issubclass(Own, Parent)\n"
        "result = made.say(), isinstance(made, Parent), below\n"
        "shop.keep(made)"
    )
    assert shop.run(code, Parent=Parent) == ("own", True, True)
    made = shop.given()
    assert made.say() == "own"
    assert made.word == "own"


def test_the_child_constructs_a_class_that_it_was_passed(isolate: Isolate) -> None:
    shop = isolate("Shop", expose=("greet", "name", "tag"))()
    made = shop.run("result = Parent('built', size=3)", Parent=Parent)
    assert type(made) is Parent
    assert (made.name, made.size) == ("built", 3)
    assert shop.run("result = Parent('x').greet('hi')", Parent=Parent) == "hi x"
    assert shop.run("result = Parent.tag, Parent('y').name", Parent=Parent) == ("parent", "y")


def test_names_that_are_exposed_are_used(isolate: Isolate) -> None:
    shop = isolate("Shop", expose=("greet", "__len__"))()
    assert shop.see("heir.greet('hello')", heir=Heir("h")) == "hello h"
    with pytest.raises(AccessRefused, match="name"):
        shop.see("heir.name", heir=Heir("h"))


def test_a_trusted_child_uses_public_names(trusted_shop: Any) -> None:
    heir = Heir("h", 3)
    assert trusted_shop.see("heir.greet('hello'), heir.size", heir=heir) == ("hello h", 3)
    trusted_shop.run("heir.size = 9", heir=heir)
    assert heir.size == 9
    trusted_shop.run("del heir.size", heir=heir)
    assert not hasattr(heir, "size")
    assert trusted_shop.apply(lambda: heir) is heir
    assert trusted_shop.see("heir.__dict__", heir=heir) == {"name": "h"}


def test_containers_passed_by_reference_are_shared(isolate: Isolate) -> None:
    shop = isolate("Shop", policy="reference")()
    numbers, table, names, raw = [3, 1], {"a": 1}, {"x"}, bytearray(b"ab")
    code = (
        "numbers.append(2); numbers.sort(); numbers[0] = 10; numbers += [7]\n"
        "table['b'] = 2; table.update(c=3); del table['a']\n"
        "names.add('y'); raw.extend(b'c')\n"
        "result = len(numbers), 10 in numbers, [n for n in numbers], sorted(table.keys()), len(raw)"
    )
    seen = shop.run.with_options(returns="value")(
        code, numbers=numbers, table=table, names=names, raw=raw
    )
    assert seen == (4, True, [10, 2, 3, 7], ["b", "c"], 3)
    assert numbers == [10, 2, 3, 7]
    assert table == {"b": 2, "c": 3}
    assert names == {"x", "y"}
    assert raw == b"abc"


def test_a_callers_generator_is_iterated_in_the_child(shop: Any) -> None:
    assert shop.see("list(numbers)", numbers=(n * n for n in range(4))) == [0, 1, 4, 9]


def test_threads_of_the_child_call_back(shop: Any) -> None:
    seen: set[int] = set()

    def note(number: int) -> int:
        seen.add(number)
        return number

    code = (
        "import threading\n"
        "threads = [threading.Thread(target=note, args=(n,)) for n in range(4)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "result = 'done'"
    )
    assert shop.run(code, note=note) == "done"
    assert seen == {0, 1, 2, 3}


def test_what_cannot_be_written_is_an_error_and_not_the_end(shop: Any) -> None:
    with pytest.raises(RemoteError, match="never crosses"):
        shop.run("result = sys._getframe()")
    with pytest.raises(membrane.UnsupportedUse, match="frame"):
        shop.echo(__import__("sys")._getframe())
    assert shop.ping() == 1
