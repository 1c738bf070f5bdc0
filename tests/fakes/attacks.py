"""The attacks that sandboxes are tried with: what each one tries, and what comes of it on each
tier. Those on processes and files are in `attacks_on_others`.

On tier 1, `walled`, each has the outcome that its row names: an error of the kernel, mostly.
Tier 0, `process`, is no boundary: where a row names no other outcome, an attack gets what the
worker's own user would get (`NOT_WALLED`). What would harm the machine is not tried there; its row
says how (`harm`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

NOT_WALLED: Collection[str] = ()
"""The outcome is what the same code gets outside of every sandbox, as the worker's user."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One attempt: Python that raises OSError when it fails, and the outcomes that are right.

    An outcome is `done` or the name of an error. With `harm` it is not tried on tier 0.
    """

    name: str
    tries: str
    walled: Collection[str]
    process: Collection[str] = NOT_WALLED
    harm: str = ""


@dataclass(frozen=True, slots=True)
class Attacks:
    """Attacks that are tried by one program, after `before`."""

    name: str
    rows: Sequence[Attack]
    before: str = ""

    def script(self, rows: Sequence[Attack]) -> str:
        """Return the program that tries these; see `cells.PRELUDE`."""
        lines = [f"attempt({row.name!r}, lambda: {row.tries})" for row in rows]
        return "\n".join([self.before, *lines])

    @property
    def harmless(self) -> Sequence[Attack]:
        """Those that can be tried without walls."""
        return [row for row in self.rows if not row.harm]


def _calls() -> Iterator[Attack]:
    """Calls of the kernel that no program needs: their numbers on arm64 and x86_64."""
    clock = "it would set the machine's clock"
    for name, arm, intel, arguments, harm in (
        ("keyctl", 219, 250, "1, None", ""),  # a session keyring of its own, for the next two
        ("add_key", 217, 248, "b'user', b'name', b'content', 7, -3", ""),
        ("request_key", 218, 249, "b'user', b'name', None, 0", ""),
        ("io_uring_setup", 425, 425, "8, page", ""),
        ("io_uring_enter", 426, 426, "0, 0, 0, 0, 0, 0", ""),
        ("bpf", 280, 321, "0, page, 128", ""),
        ("perf_event_open", 241, 298, "page, 0, -1, -1, 0", ""),
        ("userfaultfd", 282, 323, "0", ""),
        ("kexec_load", 104, 246, "0, 0, 0, 0", "it would drop the kernel kept for a crash"),
        ("init_module", 105, 175, "page, 4096, b''", ""),
        ("finit_module", 273, 313, "0, b'', 0", ""),
        ("delete_module", 106, 176, "b'no-such-module', 0", ""),
        ("open_by_handle_at", 265, 304, "0, page, 0", ""),
        ("personality", 92, 135, "0x0040000", ""),
        ("settimeofday", 170, 164, "page, None", clock),
        ("clock_settime", 112, 227, "0, page", clock),
        ("sethostname", 161, 170, "b'other', 5", "it would rename the machine"),
        ("reboot", 142, 169, "0xfee1dead, 672274793, 0, None", "it is one flag from a restart"),
        ("swapon", 224, 167, "b'/nowhere/at/all', 0", ""),
        ("acct", 89, 163, "b'/nowhere/at/all'", ""),
        ("quotactl", 60, 179, "0, b'/dev/vda', 0, page", ""),
        ("syslog", 116, 103, "3, page, 4096", ""),
        ("fanotify_init", 262, 300, "0, 0", ""),
        ("process_madvise", 440, 440, "0, page, 1, 4, 0", ""),
    ):
        tries = f"kernel({arm} if ARM else {intel}, {arguments})"
        yield Attack(name, tries, {"EPERM"}, harm=harm)


def _namespaces() -> Iterator[Attack]:
    for name, bit in (
        ("user", 28), ("pid", 29), ("net", 30), ("mount", 17), ("uts", 26), ("ipc", 27),
        ("cgroup", 25),
    ):  # fmt: skip
        yield Attack(f"unshare {name}", f"apart(lambda: kernel(UNSHARE, 1 << {bit}))", {"EPERM"})
        yield Attack(f"clone {name}", f"apart(lambda: clone(1 << {bit}))", {"EPERM"})
    yield Attack("unshare time", "apart(lambda: kernel(UNSHARE, 1 << 7))", {"EPERM"})
    setns = "kernel(268 if ARM else 308, os.open('/proc/self/ns/net', os.O_RDONLY), 0)"
    yield Attack("setns", setns, {"EPERM"})


APART = """
UNSHARE = 97 if ARM else 272
def apart(do):
    child = os.fork()
    if child == 0:
        code = 0
        try:
            do()
        except OSError as error:
            code = error.errno
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise OSError(code, "")
def clone(flag):
    child = kernel(220 if ARM else 56, flag | signal.SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
"""


def _mounts() -> Iterator[Attack]:
    harm = "with the right to mount it would change what the whole machine has mounted"
    own = "apart(lambda: {})"
    for name, tries, is_harmful in (
        ("mount tmpfs", "kernel(MOUNT, b'none', b'/tmp', b'tmpfs', 0, None)", True),
        ("mount proc", "kernel(MOUNT, b'none', b'/tmp', b'proc', 0, None)", True),
        ("mount cgroup", "kernel(MOUNT, b'none', b'/tmp', b'cgroup2', 0, None)", True),
        ("bind", "kernel(MOUNT, b'/', b'/tmp', None, 4096, None)", True),
        ("remount", "kernel(MOUNT, None, b'/usr', None, 32 | 4096, None)", True),
        ("umount", "kernel(39 if ARM else 166, b'/proc/keys', 2)", True),
        ("pivot_root", "kernel(41 if ARM else 155, b'/tmp', b'/tmp')", True),
        ("chroot", own.format("kernel(51 if ARM else 161, b'/tmp')"), False),
        ("open_tree", "kernel(428, -100, b'/', 1)", False),
        ("move_mount", "kernel(429, -100, b'/tmp', -100, b'/mnt', 0)", True),
        ("fsopen", "kernel(430, b'tmpfs', 0)", False),
        ("fspick", "kernel(433, -100, b'/', 0)", False),
        ("mount_setattr", "kernel(442, -100, b'/usr', 0, b'\\0' * 32, 32)", True),
    ):
        yield Attack(name, tries, {"EPERM"}, harm=harm if is_harmful else "")


def _sockets() -> Iterator[Attack]:
    harm = "the kernel would load what it needs for it, and keep that"
    refused = {"EPERM", "EAFNOSUPPORT"}
    for name, family in (("unix", 1), ("inet", 2), ("inet6", 10)):
        yield Attack(name, f"socket.socket({family}, socket.SOCK_DGRAM, 0).close()", {"done"})
    yield Attack("vsock", "socket.socket(40, socket.SOCK_DGRAM, 0).close()", {"EAFNOSUPPORT"})
    yield Attack("packet", "socket.socket(17, socket.SOCK_DGRAM, 0).close()", refused)
    for name, family in (
        ("alg", 38), ("bluetooth", 31), ("can", 29), ("tipc", 30), ("xdp", 44), ("rds", 21),
        ("key", 15), ("smc", 43), ("qipcrtr", 42),
    ):  # fmt: skip
        tries = f"socket.socket({family}, socket.SOCK_DGRAM, 0).close()"
        yield Attack(name, tries, refused, harm=harm)
    yield Attack("raw", "socket.socket(2, socket.SOCK_RAW, 1).close()", refused)
    yield Attack("raw6", "socket.socket(10, socket.SOCK_RAW, 58).close()", refused)
    sctp = "socket.socket(2, socket.SOCK_STREAM, 132).close()"
    yield Attack("sctp", sctp, refused, harm=harm)
    yield Attack("dccp", "socket.socket(2, 6, 33).close()", refused, harm=harm)
    yield Attack("pair", "[each.close() for each in socket.socketpair()]", {"done"})
    for number in (0, 15, 16):
        tries = f"socket.socket(16, socket.SOCK_RAW, {number}).close()"
        yield Attack(f"netlink {number}", tries, refused)
    for number in (4, 6, 9, 12):
        tries = f"socket.socket(16, socket.SOCK_RAW, {number}).close()"
        yield Attack(f"netlink {number}", tries, refused, harm=harm)


def _addresses() -> Iterator[Attack]:
    nowhere = {"ENETUNREACH", "EADDRNOTAVAIL", "EINVAL"}
    for address in ("169.254.169.254", "100.100.100.200", "10.0.0.1", "192.0.2.1", "1.1.1.1"):
        # A datagram socket sends nothing when it is connected.
        yield Attack(address, f"reach(socket.AF_INET, {address!r})", nowhere)
        yield Attack(
            f"tcp {address}",
            f"socket.create_connection(({address!r}, 80), 2).close()",
            nowhere,
            harm="it would call strangers in the network of who runs the tests",
        )
    for address in ("fd00:ec2::254", "fe80::1%lo", "2606:4700:4700::1111"):
        yield Attack(address, f"reach(socket.AF_INET6, {address!r})", nowhere)
    down = "rewire(b'lo'.ljust(16, b'\\0') + b'\\0' * 24)"
    yield Attack("interface down", down, {"EPERM"}, harm="it would take the machine's down")


_REACH = """
import fcntl
def reach(family, address):
    with socket.socket(family, socket.SOCK_DGRAM) as tried:
        tried.connect((address, 80))
def rewire(request):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        fcntl.ioctl(asked, 0x8914, request)
"""


def _rights() -> Iterator[Attack]:
    yield Attack("setuid", "os.setuid(0)", {"EINVAL"})  # there is no user 0 in here
    yield Attack("setgid", "os.setgid(0)", {"EINVAL"})
    yield Attack("setresuid", "os.setresuid(0, 0, 0)", {"EINVAL"})
    yield Attack("setgroups", "os.setgroups([0])", {"EPERM"})
    every = "b'\\x22\\x05\\x08\\x20\\0\\0\\0\\0', b'\\xff' * 24"
    yield Attack("capset", f"kernel(91 if ARM else 126, {every})", {"EPERM"})
    for name, pid, outcome in (("own", "0", "done"), ("by its number", "os.getpid()", "EPERM")):
        tries = f"resource.prlimit({pid}, resource.RLIMIT_NPROC, FEWER)"
        yield Attack(f"limit, {name}", tries, {outcome})
    core = "resource.prlimit(0, resource.RLIMIT_CORE, (0, 0))"
    yield Attack("core limit of 0", core, {"EPERM"})


_RIGHTS = """
import resource
FEWER = resource.getrlimit(resource.RLIMIT_NPROC)
"""


def _devices() -> Iterator[Attack]:
    refused = {"EPERM", "EACCES", "ENOENT", "EROFS"}
    harm = "it would change the machine's own /dev"
    for kind in ("BLK", "CHR"):
        own = f"os.mknod(OWN + '/{kind}', stat.S_IF{kind} | 0o600, os.makedev(1, 1))"
        yield Attack(f"{kind} in its own directory", own, refused)
        for place in ("/workspace", "/dev", "/dev/shm"):  # noqa: S108 - the sandbox's
            path = f"{place}/{kind}"
            tries = f"os.mknod({path!r}, stat.S_IF{kind} | 0o600, os.makedev(1, 1))"
            yield Attack(path, tries, refused, harm=harm)
    whiteout = "os.mknod(OWN + '/whiteout', stat.S_IFCHR | 0o600, os.makedev(0, 0))"
    yield Attack("whiteout", whiteout, refused)
    for path in ("mem", "kmsg", "vda", "kvm", "fuse", "net/tun", "loop0"):
        yield Attack(path, f"os.close(os.open('/dev/{path}', os.O_RDONLY))", refused)
    yield Attack("replace", "os.unlink('/dev/null')", refused, harm=harm)
    yield Attack("change", "os.chmod('/dev/null', 0o600)", refused, harm=harm)


def _set_user_ids() -> Iterator[Attack]:
    """Programs that would run as their owner, which is the worker's user on the host's disk."""
    for name, bits in (("user", "0o4755"), ("group", "0o2755")):
        for call, tries in (
            ("chmod", "os.chmod(MADE, {})"),
            ("fchmod", "os.fchmod(os.open(MADE, os.O_RDONLY), {})"),
            ("fchmodat", "kernel(53 if ARM else 268, -100, MADE, {})"),
            ("fchmodat2", "kernel(452, -100, MADE, {}, 0)"),
            ("open", "os.close(os.open(fresh(), os.O_CREAT | os.O_WRONLY, {}))"),
            ("O_TMPFILE", "os.close(os.open(OWN, os.O_TMPFILE | os.O_WRONLY, {}))"),
            ("mknod", "os.mknod(fresh(), stat.S_IFREG | {})"),
        ):
            yield Attack(f"{call}, {name}", tries.format(bits), {"EPERM"})
        how = f"struct.pack('=QQQ', os.O_CREAT | os.O_WRONLY, {bits}, 0)"
        tries = f"os.close(kernel(437, -100, os.fsencode(fresh()), {how}, 24))"
        yield Attack(f"openat2, {name}", tries, {"ENOSYS"})
    # The kernel keeps the permissions of a directory only.
    yield Attack("mkdir", "made_directory(0o6755)", {"done"})


_SET_USER_IDS = """
import itertools, stat, struct
OWN = os.environ["TMPDIR"]
MADE = os.fsencode(OWN + "/made")
os.umask(0)
open(MADE, "wb").close()
names = itertools.count()
def fresh():
    return f"{OWN}/fresh-{next(names)}"
def made_directory(mode):
    path = fresh()
    os.mkdir(path, mode)
    if os.stat(path).st_mode & 0o6000:
        raise OSError(errno.EBADE, "")
"""


def _settings() -> Iterator[Attack]:
    refused = {"EPERM", "EACCES", "ENOENT", "EROFS"}
    for path in (
        "sys/kernel/core_pattern", "sys/kernel/modprobe", "sys/kernel/hostname",
        "sys/kernel/domainname", "sys/vm/drop_caches", "sys/net/ipv4/ip_forward",
        "sys/fs/file-max", "sys/user/max_user_namespaces", "sysrq-trigger", "1/oom_score_adj",
        "irq/default_smp_affinity", "mtrr",
    ):  # fmt: skip
        open_ = f"os.open('/proc/{path}', os.O_WRONLY)"
        # What is opened and not written to has changed nothing.
        yield Attack(f"open {path}", f"os.close({open_})", refused)
        harm = "it would change a setting of the machine"
        yield Attack(f"write {path}", f"os.write({open_}, b'1')", refused, harm=harm)
    for path in ("self/uid_map", "self/oom_score_adj"):
        tries = f"os.write(os.open('/proc/{path}', os.O_WRONLY), b'1')"
        yield Attack(f"write {path}", tries, refused)
    # The way out of a cgroup: the name is that of either version.
    for name in ("cgroup.procs", "pids/tasks"):
        tries = f"os.close(os.open('/sys/fs/cgroup/{name}', os.O_WRONLY))"
        yield Attack(f"leave by {name}", tries, refused)
    for path in ("/sys", "/sys/fs/cgroup", "/sys/kernel/uevent_helper", "/sys/kernel/security"):
        yield Attack(path, f"os.close(os.open({path!r}, os.O_RDONLY))", refused)


def _readings() -> Iterator[Attack]:
    """The host's /proc: what can be opened is empty."""
    masked = {"ENODATA", "ENOENT", "EACCES", "EPERM"}
    for path in (
        "kcore", "keys", "timer_list", "sched_debug", "latency_stats", "cmdline", "config.gz",
        "diskstats", "partitions", "mdstat", "swaps", "locks",
    ):  # fmt: skip
        yield Attack(path, f"some_of('/proc/{path}')", masked)
    yield Attack(
        "kmsg", "some_of('/proc/kmsg')", masked, harm="it would take messages of the machine's log"
    )
    yield Attack("file systems", "names_in('/proc/fs')", masked)


_SOME_OF = """
def some_of(path):
    with open(path, "rb") as file:
        if not file.read(4096):
            raise OSError(errno.ENODATA, "")
def names_in(path):
    if not os.listdir(path):
        raise OSError(errno.ENODATA, "")
"""


def _programs() -> Iterator[Attack]:
    """Files of programs that run."""
    for name, path in (("own program", "'/proc/self/exe'"), ("interpreter", "sys.executable")):
        shut = {"EROFS", "EACCES", "EPERM", "ETXTBSY"}
        yield Attack(name, f"os.close(os.open({path}, os.O_WRONLY))", shut)


def _terminals() -> Iterator[Attack]:
    yield Attack("type", "fcntl.ioctl(slave, 0x5412, b'x')", {"EPERM"})
    yield Attack("paste", "fcntl.ioctl(slave, 0x541C, b'\\x03')", {"EPERM"})
    loads = "the kernel would load what it needs for it, and keep that"
    discipline = "fcntl.ioctl(slave, 0x5423, b'\\x15\\0\\0\\0')"
    yield Attack("discipline", discipline, {"EPERM"}, harm=loads)
    high = "kernel(29 if ARM else 16, slave, 0x5412 | (1 << 32), b'x')"
    yield Attack("type, high bits set", high, {"EPERM"})
    yield Attack("size", "fcntl.ioctl(slave, 0x5413, b'\\0' * 8)", {"done"})
    # The worker's: the sandbox has a session of its own, on each tier.
    yield Attack("worker's terminal", "os.open('/dev/tty', os.O_RDWR)", {"ENXIO"}, {"ENXIO"})


ON_THE_KERNEL = (
    Attacks("calls that no program needs", [*_calls()], "page = ctypes.create_string_buffer(4096)"),
    Attacks(
        "calls that an older kernel would not know",
        [
            Attack("clone3", "kernel(435, None, 0)", {"ENOSYS"}),
            Attack("of tomorrow", "kernel(999)", {"ENOSYS"}),
        ],
    ),
    Attacks("further namespaces", [*_namespaces()], APART),
    Attacks("mounts", [*_mounts()], f"{APART}\nMOUNT = 40 if ARM else 165"),
    Attacks("families of sockets", [*_sockets()]),
    Attacks("addresses", [*_addresses()], _REACH),
    Attacks("rights", [*_rights()], _RIGHTS),
    Attacks("set-user-id programs", [*_set_user_ids()], _SET_USER_IDS),
    Attacks("devices", [*_devices()], 'import stat\nOWN = os.environ["TMPDIR"]'),
    Attacks("settings of the kernel", [*_settings()]),
    Attacks("what tells of the machine", [*_readings()], _SOME_OF),
    Attacks("programs", [*_programs()]),
    Attacks("terminals", [*_terminals()], "import fcntl, pty\nmaster, slave = pty.openpty()"),
)
