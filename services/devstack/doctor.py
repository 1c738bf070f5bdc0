"""`doctor`: what this machine can do for a local stack, and what to do about what it cannot."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from devstack.errors import StackError
from devstack.ports import is_free
from devstack.redis_server import find_redis
from devstack.rooms import DEFAULT_PORTS
from devstack.state import default_state
from fairlead_tunnel.cores import NoCore, preferred_core

_GIT_FLOOR = (2, 39)
_DISK_BYTES = 2 * 1024**3
_UNSHARE = (
    "import ctypes,os,sys;"
    "sys.exit(ctypes.CDLL(None).unshare(0x10000000|0x00020000|0x20000000|0x40000000) != 0)"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked ability: `ok`, `limited` (works without it) or `missing` (nothing works without
    it).
    """

    name: str
    verdict: str
    found: str
    remedy: str = ""


def doctor(*, as_json: bool) -> int:
    """Print every finding; 0 unless one is missing, then 1."""
    findings = [check() for check in _CHECKS]
    if as_json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in findings], indent=2) + "\n")
    else:
        for finding in findings:
            sys.stdout.write(f"{finding.verdict:<8} {finding.name:<12} {finding.found}\n")
            if finding.remedy:
                sys.stdout.write(f"{'':<21} {finding.remedy}\n")
    sys.stdout.flush()
    return 1 if any(finding.verdict == "missing" for finding in findings) else 0


def _redis() -> Finding:
    url = os.environ.get("FAIRLEAD_REDIS_URL")
    if url:
        return Finding("redis", "ok", "FAIRLEAD_REDIS_URL names one")
    try:
        program = find_redis()
    except StackError as error:
        return Finding("redis", "missing", error.message, " Or: ".join(error.remedies))
    version = ".".join(map(str, program.version))
    return Finding("redis", "ok", f"{version}, {program.origin}: {program.path}")


def _git() -> Finding:
    remedy = "Install git 2.39 or later: `apt-get install git`."
    text = _output(["git", "--version"])
    match = re.search(r"(\d+)\.(\d+)", text)
    if match is None:
        return Finding("git", "missing", "not found", remedy)
    is_old = (int(match[1]), int(match[2])) < _GIT_FLOOR
    return Finding("git", "limited" if is_old else "ok", text, remedy if is_old else "")


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] in {(3, 11), (3, 12)}:
        return Finding("python", "ok", f"{version}: {sys.executable}")
    return Finding("python", "limited", version, "The wheel with a Redis in it needs 3.11 or 3.12.")


def _namespaces() -> Finding:
    if sys.platform != "linux":
        return Finding("namespaces", "limited", f"not on {sys.platform}", "Use Linux for walls.")
    tried = subprocess.run(  # noqa: S603 - this interpreter, fixed text
        [sys.executable, "-c", _UNSHARE], capture_output=True, check=False
    )
    if tried.returncode == 0:
        return Finding("namespaces", "ok", "user, mount, pid and network namespaces are allowed")
    return Finding(
        "namespaces",
        "limited",
        "the kernel refuses user namespaces here",
        "Allow them: `sysctl kernel.unprivileged_userns_clone=1` or "
        "`kernel.apparmor_restrict_unprivileged_userns=0`; tier 0 works without.",
    )


