"""Policies, and the outcomes of batches."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest

from membrane.outcomes import Outcome, Outcomes
from membrane.policies import ATOMS, Policies, checked_policy


class Near(dict[str, int]):
    """Below dict."""


class Nearest(Near):
    """Below that."""


@pytest.mark.parametrize("value", [None, "", "Value", 1, b"value", ["value"]])
def test_two_words_are_policies(value: Any) -> None:
    with pytest.raises(ValueError, match='"value" or "reference"'):
        checked_policy(value)
    assert checked_policy("value") == "value"


def test_the_nearest_rule_wins_whatever_the_order() -> None:
    rules = [(dict, "value"), (Near, "reference"), (object, "value")]
    for turned in (rules, rules[::-1]):
        policies = Policies.checked("value", turned)
        assert policies.of_type(Nearest) == "reference"
        assert policies.of_type(Near) == "reference"
        assert policies.of_type(dict) == "value"
        assert policies.of_type(OrderedDict) == "value"


def test_the_first_of_two_rules_of_a_type_wins() -> None:
    policies = Policies.checked("value", [(list, "reference"), (list, "value")])
    assert policies.of_type(list) == "reference"


def test_atoms_are_values_whatever_is_asked() -> None:
    policies = Policies.checked("reference", [(object, "reference")])
    for kind in ATOMS:
        assert policies.of_type(kind, "reference") == "value"
    assert policies.trace(3, "reference").source == "atom"


def test_what_was_decided_once_stays_within_bounds() -> None:
    policies = Policies.checked("value", [(dict, "reference")])
    for number in range(2000):
        kind = type(f"Made{number}", (dict,), {})
        assert policies.of_type(kind) == "reference"
    assert len(policies._by_type) <= 1025


def test_outcomes_keep_what_was_finished() -> None:
    error = ValueError("two")
    outcomes = Outcomes(results=["a", None], errors={1: error}, count=4)
    assert [one.ok for one in outcomes] == [True, False, False, False]
    assert outcomes.first_error == (1, error)
    assert len(outcomes) == 4
    assert outcomes[-4].value == "a"
    with pytest.raises(IndexError, match="4 items"):
        _ = outcomes[4]
    with pytest.raises(ValueError, match="two"):
        outcomes.values()
    with pytest.raises(ValueError, match="two"):
        outcomes.values()
    assert error.__notes__ == ["item 1 of a batch of 4"]
    assert repr(outcomes) == "Outcomes(2 of 4 ran, 1 failed)"
    assert [repr(one) for one in outcomes[:3]] == [
        "Outcome(value='a')",
        "Outcome(error=ValueError('two'))",
        "Outcome(never ran)",
    ]


def test_an_outcome_of_none_is_a_result() -> None:
    assert Outcome().ok
    assert Outcome().value is None
    assert Outcomes(results=[None, None]).values() == [None, None]
