"""The filter of system calls, run step by step as the kernel runs it."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import struct

import pytest

from fairlead_walls import call_filter as bpf
from fairlead_walls.call_list import compile_call_list
from fairlead_walls.call_numbers import NEWEST, allowed, judged

MACHINES = ("x86_64", "aarch64")
ALLOW, KILL = "allow", "kill"
_OF_X86_64 = ("chmod", "creat", "mknod", "open")


def judge(machine: str, number: int, *arguments: int, architecture: int = 0) -> str:
    """Run the filter on a call; returns `allow`, `kill` or the name of an error (`0` for none)."""
    called = struct.pack(
        "=IIQ6Q",
        number,
        architecture or bpf.ARCHITECTURES[machine],
        0,
        *[*arguments, 0, 0, 0, 0, 0, 0][:6],
    )
    program = compile_call_list(machine)
    steps = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    place, loaded = 0, 0
    while True:
        code, if_true, if_false, value = steps[place]
        place += 1
        match code:
            case bpf.LOAD:
                (loaded,) = struct.unpack_from("=I", called, value)
            case bpf.AND:
                loaded &= value
            case bpf.EQUAL:
                place += if_true if loaded == value else if_false
            case bpf.AT_LEAST:
                place += if_true if loaded >= value else if_false
            case bpf.ANY_BIT:
                place += if_true if loaded & value else if_false
            case bpf.RETURN if value == bpf.ALLOW:
                return ALLOW
            case bpf.RETURN if value == bpf.KILL:
                return KILL
            case bpf.RETURN:
                return errno.errorcode.get(value & 0xFFFF, str(value & 0xFFFF))
            case _:
                raise AssertionError(code)


@pytest.mark.parametrize("machine", MACHINES)
def test_exactly_the_listed_calls_pass(machine: str) -> None:
    listed = set(allowed(machine).values())
    conditional = set(judged(machine).values())
    assert not listed & conditional
    for number in range(NEWEST + 1):
        if number not in conditional:
            assert judge(machine, number) == (ALLOW if number in listed else "EPERM"), number
    for number in (NEWEST + 1, 999, 0x3FFF_FFFF):
        assert judge(machine, number) == "ENOSYS"


@pytest.mark.parametrize("machine", MACHINES)
def test_foreign_conventions_kill(machine: str) -> None:
    for architecture in (0x40000003, 0x40000028, 0xC0000015):
        assert judge(machine, 0, architecture=architecture) == KILL
    assert judge(machine, bpf.X32) == KILL
    assert judge(machine, bpf.X32 + 39) == KILL
    assert judge(machine, 0xFFFF_FFFF) == KILL


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("call", "arguments", "outcome"),
    [
        ("clone", (0x003D_0F00,), ALLOW),
        ("clone", (17,), ALLOW),
        ("clone", (0x1000_0011,), "EPERM"),
        ("clone", (0x0200_0011,), "EPERM"),
        ("clone", (0x0002_0011,), "EPERM"),
        ("clone3", (), "ENOSYS"),
        ("ioctl", (0, 0x5401), ALLOW),
        ("ioctl", (0, 0x5412), "EPERM"),
        ("ioctl", (0, 0x1_0000_5412), "EPERM"),
        ("ioctl", (0, 0x541C), "EPERM"),
        ("ioctl", (0, 0x8940), "EPERM"),
        ("ioctl", (0, 0x8983), "EPERM"),
        ("ioctl", (0, 0x89A0), "EPERM"),
        ("ioctl", (0, 0x8914), ALLOW),
        ("io_setup", (1,), "ENOSYS"),
        ("mknodat", (0, 0, 0o010644), ALLOW),
        ("mknodat", (0, 0, 0o140644), ALLOW),
        ("mknodat", (0, 0, 0o020644), "EPERM"),
        ("mknodat", (0, 0, 0o060644), "EPERM"),
        ("mknodat", (0, 0, 0o104755), "EPERM"),
        ("mknod", (0, 0o102755), "EPERM"),
        ("chmod", (0, 0o1777), ALLOW),
        ("chmod", (0, 0o4755), "EPERM"),
        ("fchmod", (0, 0o755), ALLOW),
        ("fchmod", (0, 0o2755), "EPERM"),
        ("fchmodat", (0, 0, 0o6755), "EPERM"),
        ("fchmodat2", (0, 0, 0o4000), "EPERM"),
        ("fchmodat2", (0, 0, 0o700), ALLOW),
        ("creat", (0, 0o644), ALLOW),
        ("creat", (0, 0o4755), "EPERM"),
        # Without O_CREAT and O_TMPFILE what lies in the register means nothing.
        ("open", (0, 0, 0o4755), ALLOW),
        ("open", (0, 0o101, 0o644), ALLOW),
        ("open", (0, 0o101, 0o4755), "EPERM"),
        ("openat", (0, 0, 0, 0o4755), ALLOW),
        ("openat", (0, 0, 0o101, 0o1666), ALLOW),
        ("openat", (0, 0, 0o101, 0o2755), "EPERM"),
        ("openat", (0, 0, 0o2020_0002, 0o4755), "EPERM"),
        ("openat2", (), "ENOSYS"),
        ("personality", (0xFFFF_FFFF,), ALLOW),
        ("personality", (0x0004_0000,), "EPERM"),
        ("prlimit64", (0, 7, 0x7FFF_0000, 0), ALLOW),
        ("prlimit64", (0, 4, 0, 0x7FFF_0000), ALLOW),
        ("prlimit64", (0, 4, 0x7FFF_0000, 0), "0"),
        ("prlimit64", (0, 4, 0x7FFF_0000_0000, 0), "0"),
        ("prlimit64", (0, 4, 0x7FFF_0000, 0x7FFF_0000_0000), "EPERM"),
        ("prlimit64", (1, 7, 0, 0x7FFF_0000), ALLOW),
        ("prlimit64", (1, 7, 0x7FFF_0000, 0), "EPERM"),
        ("prlimit64", (1, 7, 0x7FFF_0000_0000, 0), "EPERM"),
        ("prlimit64", (1, 4, 0x7FFF_0000, 0), "EPERM"),
        ("setrlimit", (7,), ALLOW),
        ("setrlimit", (4,), "0"),
        ("setsockopt", (0, 1, 26), "EPERM"),
        ("setsockopt", (0, 1, 52), "EPERM"),
        ("setsockopt", (0, 1, 27), ALLOW),
        ("setsockopt", (0, 6, 26), ALLOW),
        ("socket", (1, 5, 0), ALLOW),
        ("socket", (2, 0x80801, 6), ALLOW),
        ("socket", (10, 2, 17), ALLOW),
        ("socket", (2, 2, 1), ALLOW),
        ("socket", (10, 2, 58), ALLOW),
        ("socket", (10, 2, 1), "EPERM"),
        ("socket", (2, 1, 262), ALLOW),
        ("socket", (2, 1, 17), "EPERM"),
        ("socket", (2, 2, 6), "EPERM"),
        ("socket", (2, 3, 1), "EPERM"),
        ("socket", (2, 1, 132), "EPERM"),
        ("socket", (2, 6, 0), "EPERM"),
        ("socket", (16, 3, 0), "EAFNOSUPPORT"),
        ("socket", (16, 3, 16), "EAFNOSUPPORT"),
        ("socket", (17, 3, 0), "EAFNOSUPPORT"),
        ("socket", (40, 1, 0), "EAFNOSUPPORT"),
        ("socketpair", (1, 1, 0), ALLOW),
        ("socketpair", (30, 1, 0), "EAFNOSUPPORT"),
    ],
)
def test_calls_that_depend_on_their_arguments(
    machine: str, call: str, arguments: tuple[int, ...], outcome: str
) -> None:
    number = judged(machine).get(call)
    if number is None:
        assert (machine, call) in {("aarch64", each) for each in _OF_X86_64}
        return
    assert judge(machine, number, *arguments) == outcome


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_those_of_libseccomp(machine: str) -> None:
    name = ctypes.util.find_library("seccomp")
    if name is None:
        pytest.skip("libseccomp is not installed")
    resolve = ctypes.CDLL(name).seccomp_syscall_resolve_name_arch
    resolve.argtypes = (ctypes.c_uint32, ctypes.c_char_p)
    known = 0
    for call, number in (allowed(machine) | judged(machine)).items():
        resolved = resolve(bpf.ARCHITECTURES[machine], call.encode())
        if resolved >= 0:
            known += 1
            assert resolved == number, call
    assert known > 200


def test_another_machine_has_no_list() -> None:
    with pytest.raises(OSError, match="no filter for this machine"):
        compile_call_list("riscv64")
