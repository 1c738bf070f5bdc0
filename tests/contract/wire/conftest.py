"""Where the wire tests serve."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture
def bind() -> Iterator[str]:
    """The address of a unix socket that does not exist yet, with a short path."""
    with tempfile.TemporaryDirectory(prefix="flw-") as directory:
        yield f"unix:{directory}/s"
