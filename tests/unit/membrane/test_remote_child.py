"""A child elsewhere as far as its stream goes: what it says of itself, and what ends it."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Iterator

import pytest

from membrane import multiplex
from membrane.errors import ChildLost, MembraneError, UnsupportedUse
from membrane.multiplex import WIRE, Greeting, Pieces
from membrane.remote_child import RemoteChild, RemoteSpec
from membrane.service import service

SECONDS = 30.0


class Yard:
    """A place, and the carriage of its one child; `far` is where that child would be."""

    name = "a yard"
    isolation = "walled"
    fault = "the yard was closed"
    refusal: MembraneError | None = None

    def __init__(self) -> None:
        self.stream, self.far = socket.socketpair()
        self.far.settimeout(SECONDS)
        self.kills = 0

    def carry(self, python: str) -> Yard:
        return self

    def kill(self) -> None:
        self.kills += 1


@pytest.fixture
def yard() -> Iterator[Yard]:
    made = Yard()
    yield made
    made.far.close()


@pytest.fixture
def child(yard: Yard) -> Iterator[RemoteChild]:
    spec = RemoteSpec(place=yard, python="python3", path=("lib",), preload=("json",))
    made = RemoteChild(spec=spec, service=service())
    yield made
    made.control.close()
    made.lane.close()


def ends(child: RemoteChild) -> bool:
    """Wait for the end of its control."""
    child.control.settimeout(SECONDS)
    return child.control.recv(100) == b""


def test_it_is_told_what_is_wanted_and_tells_what_it_is(yard: Yard, child: RemoteChild) -> None:
    pieces = Pieces()
    while (found := pieces.next()) is None:
        pieces.add(yard.far.recv(1 << 16))
    start = multiplex.read_start(found[2])
    assert (start.wire, start.path, start.preload) == (WIRE, ["lib"], ["json"])
    assert start.isolation == "walled"
    yard.far.sendall(multiplex.greeting(Greeting(wire=WIRE, pid=7, numpy=True)))
    assert child.pid == 7
    assert child.has_numpy == (importlib.util.find_spec("numpy") is not None)
    assert not child.is_gone()
    yard.far.shutdown(socket.SHUT_RDWR)
    assert ends(child)
    assert child.fault == "the yard was closed"
    assert yard.kills == 0


def test_without_numpy_there_it_has_none(yard: Yard, child: RemoteChild) -> None:
    yard.far.sendall(multiplex.greeting(Greeting(wire=WIRE, pid=7, numpy=False)))
    child.wait_born()
    assert not child.has_numpy


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (Greeting(wire=WIRE + 1, pid=7), f"version {WIRE + 1}.*same version of Fairlead"),
        (Greeting(unsupported="it is too old"), "too old"),
        (Greeting(wire=WIRE, unprepared="no such module"), "no such module.*preload"),
    ],
)
def test_one_that_cannot_be_a_child_is_refused(
    yard: Yard, child: RemoteChild, told: Greeting, said: str
) -> None:
    yard.far.sendall(multiplex.greeting(told))
    assert ends(child)
    with pytest.raises(ChildLost):
        _ = child.pid
    assert isinstance(child.refusal, UnsupportedUse)
    with pytest.raises(UnsupportedUse, match=said):
        raise child.refusal
    assert yard.kills == 1


def test_one_that_breaks_the_protocol_is_killed(yard: Yard, child: RemoteChild) -> None:
    yard.far.sendall(b"\xff" * 100)
    assert ends(child)
    assert yard.kills == 1
    assert "protocol" in child.fault
    assert child.refusal is None
