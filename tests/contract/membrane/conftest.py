"""Fixtures for tests of proxies over real children, in each isolation that this machine has."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import membrane
from membrane.errors import UnsupportedUse
from membrane.remote import isolate_at
from membrane.sessions import sessions
from membrane.walling import wall_terms
from tests.contract.membrane.worker_place import WorkerPlace, own_worker
from tests.eventually import SECONDS

ROOT = Path(__file__).parents[3]
SHOP = "tests.contract.membrane.targets.shop"

Isolate = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """End the zygotes, which stay for the next session otherwise: other tests of this process count
    what is below it.
    """
    yield
    pool, ends_at = sessions().pool, time.monotonic() + SECONDS
    kinds = list(pool._kinds.values())
    while pool.is_peopled or any(kind.is_refilling for kind in kinds):
        assert time.monotonic() < ends_at
        for kind in kinds:
            if not kind.is_refilling:
                for zygote in list(kind.zygotes):
                    zygote.close()
        time.sleep(0.01)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what takes `isolate`, and not the isolation itself, with a child in a sandbox as well."""
    chosen = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "isolation" in metafunc.fixturenames and not any("isolation" in each for each in chosen):
        named = {*inspect.signature(metafunc.function).parameters}
        found = ["process", "walled"]
        if named.isdisjoint({"isolation", "local", "trusted_shop"}):
            found.append("remote")
        metafunc.parametrize("isolation", found, indirect=True)


@pytest.fixture(scope="package")
def place() -> Iterator[WorkerPlace]:
    """A walled sandbox of a worker of these tests."""
    with own_worker() as worker:
        yield worker.place()


@pytest.fixture
def isolation(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "remote":
        return name
    try:
        wall_terms(name, (str(ROOT),))
    except UnsupportedUse as missing:
        pytest.skip(str(missing))
    return name


@pytest.fixture
def isolate(isolation: str, request: pytest.FixtureRequest) -> Iterator[Isolate]:
    """Isolate classes of the test targets in this test's isolation; ends their sessions."""
    made: list[Any] = []
    place: WorkerPlace | None = None
    if isolation == "remote":
        place = request.getfixturevalue("place")

    def make(target: str, **keywords: object) -> Any:
        name = target if ":" in target else f"{SHOP}:{target}"
        if place is not None:
            kind = make_remote(place, name, keywords)
            made.append(kind)
            return kind
        keywords.setdefault("paths", [str(ROOT)])
        kind = membrane.isolate(name, isolation=isolation, **keywords)  # type: ignore[arg-type]
        made.append(kind)
        return kind

    yield make
    for kind in made:
        membrane.close(kind)


def make_remote(place: WorkerPlace, target: str, keywords: dict[str, object]) -> Any:
    """Isolate a class in a sandbox; skips what only a child of this process has."""
    if keywords.pop("trusted", False):
        pytest.skip("a child elsewhere is never trusted")
    if keywords.pop("tenant", ""):
        pytest.skip("a place is one tenant's")
    keywords.pop("paths", None)
    return isolate_at(place, target, **keywords)  # type: ignore[arg-type]


@pytest.fixture
def local() -> None:
    """Say of a test that it is about a child of this machine."""


@pytest.fixture
def shop(isolate: Isolate) -> Any:
    return isolate("Shop")("corner", stock=2)


@pytest.fixture
def trusted_shop(isolate: Isolate) -> Any:
    return isolate("Shop", trusted=True)("corner", stock=2)
