"""Proxy classes and objects: construction, attributes, methods, identity, factories, refusals."""

from __future__ import annotations

import copy
import gc
import inspect
import os
import pickle
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

import membrane
from membrane import ChildLost, ModuleLeak, Outcomes, RemoteError, UnsupportedUse
from membrane.forwarding import bond_of
from membrane.host import HostBond
from tests.contract.membrane.conftest import ROOT, SHOP, Isolate


def test_the_target_is_never_imported_here(isolate: Isolate) -> None:
    kind = isolate("Shop")
    assert kind("a").ping() == 1
    assert not [name for name in sys.modules if name.startswith(SHOP)]
    membrane.close(kind)
    gc.collect()
    assert not [name for name in sys.modules if name.startswith(SHOP)]


def test_a_class_tells_what_it_is(isolate: Isolate) -> None:
    kind: Any = isolate("Shop")
    assert (kind.__name__, kind.__qualname__, kind.__module__) == ("Shop", "Shop", SHOP)
    assert kind.__doc__ == "A shop behind the wall."
    assert "add" in dir(kind)
    about = kind.__membrane__
    assert (about.target, about.policy, about.share_key, about.trusted) == (
        f"{SHOP}:Shop",
        "value",
        None,
        False,
    )
    assert about.pid != os.getpid()


def test_constructors_take_positional_and_keyword_arguments(isolate: Isolate) -> None:
    kind = isolate("Shop")
    made = kind("north", stock=7)
    assert (made.name, made.stock) == ("north", 7)
    with pytest.raises(TypeError, match="unexpected keyword"):
        kind(colour="red")


def test_instance_attributes_are_read_set_and_deleted(shop: Any) -> None:
    shop.stock = 12
    shop.fresh = [1, 2]
    assert (shop.stock, shop.fresh) == (12, [1, 2])
    del shop.fresh
    assert not hasattr(shop, "fresh")
    with pytest.raises(AttributeError, match="fresh"):
        del shop.fresh
    assert getattr(shop, "fresh", "none") == "none"
    assert shop._secret == "below the counter"
    assert vars(shop)["stock"] == 12


def test_class_attributes_are_read_set_and_deleted(isolate: Isolate) -> None:
    kind = isolate("Shop")
    assert kind.limit == 10
    kind.limit = 11
    kind.extra = "more"
    made = kind()
    assert (made.limit, kind.limit, made.extra) == (11, 11, "more")
    del kind.extra
    assert not hasattr(kind, "extra")
    kind.ping = "pong"
    assert kind().ping == "pong"


def test_properties_are_read_set_and_deleted(shop: Any) -> None:
    assert shop.title == "CORNER"
    shop.title = "NORTH"
    assert shop.name == "north"
    del shop.title
    assert shop.name == ""


def test_an_instance_attribute_hides_a_method(shop: Any) -> None:
    shop.ping = 5
    assert shop.ping == 5
    del shop.ping
    assert shop.ping() == 1


def test_class_and_static_methods_and_nested_classes(isolate: Isolate) -> None:
    kind = isolate("Shop")
    opened = kind.open_default("south")
    assert type(opened) is kind
    assert (opened.name, opened.stock) == ("south", 1)
    assert kind.double(21) == opened.double(21) == 42
    assert kind.Till().ring() == "ring"
    assert kind.add(opened, 4, times=2) == 9


def test_a_nested_target_is_found(isolate: Isolate) -> None:
    assert isolate("Shop.Till")().ring() == "ring"


def test_methods_tell_what_they_are(shop: Any) -> None:
    assert shop.double.__name__ == "double"
    assert shop.double.__qualname__ == "Shop.double"
    assert shop.double.__doc__ == "Double a number."
    assert shop.add.__self__ is shop
    assert shop.add == shop.add
    assert shop.add != shop.ping
    assert len({shop.add, shop.add}) == 1
    assert "Shop.add" in repr(shop.add)
    assert callable(shop.add)
    assert not inspect.isclass(shop.add)


def test_a_method_call_is_one_round_trip(shop: Any) -> None:
    bond = cast("Any", bond_of(shop))
    asked = []

    def counted(plain: Callable[..., object]) -> Callable[..., object]:
        def ask(*args: object, **options: object) -> object:
            asked.append(args)
            return plain(*args, **options)

        return ask

    bond.link = SimpleNamespace(request=counted(bond.link.request), call=counted(bond.link.call))
    shop.add(1)
    shop.echo(value=[1])
    assert len(asked) == 2


def test_the_same_object_is_the_same_proxy(shop: Any) -> None:
    assert shop.same() is shop
    item = shop.item("a")
    shop.keep(item)
    assert shop.given() is item
    assert shop.owner_of(item) is shop
    assert shop.is_kept(item)
    assert shop.items(1)[0] is not shop.items(1)[0]


