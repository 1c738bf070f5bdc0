"""What one thread does to a watch while another one is in the middle of using it."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable

import pytest

from membrane.errors import ModuleLeak
from membrane.leaks import LeakWatch
from tests.fakes.locks import SeenLock


class Window(str):
    """A name that has something else happen when it is first written into another."""

    happen: Callable[[], object] | None = None

    def __format__(self, specification: str) -> str:
        happen, self.happen = self.happen, None
        if happen is not None:
            happen()
        return str.__format__(self, specification)


def test_names_are_learnt_while_another_thread_protects_a_tree() -> None:
    watch, lock = LeakWatch(), SeenLock()
    watch.protect("fairlead_none")
    tree = Window("fairlead_nothing")
    learnt: list[str] = []

    def learn() -> None:
        watch.learn(["fairlead_other"])
        learnt.append("fairlead_other")

    tree.happen = lambda: lock.beside(learn).join()
    watch.protect(tree)
    assert learnt == ["fairlead_other"]
    assert watch.trees == ("fairlead_none", "fairlead_nothing")


def test_what_comes_during_a_look_is_found_at_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    class Looking(LeakWatch):
        comes = ""

        def __setattr__(self, name: str, value: object) -> None:
            if name == "_crossings" and value == 0 and self.comes:
                monkeypatch.setitem(sys.modules, self.comes, types.ModuleType(self.comes))
            super().__setattr__(name, value)

    watch = Looking()
    watch.comes = "fairlead_none.inner"
    watch.protect("fairlead_none")
    with pytest.raises(ModuleLeak, match=r"fairlead_none"):
        watch.check()


@pytest.mark.parametrize("last", ["keep", "unprotect"])
def test_a_module_with_a_class_stays_protected_whoever_fails_to_load_another(last: str) -> None:
    watch = LeakWatch()
    for _ in range(2):
        watch.protect("fairlead_none")
    for act in sorted(["keep", "unprotect"], key=lambda act: act == last):
        getattr(watch, act)("fairlead_none")
    assert watch.trees == ("fairlead_none",)
    watch.unprotect("fairlead_none")
    assert watch.trees == ("fairlead_none",)


def test_a_module_without_a_class_is_not_protected_for_ever() -> None:
    watch = LeakWatch()
    watch.protect("fairlead_none")
    watch.unprotect("fairlead_none")
    assert watch.trees == ()
