"""What a hostile child makes the caller's process allocate, tried by a real one."""

from __future__ import annotations

import array
import io
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import membrane
from membrane import growth
from membrane.growth import weigh
from tests.contract.membrane.conftest import ROOT, SHOP, Isolate

SMALL = 1 << 20
REFUSALS = ("GrowthRefused", "AccessRefused")


class Name(str):
    """Text that goes by handle."""


class Number(int):
    """An int that goes by handle."""


class Queued(deque[object]):
    """A class of the caller that is built in C."""


class Buffer(bytearray):
    """Another one."""


class Kept:
    """One that keeps what it is made of."""

    def __init__(self, value: object) -> None:
        self.value = value


EXPOSED = (
    *("__add__", "__mul__", "__rmul__", "__imul__", "__pow__", "__rpow__", "__lshift__"),
    *("__mod__", "__format__", "__round__", "__setitem__", "append", "extend", "appendleft"),
    *("update", "setdefault", "write", "seek", "replace", "join", "zfill", "ljust", "center"),
    *("format", "expandtabs", "to_bytes", "writelines", "frombytes", "translate"),
)
RUN = """
try:
    {attack}
    result = 'went through'
except Exception as error:
    result = getattr(error, 'remote_type', type(error).__name__)
"""

# What each passes, by reference, and what its child does with it.
ATTACKS: list[tuple[str, Callable[[], object]]] = [
    ("for _ in range(40): it.extend(it)", lambda: [0]),
    ("for _ in range(40): it.__iadd__(it)", lambda: [0]),
    ("for _ in range(40): it[0:0] = it", lambda: [0]),
    ("for _ in range(10**6): it.append('x' * 10**5)", list),
    ("it.extend(range(10**12))", list),
    ("for _ in range(40): it.extend(iter(it))", lambda: [0] * 4),
    ("it.extend(x for x in __import__('itertools').count())", list),
    ("it.extend('x' * 10**7)", list),
    ("it.extend(bytes(10**7))", list),
    ("it[:] = range(10**12)", list),
    ("for n in range(10**6): it.insert(0, (n,) * 10**4)", list),
    ("it.extend.batch([((it,), {})] * 40).values()", lambda: [0]),
    ("it.copy.batch([((), {})] * 10**3).values()", lambda: [0] * 10**4),
    ("for _ in range(40): it.extend(it)", lambda: bytearray(8)),
    ("for _ in range(40): it[0:0] = it", lambda: bytearray(8)),
    ("it.replace(b'', b'x' * 10**6)", lambda: bytearray(8)),
    ("it.ljust(10**12)", lambda: bytearray(8)),
    ("it.join([b'x' * 10**5] * 10**3)", lambda: bytearray(10**5)),
    ("it.update(range(10**12))", set),
    ("it |= set(range(10**6))", set),
    ("it.update(dict.fromkeys(range(10**6)))", dict),
    ("for n in range(10**6): it.setdefault(n, 'x' * 10**5)", dict),
    ("for n in range(10**6): it[n] = 'x' * 10**5", dict),
    ("it.update(zip(range(10**9), range(10**9)))", dict),
    ("__import__('operator').mul(it, 10**12)", lambda: [0]),
    ("for _ in range(40): it.extend(it)", lambda: deque([0])),
    ("it * 10**12", lambda: deque([0])),
    ("for _ in range(40): it.extend(it)", lambda: array.array("d", [0.0])),
    ("it * 10**12", lambda: array.array("d", [0.0])),
    ("for n in range(10**6): it[n] = 'x' * 10**5", OrderedDict),
    ("for _ in range(10**6): it.write('x' * 10**5)", io.StringIO),
    ("it.seek(10**12); it.write(b'x')", io.BytesIO),
    ("it * 10**12", lambda: Name("x")),
    ("it.replace('x', 'y' * 10**7)", lambda: Name("x")),
    ("it.join(['y' * 10**5] * 100)", lambda: Name("x")),
    ("it.zfill(10**12)", lambda: Name("x")),
    ("it.center(10**12)", lambda: Name("x")),
    ("it.expandtabs(10**12)", lambda: Name("\t")),
    ("it.format(10**6)", lambda: Name("{0:{0}}")),
    ("it % (10**9, 1)", lambda: Name("%*d")),
    ("format(it, '1000000000000')", lambda: Number(1)),
    ("it ** 10**9", lambda: Number(7)),
    ("it << 10**12", lambda: Number(7)),
    ("round(it, -10**12)", lambda: Number(7)),
    ("it.to_bytes(10**12, 'big')", lambda: Number(7)),
    ("for _ in range(10**6): it('x' * 10**5)", lambda: [].append),
    ("it(range(10**12))", lambda: [].extend),
    ("it(10**12)", lambda: "x".ljust),
    ("it(range(10**12))", lambda: Queued),
    ("it(10**12)", lambda: Buffer),
    ("it('d', range(10**12))", lambda: array.array),
    ("kept = [it('x' * 10**5) for _ in range(10**4)]", lambda: Kept),
]


