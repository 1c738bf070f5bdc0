"""How the upload of a launch is shown: bytes, rate and time left, on a terminal alone."""

from __future__ import annotations

import pytest

from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.cli.ticks import Ticks
from fairlead_sdk.events import SnapshotMissed, StepChanged

MIB = 1024 * 1024
MISS = SnapshotMissed(reason="no_base", wanted=(), tips=(), upload_token="token", expires_at=None)


class Screen:
    """A terminal that remembers, with a clock that is set by hand."""

    def __init__(self, *, is_live: bool) -> None:
        self.is_live = is_live
        self.columns = 100
        self.written = b""
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def at_once(self, descriptor: int, content: bytes) -> None:
        assert descriptor == 2
        self.written += content

    async def write(self, descriptor: int, content: bytes) -> None:
        raise AssertionError("an upload is no data")

    async def drain(self) -> None:
        return None

    async def mark(self, launch_id: str, cursor: str) -> None:
        return None

    async def began(self, key: str, body: bytes) -> None:
        return None

    def shown(self) -> str:
        """Give what was written since the last time."""
        written, self.written = self.written, b""
        return written.decode().replace("\r", "").replace("\x1b[K", "")


def ticks_on(screen: Screen, *, is_json: bool = False) -> Ticks:
    return Ticks(terminal=Terminal(is_json=is_json, output=screen), clock=screen.clock)


def test_a_terminal_shows_bytes_rate_and_time_left() -> None:
    screen = Screen(is_live=True)
    ticks = ticks_on(screen)
    ticks.miss(MISS)
    assert "the host does not have this project yet; sending what is lacking" in screen.shown()
    ticks.upload(1000, None)
    assert screen.shown() == "  … sending: 1.0 KiB"
    screen.now = 2.0
    ticks.upload(10 * MIB, 25)
    assert screen.shown() == "  … sending: 10.0 MiB, 5.0 MiB/s, 6.00 s left"
    screen.now = 8.0
    ticks.upload(40 * MIB, 99)
    assert screen.shown() == "  … sending: 40.0 MiB, 5.0 MiB/s, nearly done"
    ticks.uploaded(40 * MIB)
    assert "sent 40.0 MiB in 8.00 s, 5.0 MiB/s" in screen.shown()


def test_where_there_is_no_terminal_only_the_end_is_told() -> None:
    screen = Screen(is_live=False)
    ticks = ticks_on(screen)
    ticks.miss(MISS)
    screen.shown()
    screen.now = 2.0
    ticks.upload(10 * MIB, 25)
    assert screen.shown() == ""
    ticks.uploaded(10 * MIB)
    assert screen.shown() == "fairlead: sent 10.0 MiB in 2.00 s, 5.0 MiB/s\n"


@pytest.mark.parametrize("is_live", [True, False])
def test_with_json_nothing_is_said(is_live: bool) -> None:
    screen = Screen(is_live=is_live)
    ticks = ticks_on(screen, is_json=True)
    ticks.miss(MISS)
    screen.now = 2.0
    ticks.upload(10 * MIB, 25)
    ticks.uploaded(10 * MIB)
    assert screen.shown() == ""


def _sandbox(detail: str) -> StepChanged:
    return StepChanged(step="sandbox", state="done", elapsed=0.1, failure=None, detail=detail)


def test_a_sandbox_without_walls_is_warned_of_in_one_line() -> None:
    screen = Screen(is_live=False)
    ticks = ticks_on(screen)
    ticks.step(_sandbox("walled"))
    assert "walls" not in screen.shown()
    for detail, who in (("process", "as an ordinary user"), ("process, as root", "as root")):
        ticks.step(_sandbox(detail))
        _, warning = screen.shown().splitlines()
        assert "no walls" in warning
        assert who in warning
