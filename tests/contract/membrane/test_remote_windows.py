"""A child in a sandbox: what it may not do to its caller, and what happens while something ends."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

import membrane
from fairlead.object.v1 import object_pb2, object_pb2_grpc
from membrane import ChildLost, DeadlineExceeded, SessionConflict, UnsupportedUse
from membrane.remote import close_place, isolate_at
from tests.contract.membrane.worker_place import (
    OwnWorker,
    WorkerPlace,
    own_worker,
)
from tests.contract.wire.sandbox_room import TENANT
from tests.eventually import SECONDS

TALKER = "tests.contract.membrane.targets.talker:Talker"


@pytest.fixture(scope="module")
def worker() -> Iterator[OwnWorker]:
    with own_worker() as made:
        yield made


@pytest.fixture(scope="module")
def yard(worker: OwnWorker) -> Iterator[WorkerPlace]:
    """A sandbox that these tests share."""
    made = worker.place()
    yield made
    close_place(made)


def eventually(holds: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < ends_at
        time.sleep(0.02)


class Call(threading.Thread):
    """A call that waits in the child until something ends it."""

    def __init__(self, talker: Any) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.found: BaseException | None = None
        self._talker = talker
        self.start()
        assert self.begun.wait(SECONDS)

    def run(self) -> None:
        try:
            self._talker.wait(self.begun.set)
        except BaseException as error:
            self.found = error

    def ended(self) -> str:
        self.join(SECONDS)
        assert isinstance(self.found, ChildLost)
        return str(self.found)


def test_it_starts_where_programs_start_and_finds_the_workspace_first(yard: WorkerPlace) -> None:
    kind: Any = isolate_at(yard, TALKER)
    assert kind().place() == ("/workspace", "/workspace")
    assert kind.__membrane__.isolation == "walled"
    assert kind.__membrane__.pid != os.getpid()
    kind.close()


def test_what_it_prints_and_reads_is_not_the_stream(yard: WorkerPlace) -> None:
    kind: Any = isolate_at(yard, TALKER)
    talker = kind()
    talker.print()
    assert talker.read() == ""
    assert talker.ping() == "pong"
    kind.close()


def test_large_buffers_travel_in_the_messages(yard: WorkerPlace) -> None:
    kind: Any = isolate_at(yard, TALKER)
    talker = kind()
    assert talker.blob(20_000_000) == bytes(range(256)) * (20_000_000 // 256)
    with pytest.raises(TypeError, match="several calls"):
        talker.blob(70_000_000)
    assert talker.ping() == "pong"
    kind.close()


def test_it_tells_why_it_ended_and_the_next_one_is_fresh(yard: WorkerPlace) -> None:
    kind: Any = isolate_at(yard, TALKER)
    talker = kind()
    with pytest.raises(ChildLost, match="last words"):
        talker.leave(7, "first\nlast words\n")
    ended = yard.carriages[-1].ended
    assert ended is not None
    assert ended.code == 7
    with pytest.raises(ChildLost):
        talker.ping()
    assert kind().ping() == "pong"
    kind.close()


def test_a_close_ends_its_python_and_what_that_started(
    worker: OwnWorker, yard: WorkerPlace
) -> None:
    kind: Any = isolate_at(yard, TALKER)
    kind().start()
    kind.close()
    eventually(lambda: yard.carriages[-1].ended is not None)
    eventually(lambda: not [each for each in worker.below() if is_called(each, "sleep")])


def test_a_released_sandbox_ends_a_call(worker: OwnWorker) -> None:
    place = worker.place()
    kind: Any = isolate_at(place, TALKER)
    call = Call(kind())
    place.release()
    assert "EXIT_REASON_RELEASED" in call.ended()
    with pytest.raises(ChildLost):
        kind()
    kind.close()


def test_a_lost_stream_ends_a_call_and_the_python(worker: OwnWorker, yard: WorkerPlace) -> None:
    kind: Any = isolate_at(yard, TALKER)
    talker = kind()
    talker.start()
    call = Call(talker)
    yard.carriages[-1].call.cancel()
    call.ended()
    eventually(lambda: not [each for each in worker.below() if is_called(each, "sleep")])
    assert kind().ping() == "pong"
    kind.close()


def test_a_killed_worker_ends_a_call_and_nothing_is_left() -> None:
    with own_worker() as worker:
        place = worker.place()
        kind: Any = isolate_at(place, TALKER)
        call = Call(kind())
        below = worker.below()
        assert below
        worker.process.send_signal(signal.SIGKILL)
        call.ended()
        worker.process.wait(SECONDS)
        eventually(lambda: not any(is_living(each) for each in below))
        with pytest.raises(ChildLost):
            kind()
        kind.close()


def test_a_call_is_given_up_while_its_reply_travels(yard: WorkerPlace) -> None:
    kind: Any = isolate_at(yard, TALKER)
    talker = kind()
    pid = kind.__membrane__.pid
    carriage = yard.carriages[-1]
    carriage.goes_on.clear()
    with pytest.raises(DeadlineExceeded):
        talker.blob.with_options(deadline=0.5)(5_000_000)
    carriage.goes_on.set()
    assert talker.ping() == "pong"
    assert kind.__membrane__.pid == pid
    kind.close()


def test_a_call_that_computes_for_ever_is_given_up(yard: WorkerPlace) -> None:
    kind: Any = isolate_at(yard, TALKER)
    talker = kind()
    with pytest.raises(DeadlineExceeded):
        talker.wait.with_options(deadline=0.5)(lambda: None)
    assert talker.ping() == "pong"
    kind.close()


def test_who_reads_slowly_fills_nobodys_memory(worker: OwnWorker, yard: WorkerPlace) -> None:
    kind: Any = isolate_at(yard, TALKER)
    talker = kind()
    talker.blob(1_000_000)
    carriage, room = yard.carriages[-1], psutil.Process(worker.process.pid)
    carriage.goes_on.clear()
    highest = peak(worker)
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(talker.blob(60_000_000)))
    thread.start()
    carriage.came.clear()
    assert carriage.came.wait(SECONDS)
    seen = -1
    while seen != (seen := room.io_counters().read_chars):
        time.sleep(1)
    assert peak(worker) - highest < 40_000_000
    carriage.goes_on.set()
    thread.join(SECONDS)
    assert found == [bytes(range(256)) * (60_000_000 // 256)]
    assert peak(worker) - highest < 40_000_000
    kind.close()


def test_a_sandbox_has_so_many_and_no_more(worker: OwnWorker) -> None:
    place = worker.place()
    program(place, "import os\nos.write(1, b'here')\nwhile os.read(0, 65536): pass")
    carriages = [place.carry("./odd") for _ in range(16)]
    for each in carriages:
        assert each.came.wait(SECONDS)
    with pytest.raises(ChildLost, match="16 Pythons"):
        isolate_at(place, TALKER)
    ended = carriages.pop()
    ended.kill()
    ended.stream.close()
    made: list[Any] = []

    def has_room() -> bool:
        with contextlib.suppress(ChildLost):
            made.append(isolate_at(place, TALKER))
        return bool(made)

    eventually(has_room)
    assert made[0]().ping() == "pong"
    close_place(place)
    place.release()
    for each in carriages:
        each.stream.close()


def test_a_share_key_is_one_of_its_place(yard: WorkerPlace, worker: OwnWorker) -> None:
    kind: Any = isolate_at(yard, TALKER, share_key="one")
    same: Any = isolate_at(yard, TALKER, share_key="one")
    assert same.__membrane__.pid == kind.__membrane__.pid
    with pytest.raises(SessionConflict, match="python"):
        isolate_at(yard, TALKER, share_key="one", python="/usr/bin/python3")
    elsewhere = worker.place()
    other: Any = isolate_at(elsewhere, TALKER, share_key="one")
    assert other().ping() == "pong"
    assert membrane.close_session("one") is False  # of this machine there is none
    close_place(elsewhere)
    assert kind().ping() == "pong"
    with pytest.raises(ChildLost):
        other()
    kind.close()
    same.close()


def test_modules_are_imported_ahead_or_it_is_refused(yard: WorkerPlace) -> None:
    kind: Any = isolate_at(yard, TALKER, preload=["tests.contract.membrane.targets.shop"])
    assert kind().ping() == "pong"
    kind.close()
    with pytest.raises(UnsupportedUse, match="no_such_module"):
        isolate_at(yard, TALKER, preload=["no_such_module"])
    with pytest.raises(ModuleNotFoundError):
        isolate_at(yard, "no_such_module:Talker")


@pytest.mark.parametrize(
    ("pretence", "said"),
    [
        ("sys.version_info = (3, 8, 0)", r"Python 3\.8, and 3\.11 is the least.*python="),
        (
            "sys.modules['msgspec'] = None\n"
            "import importlib.machinery as m\n"
            "m.EXTENSION_SUFFIXES[:] = ['.cpython-399.so']",
            r"without msgspec.*python=",
        ),
    ],
)
def test_a_python_that_cannot_is_refused_with_a_remedy(
    yard: WorkerPlace, pretence: str, said: str
) -> None:
    program(yard, f"import sys\n{pretence}\nexec(sys.argv[2])")
    with pytest.raises(UnsupportedUse, match=said):
        isolate_at(yard, TALKER, python="./odd")


@pytest.mark.parametrize(
    "hostile",
    [
        "say(b'garbage' * 100)",
        "say(piece(0, 0, b'no greeting'))",
        "say(WELL + piece(1, 2, b'a lane of its own'))",
        "say(WELL + piece(2, 1, struct.pack('<I', 2**32 - 1) + bytes(100)))",
        "say(WELL + piece(2, 1, reply([3, 100, []])))",
        "say(WELL + piece(2, 1, reply([1, 99, None, None, []])))",
        "sys.exit('nothing to say')",
        "say(WELL)\nwhile True: say(piece(2, 1, bytes(60000)))",
    ],
)
def test_a_hostile_python_ends_its_own_session_only(yard: WorkerPlace, hostile: str) -> None:
    program(
        yard,
        "import json, os, struct, sys\n"
        "def say(content):\n    while content: content = content[os.write(1, content):]\n"
        "def piece(kind, lane, content):\n"
        "    return struct.pack('<BII', kind, lane, len(content)) + content\n"
        "def reply(message):\n"
        "    content = bytes([0x90 + len(message)]) + b''.join(\n"
        "        b'\\xc0' if each is None else b'\\x90' if each == [] else bytes([each])\n"
        "        for each in message)\n"
        "    return struct.pack('<I', len(content)) + content\n"
        "WELL = piece(0, 0, json.dumps({'wire': 1, 'pid': 1}).encode())\n"
        f"{hostile}\n"
        "while os.read(0, 65536): pass\n",
    )
    with pytest.raises(membrane.MembraneError):
        isolate_at(yard, TALKER, python="./odd")
    kind: Any = isolate_at(yard, TALKER)
    assert kind().ping() == "pong"
    kind.close()


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([object_pb2.AttachObjectsRequest(content=b"first")], "OBJECTS_FRAME_INVALID"),
        ([], "OBJECTS_FRAME_INVALID"),
        (["open", object_pb2.AttachObjectsRequest()], "OBJECTS_FRAME_INVALID"),
        (["open", "open"], "OBJECTS_FRAME_INVALID"),
        (["open", bytes(1024 * 1024 + 1)], "OBJECTS_FRAME_INVALID"),
        (["foreign"], "SANDBOX_NOT_FOUND"),
        (["nul"], "ARGUMENT_INVALID"),
    ],
)
def test_a_client_that_speaks_out_of_order_is_told_so(
    worker: OwnWorker, yard: WorkerPlace, frames: list[Any], reason: str
) -> None:
    opened = object_pb2.OpenObjects(tenant=TENANT, sandbox_id=yard.sandbox_id)
    named = {
        "open": opened,
        "foreign": object_pb2.OpenObjects(tenant="other", sandbox_id=yard.sandbox_id),
        "nul": object_pb2.OpenObjects(tenant=TENANT, sandbox_id=yard.sandbox_id, python="a\0"),
    }
    requests = [
        object_pb2.AttachObjectsRequest(open=named[each])
        if isinstance(each, str)
        else object_pb2.AttachObjectsRequest(content=each)
        if isinstance(each, bytes)
        else each
        for each in frames
    ]
    stub = object_pb2_grpc.ObjectServiceStub(worker.channel)
    with pytest.raises(grpc.RpcError) as refused:
        list(stub.AttachObjects(iter(requests), timeout=SECONDS))
    assert reason in repr(refused.value.trailing_metadata())


def program(place: WorkerPlace, text: str) -> Path:
    """Put a program where a Python is looked for."""
    path = place.tree / "odd"
    path.write_text(f"#!/usr/bin/python3\n{text}", encoding="utf-8")
    path.chmod(0o755)
    return path


def peak(worker: OwnWorker) -> int:
    """The most memory that the worker has had, in bytes (proc(5), VmHWM)."""
    for line in Path(f"/proc/{worker.process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not say")


def is_called(process: psutil.Process, name: str) -> bool:
    try:
        return process.name() == name and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_living(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
