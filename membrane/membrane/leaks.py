"""Leak watch: protected modules must not appear in the calling process, and are looked for at each
crossing.

The look is O(1) while nothing was imported: no new import since the last full scan (counted by an
audit hook), the same number of modules, and none of the known names of the protected trees.
Anything else, and each 256th crossing, is a full scan, so that a module put in by hand in another's
place is found at once by name, and under an unheard-of name soon.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable

from membrane.errors import ModuleLeak

SCAN_EVERY = 256
KNOWN_NAMES = 32
"""Names that each crossing asks for, about 20 ns each; the outermost of a tree come first."""


class _Imports:
    """Count the imports of this interpreter."""

    count = 0
    hooked = False


def _count_import(event: str, _: object) -> None:
    if event == "import":
        _Imports.count += 1


def _hook() -> None:
    if not _Imports.hooked:
        _Imports.hooked = True
        sys.addaudithook(_count_import)


class LeakWatch:
    """Watch for the modules of the protected trees; `check` is called at each crossing."""

    def __init__(self) -> None:
        _hook()
        # Re-entrant: what is collected under it may use a proxy, which may load its class again.
        self._lock = threading.RLock()
        self._trees: tuple[str, ...] = ()
        self._known: frozenset[str] = frozenset()
        self._seen_imports = -1
        self._seen_count = -1
        self._crossings = 0
        self.full_scans = 0
        self._kept: set[str] = set()

    @property
    def trees(self) -> tuple[str, ...]:
        """Name the protected modules; their children are protected with them."""
        return self._trees

    def protect(self, tree: str) -> None:
        """Watch for one more module and its children; raise ModuleLeak when one is here already."""
        with self._lock:
            self._add(tree)
        self.scan()

    def keep(self, tree: str) -> None:
        """Watch for a module for good: a class of it was loaded."""
        with self._lock:
            self._kept.add(tree)
            # Another thread, whose class was not to be had, may have given it up meanwhile.
            self._add(tree)

    def unprotect(self, tree: str) -> None:
        """Watch for a module no more, unless it is kept: its class could not be loaded."""
        with self._lock:
            if tree not in self._kept:
                self._trees = tuple(one for one in self._trees if one != tree)
                self._known -= {tree}

    def learn(self, names: Iterable[str]) -> None:
        """Take names of modules that the child has loaded: those inside the trees are looked for
        each time.
        """
        told = list(names)
        with self._lock:
            inside = {name for name in told if _tree_of(name, self._trees)}
            outermost = sorted(self._known | inside, key=lambda name: (name.count("."), name))
            self._known = frozenset((*self._trees, *outermost[:KNOWN_NAMES]))

    def check(self) -> None:
        """Raise ModuleLeak when a protected module is in this process."""
        modules = sys.modules
        self._crossings += 1
        if (
            _Imports.count == self._seen_imports
            and len(modules) == self._seen_count
            and self._crossings < SCAN_EVERY
            and modules.keys().isdisjoint(self._known)
        ):
            return
        self.scan()

    def scan(self) -> None:
        """Look at all modules; raise ModuleLeak."""
        self.full_scans += 1
        seen_imports = _Imports.count
        trees = self._trees
        insides = tuple(f"{tree}." for tree in trees)
        modules = list(sys.modules)
        found = [name for name in modules if type(name) is str and f"{name}.".startswith(insides)]
        if found:
            tree = _tree_of(found[0], trees) or found[0]
            self._seen_imports = -1
            raise ModuleLeak(tree=tree, modules=tuple(sorted(found)))
        self._crossings = 0
        # Taken before the look: what comes during it is looked for the next time.
        self._seen_count = len(modules)
        self._seen_imports = seen_imports

    def _add(self, tree: str) -> None:
        if tree not in self._trees:
            self._trees = (*self._trees, tree)
            self._known |= {tree}


def _tree_of(name: str, trees: tuple[str, ...]) -> str | None:
    for tree in trees:
        if f"{name}.".startswith(f"{tree}."):
            return tree
    return None