def test_objects_of_other_protected_classes_work(shop: Any, isolate: Isolate) -> None:
    item, rare = shop.item("a"), shop.rare("b")
    assert (item.label(), rare.label(), rare.kind()) == ("item a", "item b", "rare")
    assert shop.label_of(rare) == "item b"
    assert isinstance(rare, type(item))
    assert not isinstance(item, type(rare))
    assert issubclass(type(rare), type(item))
    assert type(rare).__mro__.index(type(item)) == 1
    assert [one.name for one in shop.items(3)] == ["0", "1", "2"]
    assert type(rare).label_count == 1
    assert type(item)("made here").label() == "item made here"


def test_classes_of_one_session_are_the_same_for_isolate_and_factories(isolate: Isolate) -> None:
    shop_class = isolate("Shop", share_key="classes")
    item_class = isolate("Item", share_key="classes")
    rare_class = isolate("RareItem", share_key="classes")
    assert type(shop_class().item("a")) is item_class
    assert issubclass(rare_class, item_class)
    assert isolate("Shop", share_key="classes") is shop_class


def test_proxies_of_another_session_are_refused(isolate: Isolate) -> None:
    one, two = isolate("Shop")(), isolate("Shop")()
    with pytest.raises(UnsupportedUse, match="another session"):
        one.keep(two)
    with pytest.raises(UnsupportedUse, match="another session"):
        one.keep(type(two))
    with pytest.raises(UnsupportedUse, match="another session"):
        one.keep([1, {"deep": two.ping}])
    assert one.ping() == 1


def test_proxies_refuse_pickling_and_copying(shop: Any) -> None:
    before = set(sys.modules)
    for victim in (shop, type(shop), shop.add, shop.item("a"), [shop]):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            with pytest.raises(UnsupportedUse, match="pickle"):
                pickle.dumps(victim, protocol)
        with pytest.raises(UnsupportedUse):
            pickle._dumps(victim)  # type: ignore[attr-defined]
    for copying in (copy.copy, copy.deepcopy):
        with pytest.raises(UnsupportedUse, match="copied"):
            copying(shop)
    assert not {name for name in set(sys.modules) - before if name.startswith(SHOP)}


def test_a_proxy_class_is_not_derived_from(isolate: Isolate) -> None:
    kind = isolate("Shop")
    with pytest.raises(UnsupportedUse, match="derive from it in a module of the child"):
        type("Mine", (kind,), {})
    with pytest.raises(UnsupportedUse):

        class Mine(kind):  # type: ignore[misc, valid-type]
            """Refused."""


def test_batches_give_an_outcome_for_each_item(shop: Any) -> None:
    done = shop.add.batch([((1,), {}), ([2], {"times": 3}), ((0,), {})])
    assert isinstance(done, Outcomes)
    assert done.values() == [3, 9, 9]
    stopped = shop.fail_if_odd.batch([((n,), {}) for n in (0, 2, 3, 4)])
    assert [outcome.ok for outcome in stopped] == [True, True, False, False]
    assert [outcome.ran for outcome in stopped] == [True, True, True, False]
    assert (stopped[0].value, stopped[1].value) == (0, 2)
    with pytest.raises(ValueError, match="3 is odd") as raised:
        stopped.values()
    assert "item 2 of a batch of 4" in raised.value.__notes__
    with pytest.raises(RuntimeError, match="never ran"):
        _ = stopped[3].value
    whole = shop.fail_if_odd.batch([((n,), {}) for n in (1, 2, 3)], on_error="continue")
    assert [str(outcome.error) for outcome in whole] == ["1 is odd", "None", "3 is odd"]
    assert whole[-2].value == 2
    assert [outcome.ok for outcome in whole[1:]] == [True, False]
    assert shop.ping.batch([]).values() == []
    assert shop.ping.batch([((), {})] * 1000).values() == [1] * 1000
    assert shop.echo.batch([(("a",), {}), ((), {"value": "b"})]).values() == ["a", "b"]


@pytest.mark.parametrize(
    ("calls", "fault"),
    [
        ([(1, {})], TypeError),
        ([((1,), [])], TypeError),
        ([((1,),)], TypeError),
        ([7], TypeError),
        ([("ab", {})], TypeError),
        ([((), {1: 2})], TypeError),
    ],
)
def test_a_batch_of_what_are_no_calls_is_refused(
    shop: Any, calls: list[Any], fault: type[Exception]
) -> None:
    with pytest.raises(fault, match=r"batch|keywords"):
        shop.echo.batch(calls)
    assert shop.ping() == 1


