"""What the supervisor asks of the machine: ports, a health check spoken by hand, and the doctor."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from devstack.health import grpc_serves, http_answer
from devstack.ports import LOOPBACK, PortReservation, is_free
from fairlead_tunnel.cores import preferred_core
from tests.e2e.running_stack import DEVSTACK, ROOT, Places, RunningStack
from tests.eventually import SECONDS

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def test_two_reservations_never_share_a_port() -> None:
    wanted = free_port()
    first, second = PortReservation(), PortReservation()
    try:
        assert first.pick(wanted) == wanted
        other = second.pick(wanted)
        assert other != wanted
        assert (other - wanted) % 100 == 0
    finally:
        first.close()
    try:
        assert second.pick(wanted) == wanted
    finally:
        second.close()


def test_a_port_is_taken_while_somebody_listens() -> None:
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        other.listen()
        port = other.getsockname()[1]
        assert not is_free(port)
        reservation = PortReservation()
        assert reservation.pick(port) != port
        reservation.close()
    assert is_free(port)


@pytest.mark.parametrize(("status", "answer"), [(SERVING, True), (NOT_SERVING, False)])
@pytest.mark.asyncio
async def test_the_health_check_agrees_with_the_real_service(
    own_places: Places, status: int, answer: bool
) -> None:
    bind = f"unix:{own_places.root}/h.sock"
    server = grpc.aio.server()
    servicer = health.aio.HealthServicer()
    await servicer.set("", health_pb2.HealthCheckResponse.ServingStatus.ValueType(status))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(bind)
    port = server.add_insecure_port(f"{LOOPBACK}:0")
    assert not await grpc_serves(bind)
    await server.start()
    try:
        assert await grpc_serves(bind) is answer
        assert await grpc_serves(f"0.0.0.0:{port}") is answer
    finally:
        await server.stop(0)


@pytest.mark.asyncio
async def test_what_does_not_speak_the_protocol_does_not_serve() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(8)
        writer.write(b"HTTP/1.0 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, LOOPBACK, 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert not await grpc_serves(f"{LOOPBACK}:{port}")
        assert await http_answer(f"http://{LOOPBACK}:{port}/") == (400, b"")
    assert await http_answer(f"http://{LOOPBACK}:{port}/") == (0, b"")


def doctor(where: Places, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DEVSTACK, "doctor", *arguments],
        env=where.environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_the_doctor_names_every_ability(own_places: Places) -> None:
    answer = doctor(own_places, "-o", "json")
    findings = {finding["name"]: finding for finding in json.loads(answer.stdout)}
    assert set(findings) == {
        "python",
        "git",
        "git wall",
        "redis",
        "namespaces",
        "overlay",
        "walls",
        "webrtc",
        "docker",
        "ports",
        "state",
        "disk",
    }
    assert findings["redis"]["verdict"] == "ok"
    assert findings["state"]["found"] == str(own_places.state)
    assert preferred_core().name in findings["webrtc"]["found"]
    assert all(finding["remedy"] for finding in findings.values() if finding["verdict"] != "ok")
    assert answer.returncode == 0


def test_the_doctor_fails_when_something_needed_is_missing(own_places: Places) -> None:
    (own_places.root / "file").touch()
    own_places.extra = {"FAIRLEAD_STATE": f"{own_places.root}/file/s", "PATH": "/nowhere"}
    answer = doctor(own_places)
    assert answer.returncode == 1
    assert "missing  git" in answer.stdout
    assert "missing  state" in answer.stdout
    assert "FAIRLEAD_STATE=" in answer.stdout


def test_the_doctor_says_which_ports_are_taken(stack: RunningStack) -> None:
    answer = doctor(stack.places)
    assert answer.returncode == 0
    port = stack.url.rpartition(":")[2]
    assert (f"{port}" in answer.stdout and "taken; `up`" in answer.stdout) or port != "7300"
