"""Policies: what crosses by value and what by reference, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from membrane.records import form_of

Policy = Literal["value", "reference"]
Source = Literal["atom", "call_override", "type_rule", "session_default"]

ATOMS: frozenset[type] = frozenset(
    (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
)
"""Types that cannot be told from a copy of themselves: they always cross by value."""


@dataclass(frozen=True, slots=True)
class PolicyTrace:
    """Say which policy a value gets, what decided it, and the type whose rule it was."""

    effective_policy: Policy
    source: Source
    matched_type: type | None = None


def checked_policy(value: object, *, name: str = "policy") -> Policy:
    """Give the policy back; raise ValueError for anything but "value" and "reference"."""
    if value != "value" and value != "reference":
        raise ValueError(f'{name} is "value" or "reference", not {value!r}')
    return value


@dataclass(frozen=True, slots=True)
class Policies:
    """Decide value or reference: the call's own word, then the rule of the nearest type, then the
    session's.
    """

    default: Policy = "value"
    rules: tuple[tuple[type, Policy], ...] = ()
    _by_type: dict[type, tuple[Policy, type] | None] = field(
        default_factory=dict, compare=False, repr=False
    )

    @classmethod
    def checked(cls, policy: object, rules: Sequence[tuple[type, str]]) -> Policies:
        """Build from what a caller gave; raise ValueError or TypeError that name the faulty
        part.
        """
        default = checked_policy(policy)
        if isinstance(rules, (str, bytes)) or not isinstance(rules, Sequence):
            raise TypeError(f"type_rules is a sequence of (type, policy), not {rules!r}")
        checked = []
        for rule in rules:
            if not isinstance(rule, tuple) or len(rule) != 2:
                raise TypeError(f"a type rule is a pair (type, policy), not {rule!r}")
            kind, word = rule
            if not isinstance(kind, type):
                raise TypeError(f"the first of a type rule is a type, not {kind!r}")
            checked.append((kind, checked_policy(word, name=f"the policy of {kind.__name__}")))
        return cls(default=default, rules=tuple(checked))

    def of_type(self, kind: type, call: Policy | None = None) -> Policy:
        """Decide for values of exactly this type; the session's answers are remembered."""
        if kind in ATOMS:
            return "value"
        if call is not None:
            return call
        rule = self._rule(kind)
        return self.default if rule is None else rule[0]

    def is_record(self, kind: type) -> bool:
        """Say whether a rule lets a dataclass or named tuple go by value: one for the class or a
        base of its own, not for `object` or `tuple`.
        """
        rule = self._rule(kind)
        named = rule is not None and rule[0] == "value" and rule[1] not in (object, tuple)
        return named and form_of(kind) is not None

    def trace(self, value: object, call: Policy | None = None) -> PolicyTrace:
        """Say how `value` would cross, and what decides it."""
        kind = type(value)
        if kind in ATOMS:
            return PolicyTrace("value", "atom")
        if call is not None:
            return PolicyTrace(call, "call_override")
        rule = self._rule(kind)
        if rule is not None:
            return PolicyTrace(rule[0], "type_rule", rule[1])
        return PolicyTrace(self.default, "session_default")

    def _rule(self, kind: type) -> tuple[Policy, type] | None:
        if not self.rules:
            return None
        try:
            return self._by_type[kind]
        except KeyError:
            pass
        found = None
        place: float = len(kind.__mro__)
        for ruled, policy in self.rules:
            # A virtual subclass (an ABC's) matches too, behind all real bases.
            if ruled in kind.__mro__:
                at: float = kind.__mro__.index(ruled)
            elif issubclass(kind, ruled):
                at = len(kind.__mro__) - 0.5
            else:
                continue
            if at < place:
                found, place = (policy, ruled), at
        # Bounded: a caller that makes types without end must not grow this without end.
        if len(self._by_type) > 1024:
            self._by_type.clear()
        self._by_type[kind] = found
        return found
