"""Associations where there is only loopback, and between two machines (network namespaces)."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict

import pytest

from tests.eventually import SECONDS

ROOT = Path(__file__).parents[3]

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="making network namespaces needs root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="needs ip(8) of iproute2"),
]


def ip(*words: str) -> None:
    subprocess.run(("ip", *words), check=True, capture_output=True, timeout=10)


@contextmanager
def namespaces(count: int) -> Iterator[list[str]]:
    """Make namespaces whose loopback is up, or skip where the kernel does not allow them."""
    names = [f"fairlead-{secrets.token_hex(4)}" for _ in range(count)]
    made: list[str] = []
    try:
        for name in names:
            try:
                ip("netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
            made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in made:
            ip("netns", "delete", name)


class Seen(TypedDict, total=False):
    """Whether the content came back whole, the addresses in offer and answer, and whether there was
    a restart.
    """

    whole: bool
    restarted: bool
    offered: list[str]
    answered: list[str]


def exchanged(gateway_in: str, client_in: str, *, wire: str = "") -> Seen:
    """Run a gateway in one namespace and the rest in another; return what the client saw."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "FAIRLEAD_RELAY_SIGNALLING": f"unix:{folder}/signalling.sock",
            "FAIRLEAD_RELAY_HTTP_BIND": "127.0.0.1:0",
            "FAIRLEAD_RELAY_TCP_BIND": "127.0.0.1:0",
            "FAIRLEAD_RELAY_WORKERS_BIND": f"unix:{folder}/relay.sock",
        }
        enter = ("ip", "netns", "exec")
        gateway = subprocess.Popen(
            (*enter, gateway_in, sys.executable, "-m", "relay_gateway"),
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            peer = (sys.executable, "-m", "tests.contract.wire.channel_peer", folder, wire)
            done = subprocess.run(
                (*enter, client_in, *peer),
                env=environment,
                cwd=ROOT,
                check=True,
                capture_output=True,
                timeout=SECONDS,
            )
            seen: Seen = json.loads(done.stdout)
        finally:
            gateway.terminate()
            status = gateway.wait(15)
        assert status == 0
        return seen


def test_a_machine_with_loopback_only() -> None:
    with namespaces(1) as (alone,):
        seen = exchanged(alone, alone)
    assert seen["whole"]
    assert set(seen["offered"]) <= {"127.0.0.1", "::1"}
    assert seen["offered"] == seen["answered"]


@contextmanager
def two_machines() -> Iterator[tuple[str, str, str]]:
    """Give two namespaces and the device by which both are joined."""
    with namespaces(2) as (here, there):
        wire = f"fl{secrets.token_hex(4)}"
        ip("-n", here, "link", "add", wire, "type", "veth", "peer", "name", wire, "netns", there)
        for name, address in ((here, "198.51.100.1/24"), (there, "198.51.100.2/24")):
            ip("-n", name, "address", "add", address, "dev", wire)
            ip("-n", name, "link", "set", wire, "up")
        yield here, there, wire


def test_two_machines_on_one_network() -> None:
    with two_machines() as (here, there, _):
        seen = exchanged(gateway_in=here, client_in=there)
    assert seen == {"whole": True, "offered": ["198.51.100.2"], "answered": ["198.51.100.1"]}


@pytest.mark.skipif(find_spec("fairlead_native") is None, reason="only the native core restarts")
def test_a_network_that_is_away_for_a_while_harms_no_byte() -> None:
    with two_machines() as (here, there, wire):
        seen = exchanged(gateway_in=here, client_in=there, wire=wire)
    assert seen == {"whole": True, "restarted": True}
