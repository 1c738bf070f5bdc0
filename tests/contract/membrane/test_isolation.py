"""What children are like from the inside: fresh, prepared, walled; and whose they may be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from membrane import isolate
from membrane.errors import IsolationWarning, ProtocolError, UnsupportedUse
from membrane.sessions import sessions
from membrane.walling import WallTerms, wall_terms
from tests.contract.membrane.plain_fittings import call
from tests.contract.membrane.plain_sessions import ISOLATIONS, need, open_plain, spec_of
from tests.eventually import SECONDS


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_children_draw_numbers_of_their_own(isolation: str) -> None:
    drawn = set()
    for _ in range(3):
        session = open_plain(isolation=need(isolation), preload=("random",))
        drawn.add(call(session.link(), "draw"))
        sessions().close(session)
    assert len(drawn) == 3


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_what_is_preloaded_is_there_before_anything_is_asked(isolation: str) -> None:
    session = open_plain(isolation=need(isolation), preload=("wave",))
    plain = open_plain(isolation=isolation)
    assert "wave" in cast("list[str]", call(session.link(), "modules"))
    assert "wave" not in cast("list[str]", call(plain.link(), "modules"))
    sessions().close(session)
    sessions().close(plain)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_preload_that_fails_is_a_typed_error(isolation: str) -> None:
    session = open_plain(isolation=need(isolation), preload=("no_such_module_anywhere",))
    with pytest.raises(UnsupportedUse, match="no_such_module_anywhere"):
        session.link()
    sessions().close(session)


def test_a_child_that_cannot_be_configured_is_a_typed_error() -> None:
    session = open_plain(guest="tests.contract.membrane.plain_fittings:unfit_child")
    with pytest.raises(ProtocolError, match="cannot be fitted"):
        session.link()
    sessions().close(session)


def test_a_walled_child_sees_nothing_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMBRANE_SECRET", "never told")
    session = open_plain(isolation=need("walled"), tenant="environment")
    link = session.link()
    assert "MEMBRANE_SECRET" not in cast("dict[str, str]", call(link, "environment"))
    assert call(link, "write", "/tmp/mine") == "/tmp/mine"  # noqa: S108 - the child's own
    assert not os.path.exists("/tmp/mine")  # noqa: S108
    for path in ("/root", "/home"):
        with pytest.raises(RuntimeError, match=r"PermissionError|FileNotFoundError"):
            call(link, "read", f"{path}/.profile")
    with pytest.raises(RuntimeError, match=r"Read-only|PermissionError"):
        call(link, "write", __file__)
    sessions().close(session)


def test_a_walled_child_is_limited() -> None:
    session = open_plain(isolation=need("walled"))
    files, tasks = cast("list[int]", call(session.link(), "limits"))
    assert files == 1024
    if spec_of(session).uids:
        assert tasks == 1024
    sessions().close(session)


TERMINAL = """
import os, pty, sys
pid, terminal = pty.fork()
if pid:
    told = b""
    try:
        while piece := os.read(terminal, 100):
            told += piece
    except OSError:
        pass
    os.waitpid(pid, 0)
    sys.stdout.write(told.decode())
else:
    from membrane.sessions import sessions
    from tests.contract.membrane.plain_fittings import call
    from tests.contract.membrane.plain_sessions import open_plain

    os.close(os.open("/dev/tty", os.O_RDWR))
    session = open_plain(isolation={isolation!r})
    print("terminal", call(session.link(), "has_terminal"))
"""


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_child_has_no_terminal_though_its_caller_has_one(isolation: str) -> None:
    need(isolation)
    ran = subprocess.run(
        [sys.executable, "-c", TERMINAL.format(isolation=isolation)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
        timeout=SECONDS * 2,
    )
    assert ran.stdout.split() == ["terminal", "False"], ran.stderr


def test_walls_that_cannot_be_had_are_a_typed_error_where_they_are_demanded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = WallTerms(reason="the kernel has none")
    monkeypatch.setattr("membrane.walling._tried", lambda path: refused)
    with pytest.raises(UnsupportedUse, match="the kernel has none"):
        wall_terms("walled", ())
    with pytest.raises(ValueError, match="isolation"):
        wall_terms("strong", ())


@pytest.mark.parametrize("place", ["/tmp", "/"])  # noqa: S108 - what cannot be shown
def test_walls_that_are_left_out_are_warned_of_once(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("walled")
    monkeypatch.setattr(sys, "path", [*sys.path, place])
    with pytest.warns(IsolationWarning, match="no walls") as warned:
        kind = isolate("wave:Wave_read")
    with pytest.raises(UnsupportedUse, match=f"take {place} out of sys.path"):
        isolate("wave:Wave_read", isolation="walled")
    # Both are told what to change, and where; the second class is not a second warning.
    assert f"take {place} out of sys.path" in str(warned[0].message)
    assert "paths=[...]" in str(warned[0].message)
    assert warned[0].filename == __file__
    again = isolate("wave:Wave_write")
    assert again.__membrane__.isolation == "process"
    strict = isolate("wave:Wave_write", isolation="walled", paths=[])
    assert strict.__membrane__.isolation == "walled"
    for each in (kind, again, strict):
        each.close()


SUB_INTERPRETER = """
import _xxsubinterpreters as interpreters
import psutil
own = interpreters.create(isolated={isolated})
interpreters.run_string(own, '''
from membrane.calls import CallOptions
from membrane.errors import DeadlineExceeded
from membrane.sessions import sessions
from tests.contract.membrane.plain_fittings import call
from tests.contract.membrane.plain_sessions import open_plain

begun = []
table = {{"up": lambda value: value + 1, "begin": lambda: begun.append(True)}}
session = open_plain(table=table)
link = session.link()
answers = [call(link, "echo", "there"), call(link, "ask", "up", 1), link.pid > 0]

def exceed(*request):
    try:
        call(link, *request, options=CallOptions(deadline=0.05))
    except DeadlineExceeded:
        answers.append(link.alive)

exceed("spin")
while not begun:
    # A busy machine may not begin it in time.
    del answers[4:]
    exceed("hold", "begin")
answers.append(call(session.link(), "add"))
sessions().close(session)
print(answers)
''')
interpreters.destroy(own)
print(psutil.Process().children(recursive=True))
"""


@pytest.mark.parametrize("isolated", [False, True])
def test_a_sub_interpreter_has_children_of_its_own(isolated: bool) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SUB_INTERPRETER.format(isolated=isolated)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
        timeout=SECONDS * 2,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["['there', 2, True, True, False, 1]", "[]"]
