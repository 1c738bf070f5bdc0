"""Stacks for the e2e tests: one that all share, and fresh ones for tests that hurt theirs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.running_stack import Places, RunningStack, places, running_stack


@pytest.fixture(scope="session")
def shared_stack() -> Iterator[RunningStack]:
    """A running stack that the whole session shares."""
    with places() as where, running_stack(where) as running:
        yield running


@pytest.fixture(scope="module")
def stack(request: pytest.FixtureRequest) -> Iterator[RunningStack]:
    """A running stack: launch on it what you like, hurt nothing. It is shared, but where a file is
    marked with `own_stack`.
    """
    if request.node.get_closest_marker("own_stack") is None:
        yield request.getfixturevalue("shared_stack")
        return
    with places() as where, running_stack(where) as running:
        yield running


@pytest.fixture
def own_places() -> Iterator[Places]:
    """An empty place for the stacks of one test."""
    with places() as where:
        yield where


@pytest.fixture
def fresh_stack(own_places: Places) -> Iterator[RunningStack]:
    """A running stack of this test alone."""
    with running_stack(own_places) as running:
        yield running
