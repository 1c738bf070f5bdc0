"""Attacks on processes, sockets, messages and files of others; see `attacks`."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from tests.fakes.attacks import APART, Attack, Attacks

_DONE = {"done"}
_READING = {"EPERM", "EACCES", "ENOENT"}


def _on_a_neighbour() -> Iterator[Attack]:
    read = "process_vm_readv"
    # Where nothing forbids it, what lies at that address is luck.
    yield Attack(read, "read_memory()", {"EPERM"}, {"done", "EFAULT", "EPERM"})
    yield Attack("environ", "open(f'/proc/{pid}/environ', 'rb').read()", {"ENOENT"}, _DONE)
    yield Attack("memory", "open(f'/proc/{pid}/mem', 'rb').close()", {"ENOENT"})
    yield Attack("root", "os.listdir(f'/proc/{pid}/root/')", {"ENOENT"}, _DONE)
    yield Attack("descriptors", "os.listdir(f'/proc/{pid}/fd')", {"ENOENT"}, _DONE)
    yield Attack("pidfd", "os.close(os.pidfd_open(pid))", {"ESRCH"}, _DONE)
    yield Attack("limits", "resource.prlimit(pid, 7, (64, 64))", {"EPERM"})
    yield Attack("priority", "os.setpriority(os.PRIO_PROCESS, pid, 19)", {"ESRCH"}, _DONE)
    traced = "kernel(117 if ARM else 101, 0x4206, pid, 0, 0)"
    yield Attack("ptrace", traced, {"EPERM"}, _DONE)
    yield Attack("signal", "os.kill(pid, signal.SIGTERM)", {"ESRCH"}, _DONE)


_NEIGHBOUR = """
import resource
pid = int(sys.argv[1])
class Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))
def read_memory():
    buffer = ctypes.create_string_buffer(8)
    mine = Vector(ctypes.addressof(buffer), 8)
    its = Vector(ctypes.addressof(buffer), 8)
    kernel(270 if ARM else 310, pid, ctypes.byref(mine), 1, ctypes.byref(its), 1, 0)
"""


def _on_the_first_process() -> Iterator[Attack]:
    """On tier 1 it is the sandbox's init; on tier 0 it is the machine's own."""
    harm = "it would meddle with the first process of the machine"
    for name, tries, is_harmful in (
        ("environ", "open('/proc/1/environ', 'rb').read()", False),
        ("memory", "open('/proc/1/mem', 'r+b').close()", False),
        ("maps", "open('/proc/1/maps', 'rb').read()", False),
        ("descriptors", "os.listdir('/proc/1/fd')", False),
        ("root", "os.listdir('/proc/1/root/')", False),
        ("namespaces", "os.readlink('/proc/1/ns/mnt')", False),
        ("program", "open('/proc/1/exe', 'r+b').close()", True),
        ("ptrace", "kernel(117 if ARM else 101, 0x4206, 1, 0, 0)", True),
        ("kcmp", "kernel(272 if ARM else 312, os.getpid(), 1, 0, 0, 0)", False),
        ("pidfd_getfd", "kernel(438, os.pidfd_open(1), 3, 0)", True),
        ("limits", "resource.prlimit(1, resource.RLIMIT_CPU, (1, 1))", True),
    ):
        yield Attack(name, tries, _READING, harm=harm if is_harmful else "")
    for number in sorted(signal.valid_signals()):
        # The kernel drops it.
        yield Attack(f"signal {int(number)}", f"os.kill(1, {int(number)})", _DONE, harm=harm)


def _on_sockets() -> Iterator[Attack]:
    loopback = "socket.create_connection(('127.0.0.1', int(sys.argv[1])), 60).close()"
    yield Attack("loopback", loopback, {"ECONNREFUSED"}, _DONE)
    yield Attack("abstract", "meet()", {"ECONNREFUSED"}, _DONE)


_MEET = """
def meet():
    with socket.socket(socket.AF_UNIX) as other:
        other.connect("\\0" + sys.argv[2])
