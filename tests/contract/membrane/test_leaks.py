"""Leaks: a protected module in the calling process is found at the next crossing."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import membrane
from membrane import ModuleLeak
from membrane.forwarding import bond_of
from membrane.host import HostBond
from membrane.leaks import SCAN_EVERY
from tests.contract.membrane.conftest import ROOT, SHOP, Isolate


@pytest.fixture
def planted() -> Iterator[dict[str, types.ModuleType]]:
    """Take back what a test puts into the table of modules."""
    before = dict(sys.modules)
    yield sys.modules
    for name in set(sys.modules) - set(before):
        del sys.modules[name]
    sys.modules.update(before)


def watch_of(proxy: Any) -> Any:
    return cast("HostBond", bond_of(proxy)).classes.watch


def test_an_import_after_the_start_is_found_at_the_next_call(
    shop: Any, planted: dict[str, types.ModuleType]
) -> None:
    planted[SHOP] = types.ModuleType(SHOP)
    with pytest.raises(ModuleLeak, match=r"targets\.shop") as found:
        shop.ping()
    assert (found.value.tree, found.value.modules) == (SHOP, (SHOP,))
    with pytest.raises(ModuleLeak):
        shop.ping()
    del planted[SHOP]
    assert shop.ping() == 1


def test_a_module_inside_the_tree_is_found(shop: Any, planted: dict[str, types.ModuleType]) -> None:
    planted[f"{SHOP}.inner"] = types.ModuleType("inner")
    with pytest.raises(ModuleLeak):
        _ = shop.name


def test_a_swap_that_keeps_the_number_of_modules_is_found(
    shop: Any, planted: dict[str, types.ModuleType]
) -> None:
    planted["swapped_out"] = types.ModuleType("swapped_out")
    shop.ping()
    count = len(planted)
    del planted["swapped_out"]
    planted[SHOP] = types.ModuleType(SHOP)
    assert len(planted) == count
    with pytest.raises(ModuleLeak):
        shop.ping()


def test_a_swap_under_an_unheard_of_name_is_found_soon(
    shop: Any, planted: dict[str, types.ModuleType]
) -> None:
    planted["swapped_out"] = types.ModuleType("swapped_out")
    shop.ping()
    del planted["swapped_out"]
    planted[f"{SHOP}.unheard_of"] = types.ModuleType("unheard_of")

    def call_often() -> None:
        for _ in range(SCAN_EVERY + 1):
            shop.ping()

    with pytest.raises(ModuleLeak):
        call_often()


def test_a_leak_in_a_callback_is_found_before_it_returns(
    shop: Any, planted: dict[str, types.ModuleType]
) -> None:
    def leak() -> int:
        planted[SHOP] = types.ModuleType(SHOP)
        return 1

    with pytest.raises(ModuleLeak):
        shop.apply(leak)


def test_nothing_is_scanned_while_nothing_is_imported(shop: Any) -> None:
    shop.ping()
    watch = watch_of(shop)
    before = watch.full_scans
    for _ in range(50):
        shop.ping()
    assert watch.full_scans == before


def test_each_so_many_crossings_all_is_scanned(shop: Any) -> None:
    shop.ping()
    watch = watch_of(shop)
    before = watch.full_scans
    for _ in range(SCAN_EVERY):
        shop.ping()
    assert watch.full_scans > before


def test_what_the_child_has_loaded_of_the_tree_is_known(isolate: Isolate) -> None:
    kind = isolate("tests.contract.membrane.targets.shelves:Rack")
    names = watch_of(kind())._known
    assert "tests.contract.membrane.targets.shelves" in names
    assert "tests.contract.membrane.targets.shelves.wood" in names


def test_a_parent_package_may_be_here(isolate: Isolate) -> None:
    assert isolate("tests.contract.membrane.targets.shelves:Rack")().wood() == "oak"


def test_a_leak_stops_isolating_before_a_child_is_started(
    isolation: str, planted: dict[str, types.ModuleType]
) -> None:
    planted[SHOP] = types.ModuleType(SHOP)
    with pytest.raises(ModuleLeak, match="remove that import"):
        membrane.isolate(f"{SHOP}:Shop", isolation=isolation, share_key="leak", paths=[str(ROOT)])
    assert membrane.close_session("leak") is False


def test_a_second_target_of_a_session_is_watched_too(
    isolate: Isolate, planted: dict[str, types.ModuleType]
) -> None:
    shop = isolate("Shop", share_key="two-trees")()
    rack = isolate("tests.contract.membrane.targets.shelves:Rack", share_key="two-trees")()
    planted["tests.contract.membrane.targets.shelves"] = types.ModuleType("shelves")
    for use in (shop.ping, rack.wood):
        with pytest.raises(ModuleLeak, match="shelves"):
            use()


def test_importing_it_brings_nothing_heavy() -> None:
    heavy = {"asyncio", "numpy", "multiprocessing", "random", "tempfile", "pickle", "ssl", "grpc"}
    code = f"import sys, membrane; print(sorted(set(sys.modules) & {heavy!r}))"
    folder = str(Path(membrane.__file__).parents[1])
    seen = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {folder!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert seen.stdout.strip() == "[]"


def test_a_target_that_could_not_be_loaded_is_not_watched(
    isolate: Isolate, planted: dict[str, types.ModuleType]
) -> None:
    shop = isolate("Shop", share_key="not-loaded")()
    with pytest.raises(ModuleNotFoundError):
        isolate("no_such_place:Thing", share_key="not-loaded")
    planted["no_such_place"] = types.ModuleType("no_such_place")
    assert shop.ping() == 1
