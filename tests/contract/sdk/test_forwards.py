"""What processes know of each other's local ports: files, locks, and processes that are killed."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fairlead_sdk.cli.forwards import (
    Flow,
    Forward,
    Forwards,
    ForwardUnlisted,
    forwards_of,
)
from fairlead_sdk.errors import InvalidArgument, NotFound

ONE = Forward(
    pid=1,
    host="127.0.0.1",
    port=8080,
    remote_host="",
    remote_port=80,
    target="lch_abc",
    session_id="ses_xyz",
    started_at=datetime(2026, 1, 1, tzinfo=UTC),
)
_PROCESS = """
import os, sys
from dataclasses import replace
from pathlib import Path
from fairlead_sdk.cli.forwards import Forwards
from tests.contract.sdk.test_forwards import ONE
made = replace(ONE, pid=os.getpid(), port=int(sys.argv[2]))
with Forwards(directory=Path(sys.argv[1])).entered(made):
    print("listed", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def forwards(tmp_path: Path) -> Forwards:
    return Forwards(directory=tmp_path / "state" / "forwards")


@contextmanager
def elsewhere(tmp_path: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """Let another process forward a port to the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROCESS, str(tmp_path / "state" / "forwards"), str(port)],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listed\n"
        try:
            yield process
        finally:
            process.kill()


def test_what_another_process_forwards_is_known_until_it_ends(
    forwards: Forwards, tmp_path: Path
) -> None:
    assert list(forwards.all()) == []
    with elsewhere(tmp_path, 9090) as process:
        mine = replace(ONE, port=9091)
        with forwards.entered(mine):
            other = replace(ONE, pid=process.pid, port=9090)
            assert list(forwards.all()) == [other, mine]
            assert forwards.owner("localhost", 9090) == other
        assert list(forwards.all()) == [other]
        process.communicate("")
    assert list(forwards.all()) == []


def test_what_a_killed_process_left_is_removed(forwards: Forwards, tmp_path: Path) -> None:
    with elsewhere(tmp_path, 9090) as process:
        (file,) = (tmp_path / "state" / "forwards").iterdir()
        process.kill()
        process.wait()
        assert file.exists()
        assert forwards.owner("127.0.0.1", 9090) is None
        assert not file.exists()


def test_nobody_else_can_read_it_and_none_is_seen_half_written(
    forwards: Forwards, tmp_path: Path
) -> None:
    directory = tmp_path / "state" / "forwards"
    directory.mkdir(parents=True, mode=0o755)
    (directory / ".1-half.json").write_text("{")
    (directory / "1-damaged.json").write_text("{")
    with forwards.entered(ONE):
        assert list(forwards.all()) == [ONE]
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        (file,) = directory.glob(f"{ONE.pid}-????????.json")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_directory_that_cannot_be_made_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    forwards = Forwards(directory=tmp_path / "file" / "forwards")
    with pytest.raises(ForwardUnlisted), forwards.entered(ONE):
        pytest.fail("it was listed")
    assert list(forwards.all()) == []


def test_a_text_may_mean_several(forwards: Forwards) -> None:
    two = replace(ONE, port=9090, session_id="ses_other")
    with ExitStack() as stack:
        for each in (ONE, two):
            stack.enter_context(forwards.entered(each))
        for text in ("8080", "127.0.0.1:8080", "localhost:8080", "ses_xyz", "xy"):
            assert list(forwards.meant(text, every=False)) == [ONE]
        with pytest.raises(InvalidArgument, match="means 2"):
            forwards.meant("lch_abc", every=False)
        assert list(forwards.meant("ab", every=True)) == [ONE, two]
        for text in ("80", "10.0.0.1:8080", "lch_b", "", "ses_xyzz"):
            with pytest.raises(NotFound):
                forwards.meant(text, every=True)


def test_one_of_a_process_is_withdrawn_and_ends_when_the_process_says_so(
    forwards: Forwards,
) -> None:
    two = replace(ONE, port=9090)
    one = forwards.enter(ONE)
    with forwards.entered(two) as other:
        with forwards.withdraw(ONE) as withdrawal:
            assert (one.is_wanted, other.is_wanted) == (False, True)
            assert not withdrawal.is_done
            assert list(forwards.all()) == [two]
            again = forwards.enter(replace(ONE, session_id="ses_next"))
            assert forwards.is_there(ONE)  # through another session
            again.close()
            one.close()
            assert withdrawal.is_done
        assert list(forwards.all()) == [two]


def test_what_goes_through_is_known_to_others(forwards: Forwards) -> None:
    with forwards.entered(ONE) as entry:
        assert list(forwards.flowing()) == [(ONE, Flow())]
        most = Flow("websocket", 1024, 2**62, 2**62, 2**40, 2**40)
        for flow in (most, Flow("tcp", 1, 2, 3, 4, 5)):
            entry.note(flow)
            assert list(forwards.flowing()) == [(ONE, flow)]


def test_it_is_below_the_state_directory(tmp_path: Path) -> None:
    with forwards_of({"XDG_STATE_HOME": str(tmp_path)}).entered(ONE):
        assert (tmp_path / "fairlead" / "forwards").is_dir()
        assert list(forwards_of({"HOME": "/nowhere"}).all()) == []


def test_sockets_and_proxies_are_listed_as_what_they_are(forwards: Forwards) -> None:
    at = replace(ONE, host="", port=0, path="/run/db.sock")
    proxy = replace(ONE, port=1080, remote_port=0, is_socks=True)
    with forwards.entered(at), forwards.entered(proxy):
        assert list(forwards.all()) == [at, proxy]
        assert forwards.owner_of("/run/db.sock") == at
        assert list(forwards.meant("/run/db.sock", every=False)) == [at]
        assert list(forwards.meant("1080", every=False)) == [proxy]
        with pytest.raises(NotFound):
            forwards.meant("0", every=True)
    assert (at.address, at.name) == ("/run/db.sock", "/run/db.sock")
    assert "its clients name" in proxy.there
