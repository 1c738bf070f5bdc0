"""What the page of benchmarks says of aims."""

from __future__ import annotations

import pytest
from benchmarks.aims import AIMS, Aim, least, most
from benchmarks.report import table


@pytest.mark.parametrize(
    ("aim", "value", "verdict"),
    [
        (least(2), 2.0, "met"),
        (least(2), 1.99, "short"),
        (most(2), 2.0, "met"),
        (most(2), 2.01, "short"),
        (most(2), None, ""),
    ],
)
def test_a_figure_meets_its_aim_or_falls_short(aim: Aim, value: float | None, verdict: str) -> None:
    assert aim.verdict(value) == verdict


def test_the_table_shows_aims_and_what_was_not_measured() -> None:
    figures = {"fast": 3.0, "plain": 1.0, "other_fast": 4.0}
    aims = {"fast": least(2), "slow": most(1)}
    assert list(table(figures, peers={"other_fast": 4.0}, aims=aims)) == [
        "| figure | value | aim | |",
        "|---|---|---|---|",
        "| `fast` | 3 | ≥ 2 | met |",
        "| `plain` | 1 | | |",
        "| `other_fast` (peer) | 4 | | |",
        "| `slow` | not measured | ≤ 1 | |",
    ]


def test_a_benchmark_without_aims_has_two_columns() -> None:
    assert list(table({"a": None}, peers={}, aims={})) == [
        "| figure | value |",
        "|---|---|",
        "| `a` | not measured |",
    ]


def test_aims_are_those_of_benchmarks() -> None:
    assert AIMS.keys() <= {"launch", "membrane", "relay", "sandboxes", "sessions", "workspaces"}