def _overlay() -> Finding:
    """Ask the worker's own trial."""
    place = default_state()
    while not place.exists():
        place = place.parent
    tried = subprocess.run(  # noqa: S603 - this interpreter, our own module
        [sys.executable, "-m", "sandbox_worker.isolation.overlay", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode == 0:
        return Finding("overlay", "ok", "workspaces of any size are taken in the same time")
    cause = (tried.stderr.strip().splitlines() or ["it cannot be tried here"])[-1]
    return Finding(
        "overlay",
        "limited",
        f"layers cannot be mounted: {cause}",
        "Let the worker make namespaces, and keep the state directory off overlay file systems; "
        "without it workspaces come from a pool.",
    )


def _git_wall() -> Finding:
    """Ask the provisioner's own trial."""
    place = default_state()
    while not place.exists():
        place = place.parent
    tried = subprocess.run(  # noqa: S603 - this interpreter, our own module
        [sys.executable, "-m", "workspace_provisioner.wall.report", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode == 0:
        return Finding("git wall", "ok", "git sees its own paths only, without network")
    try:
        missing = json.loads(tried.stdout)["missing"]
    except (ValueError, KeyError):
        missing = {"all": (tried.stderr.strip().splitlines() or ["it cannot be tried here"])[-1]}
    return Finding(
        "git wall",
        "limited",
        "missing: " + "; ".join(f"{name} ({cause})" for name, cause in missing.items()),
        "Run the service as root or let it make namespaces; the other walls stand without.",
    )


def _walls() -> Finding:
    """Ask the worker's own trial."""
    place = default_state()
    while not place.exists():
        place = place.parent
    tried = subprocess.run(  # noqa: S603 - this interpreter, our own module
        [sys.executable, "-m", "sandbox_worker.isolation.wall_report", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode == 0:
        return Finding("walls", "ok", "sandboxes are walled, and every wall stands")
    try:
        report = json.loads(tried.stdout)
        missing, is_offered = report["missing"], report["offered"] is True
    except (ValueError, KeyError):
        missing = {"all": (tried.stderr.strip().splitlines() or ["it cannot be tried here"])[-1]}
        is_offered = False
    named = "; ".join(f"{name} ({cause})" for name, cause in missing.items())
    if is_offered:
        return Finding(
            "walls",
            "limited",
            f"sandboxes are walled; missing: {named}",
            "Run the worker as root, on a file system that can be id-mapped; the others stand.",
        )
    return Finding(
        "walls",
        "limited",
        f"sandboxes are plain processes, for one tenant only; missing: {named}",
        "Let the worker make user namespaces (see SECURITY.md), or run it as root.",
    )


def _webrtc() -> Finding:
    """Say which core carries the channels of sessions."""
    remedy = "Run `make native` where cargo is: channels get faster, trickle and restart."
    try:
        found = preferred_core()
    except NoCore as error:
        return Finding("webrtc", "limited", f"{error}: no session can be opened", remedy)
    if found.can_trickle:
        return Finding("webrtc", "ok", f"the {found.name} core")
    return Finding("webrtc", "limited", f"the core {found.name}: complete sessions only", remedy)


def _docker() -> Finding:
    if shutil.which("docker") is None:
        return Finding("docker", "limited", "not found", "Only `make compose-*` needs it.")
    version = _output(["docker", "version", "--format", "{{.Server.Version}}"])
    if not version:
        return Finding("docker", "limited", "its engine does not answer", "Start the engine.")
    return Finding("docker", "ok", version)


def _ports() -> Finding:
    wanted = (DEFAULT_PORTS, DEFAULT_PORTS + 1, DEFAULT_PORTS + 10)
    taken = [str(port) for port in wanted if not is_free(port)]
    if not taken:
        return Finding("ports", "ok", f"{', '.join(map(str, wanted))} are free")
    return Finding("ports", "ok", f"{', '.join(taken)} taken; `up` takes others and says which")


def _disk() -> Finding:
    path = default_state()
    while not path.exists():
        path = path.parent
    free = shutil.disk_usage(path).free
    text = f"{free / 1024**3:.1f} GiB free at {path}"
    if free < _DISK_BYTES:
        return Finding("disk", "limited", text, "Name a roomier place: FAIRLEAD_STATE=/directory")
    return Finding("disk", "ok", text)


def _state() -> Finding:
    path = default_state()
    place = path
    while not place.exists():
        place = place.parent
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        return Finding("state", "ok", str(path))
    remedy = "Name another one: FAIRLEAD_STATE=/some/directory"
    return Finding("state", "missing", f"{path} cannot be written to", remedy)


def _output(command: list[str]) -> str:
    try:
        answer = subprocess.run(  # noqa: S603 - fixed commands of this file
            command, capture_output=True, text=True, timeout=5, check=False, cwd=Path("/")
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


_CHECKS: tuple[Callable[[], Finding], ...] = (
    _python,
    _git,
    _redis,
    _namespaces,
    _overlay,
    _git_wall,
    _walls,
    _webrtc,
    _docker,
    _ports,
    _state,
    _disk,
)