def test_a_batch_knows_two_ways_with_errors(shop: Any) -> None:
    with pytest.raises(ValueError, match="stop"):
        shop.ping.batch([((), {})], on_error="ignore")


def test_attributes_are_read_in_one_batch(shop: Any) -> None:
    seen = membrane.read_attributes(shop, "name", "missing", "stock", "title")
    assert [outcome.ok for outcome in seen] == [True, False, True, True]
    assert (seen[0].value, seen[2].value, seen[3].value) == ("corner", 2, "CORNER")
    assert isinstance(seen[1].error, AttributeError)
    assert membrane.read_attributes(type(shop), "limit").values() == [10]
    assert membrane.read_attributes(shop).values() == []
    with pytest.raises(TypeError):
        membrane.read_attributes(object(), "name")
    with pytest.raises(TypeError):
        membrane.read_attributes(shop, 3)  # type: ignore[arg-type]


def test_generators_are_iterated_and_sent_to(shop: Any) -> None:
    counting = shop.count_to(3)
    assert iter(counting) is counting
    assert next(counting) == 1
    assert list(counting) == [2, 3]
    with pytest.raises(StopIteration):
        next(counting)
    ended = shop.count_to(0)
    with pytest.raises(StopIteration) as stopped:
        next(ended)
    assert stopped.value.value == 0
    talk = shop.talk()
    assert next(talk) == "hello"
    assert talk.send("you") == "heard you"
    talk.close()
    with pytest.raises(StopIteration):
        next(talk)


def test_objects_are_released_when_their_proxies_die(isolate: Isolate) -> None:
    kind = isolate("Shop")
    made = kind()
    bond = cast("HostBond", bond_of(made))
    items = made.items(50)
    held = made.see(
        "len(__import__('gc').get_objects())"
    )  # the frame after this one carries the releases
    del items
    gc.collect()
    count = "sum(type(o).__name__ == 'Item' for o in __import__('gc').get_objects())"
    made.ping()
    assert held > 50
    assert made.see(count) == 0
    assert len(bond.imports) == 1


def test_a_closed_object_cannot_be_used(shop: Any) -> None:
    item = shop.item("a")
    item.close()
    with pytest.raises(ChildLost, match="closed here"):
        item.label()
    with pytest.raises(ChildLost):
        _ = item.name
    assert "lost object" in repr(item)
    assert shop.item("b").label() == "item b"


def test_close_ends_a_class_and_its_objects(isolate: Isolate) -> None:
    kind = isolate("Shop")
    made = kind()
    kind.close()
    with pytest.raises(ChildLost):
        made.ping()
    with pytest.raises(ChildLost):
        kind()
    assert "lost object" in repr(made)
    kind.close()


def test_an_import_before_isolating_is_found(isolation: str) -> None:
    with pytest.raises(ModuleLeak, match="json"):
        membrane.isolate("json:JSONDecoder", isolation=isolation)


def test_threads_share_an_object(shop: Any) -> None:
    def work(_: int) -> None:
        for _ in range(30):
            shop.locked_add(1)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert shop.stock == 2 + 8 * 30


def test_a_target_that_cannot_be_loaded_says_why(isolate: Isolate) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        isolate("no_such_module:Thing")
    with pytest.raises(AttributeError, match="Nothing"):
        isolate("Nothing")
    with pytest.raises(TypeError, match="not a class"):
        isolate("Shop.ping")


def test_with_options_changes_a_method_and_not_the_others(shop: Any) -> None:
    by_reference = shop.echo.with_options(returns="reference")
    assert type(by_reference([1, 2])).__name__ == "list"
    assert type(by_reference([1, 2])) is not list
    assert type(shop.echo([1, 2])) is list
    slow = shop.see.with_options(deadline=0.05)
    with pytest.raises(membrane.DeadlineExceeded):
        slow("__import__('time').sleep(30)")
    for bad in ({"policy": "x"}, {"returns": "x"}, {"deadline": 0}):
        with pytest.raises(ValueError, match=r"value|deadline"):
            shop.echo.with_options(**bad)
    with pytest.raises(UnsupportedUse, match="trusted"):
        shop.echo.with_options(views=True)


def test_roots_of_the_test_are_where_the_child_looks(shop: Any, local: None) -> None:
    assert str(ROOT) in shop.see("sys.path")


def test_remote_error_is_a_membrane_error(shop: Any) -> None:
    with pytest.raises(RemoteError) as raised:
        shop.fail("exit")
    assert raised.value.remote_type == "builtins.SystemExit"
    assert not isinstance(raised.value, SystemExit)
    assert shop.ping() == 1