"""


def _on_messages() -> Iterator[Attack]:
    segment = "kernel(194 if ARM else 29, int(sys.argv[1]), 4096, 0)"
    yield Attack("shared memory", segment, {"ENOENT"}, _DONE)
    yield Attack("queues", "os.listdir('/dev/mqueue')", {"ENOENT"})


def _on_files() -> Iterator[Attack]:
    hidden = {"ENOENT", "EACCES"}
    for name, path, process in (
        ("a secret", "secret", _DONE),
        ("by its own root", "'/proc/self/root' + secret", _DONE),
        ("by the first process's root", "'/proc/1/root' + secret", set()),
        ("by walking up", "'/../../..' + secret", _DONE),
        ("where the host was left", "'/mnt' + secret", {"ENOENT"}),
        ("passwords", "'/etc/shadow'", set()),
        ("a key", "home + '/.ssh/id_ed25519'", set()),
        ("what is installed", "'/var/lib/dpkg/status'", set()),
    ):
        yield Attack(name, f"open({path}, 'rb').read()", hidden, process)


def _on_what_is_roots() -> Iterator[Attack]:
    """By programs of a worker that is root: without walls they are another user all the same."""
    hidden = {"ENOENT", "EACCES"}
    refused = {"EPERM", "EACCES", "ENOENT", "ESRCH", "EINVAL"}
    for name, tries in (
        ("secret of the volume", "open(secret, 'rb').read()"),
        ("passwords", "open('/etc/shadow', 'rb').read()"),
        ("environment of the worker", "open(f'/proc/{worker}/environ', 'rb').read()"),
        ("root of the worker", "os.listdir(f'/proc/{worker}/root/')"),
        ("home of root", "os.listdir('/root')"),
    ):
        yield Attack(name, tries, hidden, hidden)
    for name, tries in (
        ("signal to the worker", "os.kill(worker, 0)"),
        ("ptrace of the worker", "kernel(117 if ARM else 101, 0x4206, worker, 0, 0)"),
        ("descriptors of the init", "os.listdir(f'/proc/{os.getppid()}/fd')"),
        ("setuid", "os.setuid(0)"),
        ("setgid", "os.setgid(0)"),
        ("setgroups", "os.setgroups([0])"),
        ("chroot", "kernel(51 if ARM else 161, b'/tmp')"),
        ("umount the cover", "kernel(39 if ARM else 166, cover, 2)"),
        ("umount it in a user namespace", "apart(lambda: uncover())"),
    ):
        yield Attack(name, tries, refused, refused)


_UNCOVER = """
secret, worker, cover = sys.argv[1], int(sys.argv[2]), os.fsencode(sys.argv[3])
def uncover():
    kernel(97 if ARM else 272, 0x10000000 | 0x00020000)
    kernel(39 if ARM else 166, cover, 2)
"""

ON_WHAT_IS_ROOTS = Attacks("what is root's", [*_on_what_is_roots()], f"{APART}{_UNCOVER}")
"""With a secret in the host's volume, the pid of the worker, and what covers the volume."""

ON_A_NEIGHBOUR = Attacks("a neighbour", [*_on_a_neighbour()], _NEIGHBOUR)
"""With the host's pid of the neighbour's program, which the last one ends."""

ON_THE_FIRST_PROCESS = Attacks("the first process", [*_on_the_first_process()], "import resource")

ON_SOCKETS = Attacks("sockets of the host", [*_on_sockets()], _MEET)
"""With a port of the loopback interface, and the name of an abstract socket."""

ON_MESSAGES = Attacks("messages of the host", [*_on_messages()])
"""With the key of a System V shared memory segment."""

ON_FILES = Attacks("files of the host", [*_on_files()], "secret, home = sys.argv[1:]")
"""With the path of a secret, and somebody's home."""
