"""The public names of the package, and the guard's tables."""

from __future__ import annotations

import inspect

import membrane
from membrane.guard_rules import CONTAINERS, ITERATORS, METHODS, STREAMS

PUBLIC = [
    "AccessRefused",
    "ChildLost",
    "DeadlineExceeded",
    "GrowthRefused",
    "IsolationWarning",
    "MembraneError",
    "MemoryExceeded",
    "ModuleLeak",
    "ModuleUnreachable",
    "Outcome",
    "Outcomes",
    "PolicyTrace",
    "ProtocolError",
    "RemoteError",
    "SessionConflict",
    "UnsupportedUse",
    "close",
    "close_session",
    "effective_policy",
    "isolate",
    "policy_trace",
    "prewarm",
    "read_attributes",
]


def test_the_public_names_are_these() -> None:
    assert membrane.__all__ == PUBLIC
    for name in PUBLIC:
        assert inspect.getdoc(getattr(membrane, name)), name


def test_isolate_and_prewarm_take_the_same_settings() -> None:
    isolate = list(inspect.signature(membrane.isolate).parameters)
    prewarm = list(inspect.signature(membrane.prewarm).parameters)
    assert isolate[1:] == prewarm


def test_a_hostile_child_has_no_text_and_no_repetition_of_containers() -> None:
    for names in (*CONTAINERS.values(), *ITERATORS.values(), *STREAMS.values()):
        assert not names & {
            "__repr__",
            "__str__",
            "__format__",
            "__mul__",
            "__imul__",
            "__rmul__",
            "__call__",
            "__hash__",
        }
    for names in METHODS.values():
        assert not [name for name in names if name.startswith("_")]
