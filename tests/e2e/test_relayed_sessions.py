"""Sessions through a real coturn: both ends have nothing but what signalling hands out."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fairlead_sdk import Fairlead
from tests.coturn import SECRET, Coturn, coturn_server
from tests.e2e.running_stack import RunningStack, places, running_stack
from tests.e2e.test_sessions import CONTENT, TRICKLES, received
from tests.e2e.test_sessions import serving as started


@dataclass(frozen=True, slots=True)
class Relayed:
    """A stack whose sessions may go through a relay, and be sealed."""

    stack: RunningStack
    coturn: Coturn
    seal_secret_file: Path


@pytest.fixture(scope="module")
def relayed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relayed]:
    directory = tmp_path_factory.mktemp("relay")
    with coturn_server(directory, "--verbose") as coturn, places() as where:
        turn, seal = directory / "turn-secret", directory / "seal-secret"
        turn.write_text(SECRET)
        seal.write_text(bytes(range(32)).hex())
        where.extra = {
            "FAIRLEAD_SIGNALLING_TURN_URLS": coturn.turn_url(),
            "FAIRLEAD_SIGNALLING_TURN_SECRET_FILE": str(turn),
            "FAIRLEAD_RELAY_SEAL_SECRET_FILE": str(seal),
        }
        with running_stack(where) as stack:
            yield Relayed(stack, coturn, seal)


@pytest.mark.parametrize("mode", ["complete", *(["trickle"] if TRICKLES else [])])
def test_bytes_go_through_the_relay_unharmed_where_there_is_no_other_path(
    relayed: Relayed, mode: str
) -> None:
    stack = relayed.stack
    with Fairlead(url=stack.url, api_key=stack.api_key) as fairlead:
        sandbox = fairlead.sandboxes.create()
        with (
            fairlead.sessions.open(sandbox.sandbox_id, mode=mode, ice_policy="relay") as session,
            session.forward(remote_port=started(sandbox)) as local,
            socket.create_connection((local.host, local.port), timeout=60) as inside,
        ):
            assert fairlead.sessions.get(session.session_id).ice_policy == "relay"
            got = b""
            for start in range(0, len(CONTENT), 50_000):
                inside.sendall(CONTENT[start : start + 50_000])
                got += received(inside, len(CONTENT[start : start + 50_000]))
            assert hashlib.sha256(got).digest() == hashlib.sha256(CONTENT).digest()
        sandbox.release()
    # Client and gateway have an allocation each, under the name that signalling made for both.
    lines = relayed.coturn.log.read_text(errors="replace").splitlines()
    made = [line for line in lines if session.session_id in line and "ALLOCATE processed" in line]
    assert len([line for line in made if "success" in line]) >= 2, made


def test_a_sealed_forward_goes_on_in_the_background(relayed: Relayed) -> None:
    stack = relayed.stack
    with Fairlead(url=stack.url, api_key=stack.api_key) as fairlead:
        sandbox = fairlead.sandboxes.create()
        sealed = ("--seal-secret-file", str(relayed.seal_secret_file))
        where = (sandbox.sandbox_id, f"0:{started(sandbox)}")
        begun = stack.cli("forward", "--detach", "-o", "json", *sealed, *where)
        assert begun.returncode == 0, begun.stdout + begun.stderr
        made = json.loads(begun.stdout)
        with socket.create_connection(("127.0.0.1", made["port"]), timeout=60) as inside:
            inside.sendall(CONTENT[:50_000])
            assert received(inside, 50_000) == CONTENT[:50_000]
        assert stack.cli("forward", "--stop", made["session_id"]).returncode == 0
        relayed.seal_secret_file.with_name("other").write_text("00" * 32)
        other = str(relayed.seal_secret_file.with_name("other"))
        refused = stack.cli("forward", "-o", "json", "--seal-secret-file", other, *where)
        assert json.loads(refused.stdout)["reason"] == "seal_refused"
        sandbox.release()
