"""Bad arguments of `isolate` are refused with what to do, before any child is started."""

from __future__ import annotations

from typing import Any

import pytest

import membrane
from tests.contract.membrane.conftest import SHOP


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        (7, TypeError),
        ("shop", ValueError),
        ("shop:", ValueError),
        (":Shop", ValueError),
        ("a b:C", ValueError),
        ("os;x:C", ValueError),
        ("a:B:C", ValueError),
        ("a.:B", ValueError),
    ],
)
def test_bad_targets_are_refused(target: Any, fault: type[Exception]) -> None:
    with pytest.raises(fault, match="target"):
        membrane.isolate(target)


@pytest.mark.parametrize(
    ("keywords", "fault", "word"),
    [
        ({"policy": "copy"}, ValueError, "policy"),
        ({"type_rules": [("list", "value")]}, TypeError, "type rule"),
        ({"type_rules": [(list, "copy")]}, ValueError, "policy of list"),
        ({"type_rules": "ab"}, TypeError, "type_rules"),
        ({"type_rules": [list]}, TypeError, "pair"),
        ({"keepalive": 1.0}, ValueError, "share_key"),
        ({"keepalive": -1, "share_key": "k"}, ValueError, "keepalive"),
        ({"keepalive": True, "share_key": "k"}, TypeError, "keepalive"),
        ({"keepalive": float("nan"), "share_key": "k"}, ValueError, "keepalive"),
        ({"deadline": 0}, ValueError, "deadline"),
        ({"deadline": "1"}, TypeError, "deadline"),
        ({"isolation": "moat"}, ValueError, "isolation"),
        ({"share_key": ""}, ValueError, "share_key"),
        ({"share_key": 3}, TypeError, "share_key"),
        ({"tenant": None}, TypeError, "tenant"),
        ({"trusted": 1}, TypeError, "trusted"),
        ({"preload": "os"}, TypeError, "preload"),
        ({"paths": "/srv"}, TypeError, "paths"),
        ({"expose": "name"}, TypeError, "expose"),
        ({"expose": [3]}, TypeError, "expose"),
        ({"expose": ["__globals__"]}, ValueError, "__globals__"),
        ({"expose": ["_private"]}, ValueError, "_private"),
        ({"expose": ["gi_frame"]}, ValueError, "gi_frame"),
        ({"expose": ["a.b"]}, ValueError, "expose"),
    ],
)
def test_bad_arguments_are_refused(
    keywords: dict[str, Any], fault: type[Exception], word: str
) -> None:
    with pytest.raises(fault, match=word):
        membrane.isolate(f"{SHOP}:Shop", **keywords)
