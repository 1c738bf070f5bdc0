"""What a waiting child rehearses is what a session asks for, and goes well."""

from __future__ import annotations

import importlib
import sys
from typing import cast

import pytest

from membrane.bonds import Link
from membrane.fittings import Fittings
from membrane.frames import REPLY
from membrane.guest import GuestBond
from membrane.policies import Policies
from membrane.rehearsing import TARGET, rehearse


def guest() -> Fittings:
    bond = GuestBond(link=cast("Link", None), policies=Policies(), numeric=True)
    return cast("Fittings", bond)


def test_every_step_is_answered_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, TARGET.partition(":")[0], raising=False)
    assert rehearse(guest()) == [REPLY] * 4


def test_the_rehearsed_class_does_what_its_methods_say() -> None:
    module, _, name = TARGET.partition(":")
    made = getattr(importlib.import_module(module), name)("name", size=1)
    assert (made.size, made.add(1), len(made), list(made)) == (1, 2, 2, [0, 1])
    assert made.describe({"b": 1}) == {"name": "name", "b": "1"}
