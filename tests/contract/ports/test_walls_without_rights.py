"""Walls where not all can be had: raised by a user without rights, and by root for its own uid; and
machines that refuse them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from fairlead_walls import shown_places, survey
from fairlead_walls.own_place import OWN_PLACE
from fairlead_walls.survey import Survey
from sandbox_worker.isolation.wall_survey import program_places, survey_walls
from tests.fakes.cells import OWN_PLACES, PRELUDE, PYTHON
from tests.fakes.walled import PATH

_FAKES = Path(__file__).resolve().parents[2] / "fakes"
_NOBODY = 65_534
_NOT_HERE = 77
_FIRST_UID, _UIDS = 0x7000_0000, 64


@dataclass(frozen=True, slots=True)
class Walled:
    """What the survey said, and what a script told from behind the walls."""

    missing: Mapping[str, str]
    found: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Builder:
    """Somebody who raises walls; `place` is a directory of theirs."""

    uid: int
    place: Path

    def wall_in(self, script: str, *arguments: str) -> Walled:
        """Run a script behind the walls."""
        done = subprocess.run(
            [
                PYTHON, "-I", "-S", str(self.place / "walled_program.py"),
                str(self.place), str(self.place), "0",
                PYTHON, "-c", f"{PRELUDE}\n{script}\ntell()", *arguments,
            ],
            user=self.uid,
            group=self.uid,
            extra_groups=[] if os.getuid() == 0 else None,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )  # fmt: skip
        if done.returncode == _NOT_HERE:
            pytest.skip(f"no walls on this machine: {done.stdout}")
        assert done.returncode == 0, done.stderr
        walls, told = done.stdout.splitlines()
        missing = {name: reason for name, reason in json.loads(walls).items() if reason}
        return Walled(missing=missing, found=json.loads(told))


@pytest.fixture(params=["without rights", "as the worker itself"])
def builder(request: pytest.FixtureRequest) -> Iterator[Builder]:
    """Both raise the walls without giving the sandbox a uid of its own."""
    uid = os.getuid()
    if uid == 0 and request.param == "without rights":
        uid = _NOBODY
    # Not below tmp_path, which only its owner may enter.
    place = Path(tempfile.mkdtemp(prefix="walls-"))
    try:
        shutil.copytree(Path(OWN_PLACE, "fairlead_walls"), place / "fairlead_walls")
        shutil.copy(_FAKES / "walled_program.py", place)
        os.chown(place, uid, -1)
        yield Builder(uid, place)
    finally:
        shutil.rmtree(place)


_BREAK_OUTS = """
outer, secret = sys.argv[1:]
attempt("signal", lambda: os.kill(int(outer), 0))
attempt("environ", lambda: open(f"/proc/{outer}/environ", "rb").read())
attempt("file", lambda: open(secret, "rb").read())
attempt("host's root", lambda: os.listdir("/mnt/usr"))
attempt("init's memory", lambda: open("/proc/1/mem", "rb").close())
attempt("init's root", lambda: os.listdir("/proc/1/root/"))
attempt("sysctl", lambda: os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)))
attempt("sysrq", lambda: os.close(os.open("/proc/sysrq-trigger", os.O_WRONLY)))
attempt("furniture", lambda: open("/etc/made", "w").close())
attempt("masked", lambda: open("/proc/acpi/made", "w").close())
attempt("device", lambda: os.chmod("/dev/null", 0o600))
attempt("device's directory", lambda: os.unlink("/dev/null"))
attempt("program", lambda: os.close(os.open("/usr/bin/env", os.O_WRONLY)))
attempt("socket", lambda: socket.socket(40, socket.SOCK_STREAM).close())
call("namespace", 97 if ARM else 272, 1 << 28)
call("mount", 40 if ARM else 165, b"none", b"/tmp", b"tmpfs", 0, None)
found["timers"] = str(len(open("/proc/timer_list", "rb").read()))
"""


def test_they_hold_without_an_own_uid(builder: Builder) -> None:
    secret = builder.place / "secret"
    secret.write_text("nightingale")
    outer = subprocess.Popen(
        ["sleep", "600"], user=builder.uid, extra_groups=[] if os.getuid() == 0 else None
    )
    try:
        walled = builder.wall_in(_BREAK_OUTS, str(outer.pid), str(secret))
        assert outer.poll() is None
    finally:
        outer.kill()
        outer.wait()
    found = dict(walled.found)
    assert found.pop("timers") == "0"
    refused = {"EPERM", "EACCES", "ENOENT", "ESRCH", "EROFS", "EAFNOSUPPORT"}
    assert set(found.values()) <= refused, found


def test_every_other_wall_stands(builder: Builder) -> None:
    missing = builder.wall_in("").missing
    if builder.uid == 0:
        assert missing == {}
    else:
        assert missing == {"own_uid": "only root may give each sandbox a user of its own"}
    assert not [each for each in builder.place.iterdir() if each.name.startswith(".walls")]


def test_private_files_are_bounded(builder: Builder) -> None:
    script = """
