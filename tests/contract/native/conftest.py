"""Engines that are closed after each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest_asyncio

if TYPE_CHECKING:
    from fairlead_native import Engine
    from tests.contract.native.peers import MakeEngine


@pytest_asyncio.fixture
async def make_engine() -> AsyncIterator[MakeEngine]:
    """Make engines on 127.0.0.1; they are closed after the test."""
    from fairlead_native import Engine

    engines: list[Engine] = []

    def make(*, silence: float = 30.0) -> Engine:
        engine = Engine(addresses=["127.0.0.1"], silence=silence)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()
