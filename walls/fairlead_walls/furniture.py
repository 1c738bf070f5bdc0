"""What every sandbox shows of the machine: programs and libraries, the harmless part of /etc, the
harmless devices. Put up once in each zygote; a sandbox binds it in three calls.

Runs in the zygotes: single-threaded, standard library only.
"""

from __future__ import annotations

import contextlib
import os
import stat

from fairlead_walls import kernel_calls as calls

ROOT_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
USER = "sandbox"
USER_ID = 1000
HOME = f"/home/{USER}"

_LINKS_OF_DEV = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
    "core": "/proc/kcore",
}
_COPIED = (
    "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "debian_version",
    "fonts", "gai.conf", "host.conf", "inputrc", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "locale.alias", "locale.conf", "localtime", "login.defs", "magic", "magic.mime", "mailcap",
    "mime.types", "networks", "nsswitch.conf", "os-release", "perl", "pki/ca-trust", "pki/tls",
    "profile", "protocols", "rpc", "services", "shells", "ssl/certs", "ssl/openssl.cnf", "terminfo",
    "timezone", "vimrc",
)  # fmt: skip
_COPIED_BEGINNINGS = ("java-", "python3")
_LARGEST_COPY = 1024 * 1024
_WRITTEN = {
    "passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\n"
    f"{USER}:x:{USER_ID}:{USER_ID}:{USER}:{HOME}:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": f"root:x:0:\ntty:x:5:\n{USER}:x:{USER_ID}:\nnogroup:x:65534:\n",
    "hosts": f"127.0.0.1\tlocalhost {USER}\n::1\tlocalhost ip6-localhost ip6-loopback\n",
    "hostname": f"{USER}\n",
    "resolv.conf": "# This sandbox has no resolver.\n",
}

_MASKED = (
    "acpi", "asound", "cmdline", "config.gz", "diskstats", "fs", "kcore", "keys", "kmsg",
    "latency_stats", "locks", "mdstat", "partitions", "sched_debug", "scsi", "swaps",
    "sysrq-trigger", "timer_list", "timer_stats",
)  # fmt: skip
"""Entries of /proc that tell of the machine, its disks and other processes or act on them; all
others can only be read.
"""

_PLACE = "/sys"
_SEALED = calls.READ_ONLY | calls.NO_SETUID


class Furniture:
    """A directory, mounted over /sys, which no zygote needs, with `usr`, `etc`, `dev` and what else
    is shown; `root` in it is where a sandbox mounts its own root.
    """

    def __init__(self, programs: tuple[str, ...]) -> None:
        """Needs a mount namespace of its own; raises OSError."""
        self.binds: list[tuple[str, str]] = []
        self.links: list[tuple[str, str]] = []
        self.masks: list[tuple[str, str]] = []
        self.directory = calls.empty_tmpfs()
        calls.attach_mount(self.directory, _PLACE)
        self.go()
        os.umask(0o022)
        os.mkdir("root")
        for name in ("nothing", "network"):
            os.mkdir(name)
        with open("network/resolv.conf", "wb") as file:
            file.write(_resolver())
        for name in ("nothing", "network"):
            calls.bind(name, name)
            _seal(name, _SEALED | calls.NO_DEVICES)
        for name in ("usr", *ROOT_LINKS):
            if os.path.islink(f"/{name}"):
                self.links.append((name, os.readlink(f"/{name}")))
            elif os.path.isdir(f"/{name}"):
                self._show(f"/{name}", name)
        for number, path in enumerate(programs):
            self._show(path, f"programs-{number}")
        self._make_etc()
        self._make_dev()
        for name in _MASKED:
            with contextlib.suppress(OSError):
                is_directory = stat.S_ISDIR(os.stat(f"/proc/{name}").st_mode)
                self.masks.append(("../nothing" if is_directory else "../dev/null", f"proc/{name}"))

    def leave_host(self) -> int:
        """Make it the root of this namespace, so that no clone has the machine's; returns a
        descriptor of the machine's /proc.

        Letting go of mounts waits for the whole kernel, 1 to 11 ms (measured under load): here
        once, and not in every clone.
        """
        os.mkdir("proc")
        pid = calls.clone_process(calls.OWN_PIDS)
        if pid == 0:
            try:
                # Clones may mount their own only where one is in sight. This one is of a namespace
                # that ends here: it shows no process.
                calls.mount("proc", "proc", _SEALED | calls.NO_DEVICES | calls.NO_PROGRAMS)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        processes = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        host = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        calls.pivot_root(".", "root")
        os.fchdir(host)
        calls.detach_mount(".")
        os.close(host)
        self.go()
        return processes

    def go(self) -> None:
        """Make it the present directory, which a clone finds in its own namespace."""
        os.fchdir(self.directory)

    def _show(self, path: str, name: str) -> None:
        """Bind a directory of the machine, to be seen at its own path."""
        os.mkdir(name)
        _attach(path, name, _SEALED | calls.NO_DEVICES)
        self.binds.append((f"../{name}", path.lstrip("/")))

    def _make_etc(self) -> None:
        os.mkdir("etc")
        more = [name for name in os.listdir("/etc") if name.startswith(_COPIED_BEGINNINGS)]
        for name in (*_COPIED, *more):
            _copy(f"/etc/{name}", f"etc/{name}")
        for name, text in _WRITTEN.items():
            with open(f"etc/{name}", "w", encoding="utf-8") as file:
                file.write(text)
        os.symlink("/proc/self/mounts", "etc/mtab")
        calls.bind("etc", "etc")
        _seal("etc", _SEALED | calls.NO_DEVICES)
        self.binds.append(("../etc", "etc"))

    def _make_dev(self) -> None:
        os.mkdir("dev")
        for name, target in _LINKS_OF_DEV.items():
            os.symlink(target, f"dev/{name}")
        os.mkdir("dev/pts")
        os.mkdir("dev/shm")
        calls.bind("dev", "dev")
        for name in DEVICES:
            os.close(os.open(f"dev/{name}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
            _attach(f"/dev/{name}", f"dev/{name}", calls.NO_SETUID)
        _seal("dev", _SEALED)
        self.binds.append(("../dev", "dev"))


def _resolver() -> bytes:
    """Return how the machine resolves names, for sandboxes on its network."""
    with contextlib.suppress(OSError), open("/etc/resolv.conf", "rb") as file:
        return file.read(_LARGEST_COPY)
    return b""


def _attach(path: str, name: str, attributes: int) -> None:
    mount = calls.clone_mount(path)
    try:
        calls.set_mount(mount, attributes)
        calls.attach_mount(mount, name)
    finally:
        os.close(mount)


def _seal(name: str, attributes: int) -> None:
    mount = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        calls.set_mount(mount, attributes)
    finally:
        os.close(mount)


def _copy_content(source: str, target: str, mode: int) -> None:
    if mode & stat.S_IROTH:
        with open(source, "rb") as file, open(target, "wb") as copied:
            copied.write(file.read(_LARGEST_COPY))


def _copy(source: str, target: str) -> None:
    """Copy a file or a tree, of which only what everybody on the machine may read."""
    try:
        found = os.lstat(source)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(source), target)
        elif stat.S_ISDIR(found.st_mode):
            os.mkdir(target)
            for name in os.listdir(source) if found.st_mode & stat.S_IROTH else ():
                _copy(f"{source}/{name}", f"{target}/{name}")
        elif stat.S_ISREG(found.st_mode) and found.st_size <= _LARGEST_COPY:
            _copy_content(source, target, found.st_mode)
    except OSError:
        # A machine's oddity in /etc is no reason to have no sandboxes.
        return