for place in sys.argv[1:]:
    attempt(place, lambda: open(f"{place}/large", "wb").write(b"x" * (3 << 20)))
    os.unlink(f"{place}/large")
"""
    found = builder.wall_in(script, *OWN_PLACES).found
    assert found == dict.fromkeys(OWN_PLACES, "ENOSPC")


_REFUSING = """
import os, sys
sys.path.insert(0, sys.argv[1])
from fairlead_walls import kernel_calls as calls
user, group = os.getuid(), os.getgid()
calls.unshare(calls.OWN_USERS | calls.OWN_MOUNTS)
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
%s
packages, program, *arguments = sys.argv[1:]
os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", program, packages, *arguments])
"""
_NO_NAMESPACES = 'open("/proc/sys/user/max_user_namespaces", "w").write("0")'
_MASKED_PROC = 'calls.keep_mounts_private(); calls.bind("/dev/null", "/proc/version")'


@pytest.mark.parametrize(
    ("refusal", "wall", "word"),
    [
        (_NO_NAMESPACES, "user", "max_*_namespaces"),
        (_MASKED_PROC, "private_root", "systempaths=unconfined"),
    ],
)
@pytest.mark.asyncio
async def test_a_machine_that_refuses(
    walls: Survey,
    refusal: str,
    wall: str,
    word: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = (
        f"import sys; refusing = {_REFUSING % refusal!r}; "
        f"sys.argv = ['', sys.argv[1], {survey._PROGRAM!r}, *sys.argv[2:]]; exec(refusing)"
    )
    monkeypatch.setattr(survey, "_PROGRAM", program)
    found = await survey_walls(tmp_path, path=PATH, first_uid=_FIRST_UID, uids=_UIDS)
    assert not found.stands
    assert not found.own_uid
    assert word in found.reason
    assert word in found.missing[wall]
    assert os.listdir(tmp_path) == []


@pytest.mark.asyncio
async def test_a_machine_that_allows(tmp_path: Path) -> None:
    found = await survey_walls(tmp_path, path=PATH, first_uid=_FIRST_UID, uids=_UIDS)
    if not found.stands:
        pytest.skip(found.reason)
    assert set(found.reasons) >= {"user", "private_root", "landlock", "seccomp"}
    assert (found.first_uid, found.uids) in ((_FIRST_UID, _UIDS), (0, 0))
    assert found.own_uid == (found.uids > 0)
    assert os.listdir(tmp_path) == []


@pytest.mark.asyncio
async def test_a_volume_that_every_sandbox_would_see(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    (programs / "bin" / "volume").mkdir(parents=True)
    found = await survey_walls(
        programs / "bin" / "volume",
        path=f"{programs / 'bin'}",
        first_uid=_FIRST_UID,
        uids=_UIDS,
    )
    assert not found.stands
    assert "volume" in found.reason


@pytest.mark.asyncio
async def test_uids_that_the_machine_does_not_have(tmp_path: Path) -> None:
    found = await survey_walls(tmp_path, path=PATH, first_uid=2**32 - 10, uids=_UIDS)
    assert not found.own_uid
    assert (found.first_uid, found.uids) == (0, 0)


def test_programs_outside_the_system(tmp_path: Path) -> None:
    for name in ("tool/bin", "tool/lib", "home/bin", "real/bin", "linked/bin", "volume/bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "linked/bin/python3").symlink_to(tmp_path / "real/bin/python3")
    (tmp_path / "real/bin/python3").touch()
    names = ("tool/bin", "linked/bin", "volume/bin", "absent/bin")
    path = ":".join([*(str(tmp_path / name) for name in names), "/usr/bin", "relative", ""])
    found = program_places(path, tmp_path / "volume/host")
    wanted = ("linked", "real", "tool", "volume/bin")
    assert list(found) == [str(tmp_path / name) for name in wanted]


def test_programs_where_a_sandbox_has_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("own/bin", "own/tmp/bin"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(shown_places, "_OWN", (str(tmp_path / "own/tmp"),))
    path = f"{tmp_path}/own:{tmp_path}/own/bin:{tmp_path}/own/tmp/bin"
    with caplog.at_level("WARNING"):
        found = program_places(path, tmp_path / "volume")
    assert list(found) == [f"{tmp_path}/own/bin", f"{tmp_path}/own/tmp/bin"]
    assert [vars(each)["places"] for each in caplog.records] == [[f"{tmp_path}/own"]]


def test_a_clone_leaves_the_parent_as_it_was(walls: Survey) -> None:
    """Nothing but the child's namespaces is new."""
    program = f"""
import os, sys
sys.path.insert(0, {OWN_PLACE!r})
from fairlead_walls import kernel_calls as calls
pid = calls.clone_process(calls.OWN_USERS | calls.OWN_PIDS)
if pid == 0:
    os._exit(os.getpid())
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n"
