"""The walls around a process that no service knows of: the distribution alone is on its path."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead_walls import survey
from fairlead_walls.own_place import OWN_PLACE
from tests.fakes.cells import PRELUDE, PYTHON

_PROGRAM = Path(__file__).resolve().parents[2] / "fakes" / "walled_library.py"
_NOBODY = 65_534
_NOT_HERE = 77
_UIDS = (0x7100_0000, 64)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that anybody may enter, below /tmp as the sandbox has its own."""
    found = Path(tempfile.mkdtemp(prefix="walls-"))
    found.chmod(0o755)
    shutil.copytree(Path(OWN_PLACE, "fairlead_walls"), found / "packages" / "fairlead_walls")
    shutil.copy(_PROGRAM, found)
    (found / "shown").mkdir()
    (found / "shown" / "words").write_text("seen")
    yield found
    shutil.rmtree(found)


_SCRIPT = (
    PRELUDE
    + """
found["words"] = open(f"{shown}/words").read()
attempt("write", lambda: open(f"{shown}/made", "w").close())
attempt("beside", lambda: os.listdir(f"{shown}/../packages"))
attempt("own", lambda: open("/tmp/made", "w").close())
attempt("above", lambda: os.listdir("/root"))
found["user"] = str(os.getuid())
found["first"] = str(os.getppid())
os.pwrite(kept, b"by descriptor", 0)
found["ours"] = sorted({"chassis", "sandbox_worker"} & set(sys.modules))
tell()
"""
)


@pytest.mark.parametrize("who", ["root with own uids", "root", "somebody"])
def test_a_library_walls_in_its_own_child(place: Path, who: str) -> None:
    if who != "somebody" and os.getuid() != 0:
        pytest.skip("only root may be root")
    user = _NOBODY if who == "somebody" and os.getuid() == 0 else os.getuid()
    done = subprocess.run(
        [
            *(PYTHON, "-I", "-S", str(place / "walled_library.py"), str(place / "packages")),
            *(str(place / "shown"), str(int("own" in who))),
            _SCRIPT,
        ],
        user=user,
        group=user,
        extra_groups=[] if os.getuid() == 0 else None,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode == _NOT_HERE:
        pytest.skip(f"no walls on this machine: {done.stdout}")
    assert done.returncode == 0, done.stderr
    missing, first, second, kept = done.stdout.splitlines()
    if user != 0:
        assert "only root" in json.loads(missing)["own_uid"]
    assert kept == "by descriptor"
    assert second == first
    found = json.loads(first)
    assert found.pop("above") in {"ENOENT", "EACCES"}
    assert found == {
        "words": "seen",
        "write": "EROFS",
        "beside": "ENOENT",
        "own": "done",
        "user": "1000",
        "first": "1",
        "ours": [],
    }


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        ("raise OSError('no luck')", "OSError: no luck"),
        ("import os; os.kill(os.getpid(), 9)", "its trial was killed"),
    ],
)
def test_a_trial_that_fails_is_a_survey(
    program: str, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "_PROGRAM", program)
    found = survey.survey("", programs=[], first_uid=_UIDS[0], uids=_UIDS[1])
    assert not found.stands
    assert found.reason == cause
    assert (found.first_uid, found.uids, found.terms) == (0, 0, ())


_IGNORING = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
sys.path.insert(0, sys.argv[1])
from fairlead_walls.survey import survey
before = os.listdir("/proc/self/fd")
found = survey("", programs=[], first_uid=0x7100_0000, uids=64)
assert os.listdir("/proc/self/fd") == before
print(sorted(found.reasons))
"""


def test_a_caller_who_ignores_the_end_of_children_has_his_survey() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _IGNORING, OWN_PLACE],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "'private_root'" in done.stdout
