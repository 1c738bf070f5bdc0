"""What a git process may reach: builds the walls around the process that it runs in, which then
becomes git.

Runs in a process forked from the spawner: single-threaded, standard library only, and little of it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal

from fairlead_walls import call_filter
from fairlead_walls import kernel_calls as calls
from fairlead_walls.file_rules import FileRules
from workspace_provisioner.wall.view import DEVICES, NotMappable, View

# Not from typing: the fewer modules are loaded, the less a fork costs (0.8 ms less, measured).
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from workspace_provisioner.wall.jobs import Job

_ROOT_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")
# Python ignores or catches these, and git would inherit that.
_REPLACED_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD)
_NICE = 10

_RESOURCES = {
    "cpu_seconds": resource.RLIMIT_CPU,
    "memory_bytes": resource.RLIMIT_AS,
    "file_bytes": resource.RLIMIT_FSIZE,
    "processes": resource.RLIMIT_NPROC,
    "files": resource.RLIMIT_NOFILE,
}


class Ground:
    """What this machine allows; `users` is the user namespace by which mounts are id-mapped, or
    -1.
    """

    def __init__(
        self,
        *,
        view: bool,
        users: int,
        user: int,
        furniture: int,
        programs: Sequence[str],
        file_rules: bool,
        call_filter: bytes,
        counts_processes: bool,
    ) -> None:
        self.view = view
        self.users = users
        self.user = user
        self.furniture = furniture
        self.programs = programs
        self.file_rules = file_rules
        self.call_filter = call_filter
        self.counts_processes = counts_processes


def job_of(fields: list[bytes]) -> Job:
    """Read the fields of a packet; see jobs.fields_of."""
    found: dict[str, list[str]] = {}
    for field in fields:
        name, _, value = os.fsdecode(field).partition("=")
        found.setdefault(name, []).append(value)
    job: Job = {
        "arguments": found.get("argument", []),
        "environment": dict(_pair(each) for each in found.get("variable", ())),
        "directory": found["directory"][0],
        "writable": found.get("writable", []),
        "readable": found.get("readable", []),
        "limits": {name: int(value) for name, value in map(_pair, found.get("limit", ()))},
        "idle": "idle" in found,
        "overlay": None,
    }
    if "target" in found:
        job["overlay"] = {
            "lower": found["lower"],
            "upper": found["upper"][0],
            "work": found["work"][0],
            "target": found["target"][0],
        }
    return job


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


class Cell:
    """The walls that are the same for every job; built while there is none, so that no job waits
    for them.
    """

    def __init__(self, ground: Ground, *, parent: int) -> None:
        self._ground = ground
        self._parent = parent
        self._rules = FileRules(refuse_tcp=True) if ground.file_rules else None
        os.setsid()
        calls.end_with_parent(signal.SIGKILL)
        if os.getppid() != parent:  # it died before
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number in _REPLACED_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        if ground.view:
            _move_to_root(ground)
        if self._rules is not None:
            # Without a view of its own, whose root is the present directory, it is the machine's.
            root = "." if ground.view else ""
            for path in (*_programs(ground), "/etc/ld.so.cache"):
                self._rules.allow(f"{root}{path}", FileRules.READ_AND_EXECUTE)
            for path in DEVICES:
                self._rules.allow(f"{root}{path}", FileRules.USE)
        calls.gain_nothing()
        if ground.call_filter:
            call_filter.enforce(ground.call_filter)

    def enter(self, job: Job) -> None:
        """Wall this process in for good. Raises OSError; then nothing may be executed."""
        ground = self._ground
        own_user = ground.view and self._bring_in(job)
        os.chdir(job["directory"])
        if self._rules is not None:
            _allow_own(self._rules, job)
        if own_user:
            os.setgroups([])
            os.setresgid(ground.user, ground.user, ground.user)
            os.setresuid(ground.user, ground.user, ground.user)
        else:
            # Executing git would drop them too, since none is left in the bounding set.
            with contextlib.suppress(OSError, KeyError):
                calls.drop_capabilities()
        # A change of the user has taken it back.
        calls.end_with_parent(signal.SIGKILL)
        if os.getppid() != self._parent:
            os._exit(1)
        _limit(job["limits"], counts_processes=ground.counts_processes or own_user)
        if self._rules is not None:
            self._rules.enforce()
        if job.get("idle"):
            _give_way()
        elif os.getpriority(os.PRIO_PROCESS, 0) < 0:
            os.setpriority(os.PRIO_PROCESS, 0, 0)

    def _bring_in(self, job: Job) -> bool:
        """Mount what the job may reach and leave everything else behind; returns whether this will
        be another user, whose files there are really the service's.
        """
        ground = self._ground
        try:
            view = View(job, ground.users)
            own_user = ground.users >= 0
        except NotMappable:
            view = View(job, -1)
            own_user = False
        os.chroot(".")
        view.attach(ground.user if own_user else -1)
        return own_user


def _programs(ground: Ground) -> list[str]:
    """Return the directories in which programs and their libraries are."""
    older = [path for path in _ROOT_LINKS if os.path.isdir(path) and not os.path.islink(path)]
    return ["/usr", *older, *ground.programs]


def _move_to_root(ground: Ground) -> None:
    """Make the present directory the root of a view in which there are programs only; paths still
    lead through the machine's root, until chroot(2).
    """
    places = _programs(ground)
    mounts = [calls.clone_mount(path) for path in places]
    for mount in mounts:
        calls.set_mount(mount, calls.READ_ONLY | calls.NO_SETUID | calls.NO_DEVICES)
    for path in ("/etc", "/dev"):
        places.append(path)
        mounts.append(calls.clone_mount(path[1:], directory=ground.furniture))
    root = calls.empty_tmpfs()
    calls.unshare(calls.OWN_MOUNTS)
    calls.attach_mount(root, "/")
    os.fchdir(root)
    for path in _ROOT_LINKS:
        if os.path.islink(path):
            os.symlink(os.readlink(path), path[1:])
    for path, mount in zip(places, mounts, strict=True):
        os.makedirs(path[1:], exist_ok=True)
        calls.attach_mount(mount, path[1:])
        os.close(mount)


def _allow_own(rules: FileRules, job: Job) -> None:
    for path in job["readable"]:
        rules.allow(path, FileRules.READ)
    layers = job.get("overlay")
    for path in [*job["writable"], *([layers["target"]] if layers else [])]:
        rules.allow(path, FileRules.WRITE)


def _give_way() -> None:
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError, KeyError):
        calls.yield_disk()


def _limit(limits: dict[str, int], *, counts_processes: bool) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, value in limits.items():
        if name == "processes" and not counts_processes:
            # The limit counts what the user has, and that would be the whole machine's.
            continue
        _, hard = resource.getrlimit(_RESOURCES[name])
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        # At the soft limit of processor time comes a signal of its own, at the hard one SIGKILL.
        last = value + 1 if name == "cpu_seconds" and hard == resource.RLIM_INFINITY else value
        resource.setrlimit(_RESOURCES[name], (value, last))
