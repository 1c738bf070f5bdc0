"""The guard against a hostile child: known sandbox escapes, tried by real children that forge their
own requests.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

import membrane
from tests.contract.membrane.conftest import Isolate
from tests.contract.membrane.escapes import ATTACKS, PRELUDE, TOOLS

SECRET = "the caller's secret"
REFUSED = {"membrane.errors.AccessRefused", "membrane.errors.ProtocolError"}


class Account:
    """An object of the caller that a child was passed."""

    balance = 10

    def __init__(self) -> None:
        self.secret = SECRET
        self._private = SECRET
        self.callback = lambda: SECRET

    def reveal(self) -> str:
        return SECRET


class Passed(Account):
    """A class that the child was passed, with no object of it."""


class AccountType(type):
    """A metaclass of the caller."""


class Meta(metaclass=AccountType):
    """A class with a metaclass of its own."""


def callback(*args: object) -> int:
    """Do no harm."""
    return len(args)


def giver() -> object:
    """Return what no child was passed."""
    return callback.__globals__


@pytest.fixture
def victims() -> dict[str, Any]:
    return {
        "cb": callback,
        "giver": giver,
        "invoke": lambda function: function(),
        "thing": Account(),
        "kind": Passed,
        "meta": AccountType,
        "gen": (number for number in range(3)),
        "items": [callback.__globals__, Account()],
        "table": {"a": Account()},
    }


# One child for the whole corpus: an attack that succeeds against the next one counts too.
@pytest.fixture(scope="module")
def hostile() -> Any:
    from tests.contract.membrane.conftest import ROOT, SHOP

    kind: Any = membrane.isolate(f"{SHOP}:Shop", paths=[str(ROOT)])
    yield kind()
    membrane.close(kind)


@pytest.mark.parametrize(("label", "attack"), ATTACKS, ids=[label for label, _ in ATTACKS])
def test_an_escape_is_refused(
    hostile: Any, victims: dict[str, Any], label: str, attack: str
) -> None:
    code = f"{TOOLS}\ndef attack():\n" + "".join(
        f"    {'return ' if part is parts[-1] else ''}{part}\n"
        for parts in [attack.split("; ")]
        for part in parts
    )
    run = hostile.run.with_options(policy="reference", returns="value")
    verdict, what = run(code + PRELUDE, **victims)
    assert verdict == "refused", f"{label} gave {what}"
    local = {
        "builtins.AttributeError",
        "builtins.IndexError",
        "builtins.KeyError",
        "builtins.TypeError",
    }
    if label.startswith(("a walk", "next")):
        assert what in local | REFUSED
    else:
        assert what in REFUSED
    assert victims["thing"].secret == SECRET
    assert victims["thing"]._private == SECRET
    assert hostile.run("result = len(globals().get('stolen', []))") == 0
    assert hostile.ping() == 1


def test_a_shelf_of_secrets_is_not_sorted_out(hostile: Any) -> None:
    secrets = [Account(), Account()]
    code = (
        "stolen = []\n"
        "try:\n    items.sort(key=lambda one: stolen.append(one) or 0)\n"
        "except Exception as error:\n    kind = error.remote_type\n"
        "result = kind, len(stolen)"
    )
    run = hostile.run.with_options(policy="reference", returns="value")
    assert run(code, items=secrets) == ("membrane.errors.AccessRefused", 0)
    assert len(secrets) == 2


def test_plain_values_in_containers_are_used(hostile: Any) -> None:
    numbers = [3, 1, 2]
    run = hostile.run.with_options(policy="reference", returns="value")
    assert run("items.sort(key=lambda n: -n); result = items.index(1)", items=numbers) == 2
    assert numbers == [3, 2, 1]


def test_a_refusal_says_what_to_do(hostile: Any) -> None:
    with pytest.raises(membrane.AccessRefused, match=r"expose=\.\.\.") as raised:
        hostile.see("thing.reveal()", thing=Account())
    assert (raised.value.operation, raised.value.name) == ("call", "reveal")


def test_numpy_is_not_led_to_memory_by_a_proxy(isolate: Isolate) -> None:
    numpy = pytest.importorskip("numpy")
    shop = isolate("Shop")()
    code = (
        "class Liar:\n"
        "    @property\n"
        "    def __array_interface__(self):\n"
        "        return {'shape': (8,), 'typestr': '|u1', 'data': (id(self), True), 'version': 3}\n"
        "result = Liar()"
    )
    liar = shop.run(code)
    with pytest.raises(AttributeError):
        _ = liar.__array_interface__
    assert numpy.asarray(liar).dtype == object


def test_a_method_does_not_lead_inspect_in_circles(shop: Any) -> None:
    for name in ("__wrapped__", "__isabstractmethod__"):
        with pytest.raises(AttributeError):
            getattr(shop.ping, name)


def test_a_child_that_describes_nonsense_is_dropped(isolate: Isolate) -> None:
    kind = isolate("Shop")
    shop = kind()
    code = (
        "bond = object.__getattribute__(cb, '_membrane_bond')\n"
        "lie = [7, 'm', 'C', None, [], [], [], ['__getattribute__'], [], [], [], []]\n"
        "bond.marshal.tell = lambda kind: (7, [lie])\n"
        "result = Exception()"
    )
    with pytest.raises(membrane.ProtocolError):
        shop.run(code, cb=callback)
    with pytest.raises(membrane.ChildLost):
        shop.ping()
    assert kind().ping() == 1


def test_nothing_of_the_child_is_unpickled(isolate: Isolate) -> None:
    """Everything that pickle would have run is imported here only if something of ours asks for
    it.
    """
    code = (
        "class Bomb:\n"
        "    def __reduce_ex__(self, protocol):\n"
        "        return (__import__('os').system, ('exit 1',))\n"
        "result = Bomb()"
    )
    seen: list[str] = []

    def note(event: str, _: object) -> None:
        if event in ("pickle.find_class", "marshal.loads", "exec", "compile"):
            seen.append(event)

    sys.addaudithook(note)
    shop = isolate("Shop")()
    shop.echo([1])
    seen.clear()
    bomb = shop.run(code)
    assert type(bomb).__name__ == "Bomb"
    assert "pickle.find_class" not in seen


LOOKS = (
    "not hasattr(passed, '__wrapped__') and not hasattr(passed, 'secret')",
    "getattr(passed, '__globals__', None) is None",
    "not inspect.iscoroutinefunction(passed) and not asyncio.iscoroutinefunction(passed)",
    "str(inspect.signature(callback)).startswith('(*args')",
    "functools.wraps(callback)(lambda: 3)() == 3",
    "functools.lru_cache(callback)(4) == functools.partial(callback, 4)() == 5",
)


@pytest.mark.parametrize("look", LOOKS)
def test_what_is_refused_is_missing_to_who_looks_for_it(isolate: Isolate, look: str) -> None:
    shop = isolate("Shop")()
    code = f"import asyncio, functools, inspect\nresult = {look}"
    passed: dict[str, Any] = {"passed": Account(), "callback": lambda number: number + 1}
    assert shop.run(code, **passed) is True


def test_a_read_that_is_refused_comes_home_as_the_refusal(isolate: Isolate) -> None:
    shop = isolate("Shop")()
    with pytest.raises(membrane.AccessRefused) as raised:
        shop.see("passed.secret", passed=Account())
    assert (raised.value.operation, raised.value.name) == ("read", "secret")
    code = (
        "try:\n    passed.secret\nexcept AttributeError as error:\n    result = error.remote_type"
    )
    assert shop.run(code, passed=Account()) == "membrane.errors.AccessRefused"
