"""Policies: session, type rule and call, for arguments and for what is returned."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import pytest

import membrane
from membrane import SessionConflict
from tests.contract.membrane.conftest import Isolate


class Box(dict[str, int]):
    """A dict of the caller's own type."""


def test_value_copies_and_reference_does_not(isolate: Isolate) -> None:
    for policy, shared in (("value", False), ("reference", True)):
        shop = isolate("Shop", policy=policy)()
        numbers = [1, 2]
        shop.keep(numbers)
        shop.run("shop.kept.append(3)")
        assert (len(numbers) == 3) is shared
        assert (shop.given() is numbers) is shared


def test_aliases_and_cycles_are_kept_by_value(shop: Any) -> None:
    for size in (1, 100):
        part = list(range(size))
        both = shop.echo([part, part])
        assert both == [part, part]
        assert both[0] is both[1]
    ring: list[Any] = [1]
    ring.append(ring)
    back = shop.echo(ring)
    assert back[0] == 1
    assert back[1] is back
    table: dict[str, Any] = {}
    table["self"] = [table]
    back = shop.echo(table)
    assert back["self"][0] is back


def test_a_call_overrides_arguments(isolate: Isolate) -> None:
    shop = isolate("Shop")()
    numbers = [1]
    shop.keep.with_options(policy="reference")(numbers)
    assert shop.is_kept.with_options(policy="reference")(numbers)
    shop.run("shop.kept.append(2)")
    assert numbers == [1, 2]
    by_reference = isolate("Shop", policy="reference")()
    by_reference.keep.with_options(policy="value")(numbers)
    by_reference.run("shop.kept.append(3)")
    assert numbers == [1, 2]


def test_a_call_overrides_what_is_returned(isolate: Isolate) -> None:
    shop = isolate("Shop")()
    shop.run("shop.kept = [1, {'a': 2}]")
    copied = shop.given()
    shared = shop.given.with_options(returns="reference")()
    assert type(copied) is list
    assert type(shared) is not list
    shared.append(3)
    assert shared[1]["a"] == 2
    assert len(shared) == 3
    assert shop.given() == [1, {"a": 2}, 3]
    assert copied == [1, {"a": 2}]
    other = isolate("Shop", policy="reference")()
    other.run("shop.kept = [1]")
    assert type(other.given()) is not list
    assert other.given.with_options(returns="value")() == [1]


def test_a_rule_of_a_builtin_type_holds_for_returns_too(isolate: Isolate) -> None:
    shop = isolate("Shop", type_rules=[(list, "reference")])()
    shop.run("shop.kept = [1]")
    assert type(shop.given()) is not list
    assert shop.see("{'a': 1}") == {"a": 1}
    numbers = [1]
    shop.keep({"deep": numbers})
    shop.run("shop.kept['deep'].append(2)")
    assert numbers == [1, 2]


def test_the_nearest_type_in_the_order_of_bases_decides(isolate: Isolate) -> None:
    kind = isolate("Shop", type_rules=[(object, "reference"), (dict, "value"), (Box, "reference")])
    trace = membrane.policy_trace(kind, Box())
    assert (trace.effective_policy, trace.source, trace.matched_type) == (
        "reference",
        "type_rule",
        Box,
    )
    assert membrane.policy_trace(kind, {}).matched_type is dict
    assert membrane.policy_trace(kind, []).matched_type is object
    assert membrane.effective_policy(kind, {}) == "value"
    assert membrane.effective_policy(kind(), []) == "reference"


def test_the_call_wins_over_rules_and_the_session(isolate: Isolate) -> None:
    kind = isolate("Shop", type_rules=[(list, "reference")])
    trace = membrane.policy_trace(kind, [], "value")
    assert (trace.effective_policy, trace.source, trace.matched_type) == (
        "value",
        "call_override",
        None,
    )
    assert membrane.policy_trace(kind, {}).source == "session_default"
    assert membrane.policy_trace(kind, 3, "reference").effective_policy == "value"
    assert membrane.policy_trace(kind, 3).source == "atom"


def test_virtual_subclasses_match_behind_real_bases(isolate: Isolate) -> None:
    kind = isolate("Shop", type_rules=[(MutableMapping, "reference")])
    assert membrane.policy_trace(kind, {}).matched_type is MutableMapping
    assert membrane.effective_policy(kind, []) == "value"


def test_policies_are_asked_of_proxies_only(shop: Any) -> None:
    with pytest.raises(TypeError):
        membrane.effective_policy(object(), [])
    with pytest.raises(ValueError, match="call_policy"):
        membrane.effective_policy(shop, [], "copy")


@pytest.mark.parametrize(
    ("keywords", "setting"),
    [
        ({"policy": "reference"}, "settings"),
        ({"type_rules": [(dict, "value"), (list, "reference")]}, "settings"),
        ({"expose": ["other"]}, "settings"),
        ({"trusted": True}, "trusted"),
        ({"keepalive": 9.0}, "keepalive"),
        ({"deadline": 5.0}, "deadline"),
        ({"preload": ["json"]}, "preload"),
    ],
)
def test_a_share_key_with_other_settings_is_a_conflict(
    isolate: Isolate, keywords: dict[str, Any], setting: str
) -> None:
    settings: dict[str, Any] = {
        "share_key": f"conflict-{setting}-{sorted(keywords)}",
        "type_rules": [(list, "reference"), (dict, "value")],
        "expose": ["name"],
        "keepalive": 5.0,
    }
    assert isolate("Shop", **settings)().ping() == 1
    assert isolate("Shop", **settings)().ping() == 1
    with pytest.raises(SessionConflict) as conflict:
        isolate("Shop", **{**settings, **keywords})
    assert conflict.value.setting == setting
    membrane.close_session(settings["share_key"])