@pytest.fixture(scope="module")
def hostile() -> Iterator[Any]:
    kind = membrane.isolate(f"{SHOP}:Shop", paths=[str(ROOT)], isolation="process", expose=EXPOSED)
    yield kind()
    membrane.close(kind)


@pytest.mark.parametrize(
    ("attack", "make"),
    ATTACKS,
    ids=[f"{attack}-{number}" for number, (attack, _) in enumerate(ATTACKS)],
)
def test_an_attack_on_the_callers_memory_is_refused(
    hostile: Any,
    attack: str,
    make: Callable[[], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("MOST_GROWN", "MOST_RESULT", "MOST_COPIED"):
        monkeypatch.setattr(growth, name, SMALL)
    victim = make()
    code = RUN.format(attack=attack)
    run = hostile.run.with_options(policy="reference", returns="value")
    # What is not on the list of a built-in container is refused as any other name.
    assert run(code, it=victim) in (
        "membrane.errors.GrowthRefused",
        "membrane.errors.AccessRefused",
    )
    owner = getattr(victim, "__self__", victim)
    assert weigh((owner,), 1 << 30) < 2 * SMALL


def test_the_size_is_that_of_a_session_and_what_is_taken_out_is_given_back(
    isolate: Isolate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "MOST_GROWN", SMALL)
    shop = isolate("Shop", policy="reference")()
    run = shop.run.with_options(returns="value")
    first, second = [], []  # type: list[object], list[object]
    add = "for n in range(6): it.append('x' * 10**5)"
    assert run(add, it=first) is None
    with pytest.raises(membrane.GrowthRefused, match="MiB"):
        run(f"keep = other\n{add}", it=second, other=first)
    # The child holds both: together they are too much, until the caller has emptied one.
    shop.keep([first, second])
    second.clear()
    first.clear()
    for _ in range(5):
        assert run(f"{add}\nit.clear()", it=second) is None


def test_a_doubling_list_ends_before_it_takes_what_the_process_has(isolate: Isolate) -> None:
    shop = isolate("Shop", policy="reference")()
    victim: list[object] = [0]
    code = "for n in range(28):\n    it.extend(it)"
    with pytest.raises(membrane.GrowthRefused) as raised:
        shop.run(code, it=victim)
    assert (raised.value.operation, raised.value.kind) == ("extend", "list")
    assert len(victim) * 8 < 64 << 20
    assert shop.ping() == 1


def test_a_child_that_never_lets_go_of_errors_or_objects_ends(
    isolate: Isolate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("membrane.host.MOST_HELD", 500)
    kind = isolate("Shop", policy="reference")
    code = (
        "kept = []\n"
        "while True:\n"
        "    try:\n        it.pop()\n"
        "    except Exception as error:\n        kept.append(error)\n"
    )
    with pytest.raises((membrane.ProtocolError, membrane.ChildLost)):
        kind().run(code, it=[])
    with pytest.raises((membrane.ProtocolError, membrane.ChildLost)):
        kind().run("kept = []\nwhile True: kept.append(iter(it))", it=[])


def test_errors_that_a_child_keeps_hold_nothing_of_the_callers_calls(isolate: Isolate) -> None:
    seen: list[BaseException] = []

    def refuse(content: bytes) -> None:
        seen.append(KeyError(len(content)))
        raise seen[-1]

    code = (
        "kept = []\n"
        "for _ in range(20):\n"
        "    try:\n        it(bytes(10))\n"
        "    except Exception as error:\n        kept.append(error)\n"
    )
    isolate("Shop")().run(code, it=refuse)
    kept = 0
    for error in seen:
        trace = error.__traceback__
        while trace is not None:
            kept += "content" in trace.tb_frame.f_locals
            trace = trace.tb_next
    assert len(seen) == 20
    assert 0 < kept <= 8


def test_a_child_has_so_much_memory_and_says_when_it_is_used_up(isolate: Isolate) -> None:
    shop = isolate("Shop", memory_bytes=256 << 20)()
    with pytest.raises(membrane.MemoryExceeded, match="memory_bytes") as raised:
        shop.run("kept = [bytes(1 << 20) for _ in range(1 << 20)]")
    assert isinstance(raised.value, MemoryError)
    assert shop.ping() == 1
    # What it cannot do is to lift the limit.
    code = "import resource\nresource.setrlimit(resource.RLIMIT_DATA, (-1, -1))\nbytes(1 << 30)"
    if shop.see("__import__('os').getuid()"):
        with pytest.raises((ValueError, MemoryError)):
            shop.run(code)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "1G", 1 << 63])
def test_a_limit_of_memory_is_a_number_of_bytes(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="memory_bytes"):
        membrane.isolate(f"{SHOP}:Shop", memory_bytes=wrong)
