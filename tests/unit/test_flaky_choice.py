"""Which tests `make flaky` runs, and how it reads what came of them."""

from __future__ import annotations

import pytest
from scripts.flaky import Outcome, changed_lines, functions_at

_SOURCE = """\
import pytest

LIMIT = 3


@pytest.mark.parametrize("n", [1])
def test_one(n: int) -> None:
    assert n


async def test_two() -> None:
    assert LIMIT
"""


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ({6}, ["test_one"]),
        ({8, 9, 12}, ["test_one", "test_two"]),
        ({4, 5}, []),
        ({3, 8}, None),
    ],
    ids=["a decorator", "two bodies", "blank lines", "what both use"],
)
def test_changed_lines_name_tests_or_the_whole_module(
    lines: set[int], found: list[str] | None
) -> None:
    assert functions_at(_SOURCE, lines) == found


def test_lines_of_the_new_side_are_changed() -> None:
    diff = "@@ -1 +1,2 @@ def a\n+x\n+y\n@@ -9,3 +10,0 @@\n-z\n@@ -20,0 +18 @@\n+w\n"
    assert changed_lines(diff) == {1, 2, 18}


def test_rounds_are_counted_by_test() -> None:
    outcome = Outcome()
    outcome.note(
        "tests/a.py::test_a[1-5] PASSED [ 10%]\n"
        "tests/a.py::test_a[2-5] FAILED [ 20%]\n"
        "tests/a.py::test_b[with words-3-5] PASSED [ 30%]\n"
        "tests/a.py::test_b[with words-3-5] ERROR [ 30%]\n"
    )
    assert outcome.ran == {"tests/a.py::test_a": 2, "tests/a.py::test_b[with words]": 1}
    assert outcome.failed == {"tests/a.py::test_a": 1, "tests/a.py::test_b[with words]": 1}
