"""GooseRelayVPN, from the checkout that `GOOSE_PATH` names (github.com/kianmhz/GooseRelayVPN), and
ours over HTTP beside it.
"""

from __future__ import annotations

import json
import os
import secrets
import statistics
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.recording import QUICK, Recording
from benchmarks.relay.bulk import rate
from benchmarks.relay.go_program import built
from benchmarks.relay.load import ContentWrong, Load
from benchmarks.relay.ours import our_stack, pumps
from benchmarks.relay.peers import free_port, running

ROUNDS = 1 if QUICK else 3
_HERE = "127.0.0.1"
_BYTES = 1_000_000 if QUICK else 8_000_000
"""So much its own benchmark moves: longer transfers end before they are whole."""
_WAYS = ("up", "down")


def goose_path(notes: list[str]) -> Path | None:
    """Return its checkout, or None and a note that says what to do about it."""
    path = os.environ.get("GOOSE_PATH", "")
    if path and (Path(path) / "cmd" / "server").is_dir():
        return Path(path).resolve()
    notes.append(
        "GooseRelayVPN was not measured: set GOOSE_PATH to a checkout of"
        " github.com/kianmhz/GooseRelayVPN"
    )
    return None


@asynccontextmanager
async def _goose(checkout: Path, target: int) -> AsyncIterator[str]:
    """Run its client and its server, without anything in between; yields the target's address."""
    middle, near, key = free_port(), free_port(), secrets.token_hex(32)
    server = {"server_host": _HERE, "server_port": middle, "tunnel_key": key}
    client = {
        "socks_host": _HERE,
        "socks_port": near,
        "relay_urls": [f"http://{_HERE}:{middle}/tunnel"],
        "tunnel_key": key,
    }
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as directory:
        files = {"server": Path(directory) / "server", "client": Path(directory) / "client"}
        files["server"].write_text(json.dumps(server))
        files["client"].write_text(json.dumps(client))
        async with (
            built(checkout, "./cmd/server") as server_program,
            built(checkout, "./cmd/client") as client_program,
            running(server_program, "-config", str(files["server"]), port=middle),
            running(client_program, "-config", str(files["client"]), port=near),
        ):
            yield f"socks5:{_HERE}:{near},{_HERE}:{target}"


async def _goose_rate(load: Load, way: str, address: str) -> float | None:
    """Return its MB a second one way; None when nothing whole arrived."""
    try:
        return _BYTES / (await load.move(way, address, 1, _BYTES)).seconds / 1e6
    except ContentWrong:
        return None


async def beside_goose(recording: Recording, load: Load) -> None:
    """Measure bytes one way in one session, with HTTP between client and gateway on both."""
    checkout = goose_path(recording.notes)
    if checkout is None:
        return
    pump, http = pumps()[0], f"{_HERE}:{free_port()}"
    mine: dict[str, list[float]] = defaultdict(list)
    theirs: dict[str, list[float]] = defaultdict(list)
    failures = 0
    settings = {
        "FAIRLEAD_RELAY_HTTP_BIND": http,
        "FAIRLEAD_RELAY_PUBLIC_URLS": f"http://{http}",
    }
    async with (
        our_stack(load.target, pump=pump, **settings) as ours,
        ours.peer.opened(load.target) as tunnel,
        _goose(checkout, load.target) as address,
    ):
        for _ in range(ROUNDS):
            for way in _WAYS:
                mine[way].append((await rate(load, way, tunnel.address, 1))[0])
                moved = await _goose_rate(load, way, address)
                if moved is None:
                    failures += 1
                else:
                    theirs[way].append(moved)
    recording.notes.append(
        f"{pump}_vs_goose is the lower one of up and down in one session, both past their HTTP"
        f" carriers; GooseRelayVPN moves {_BYTES // 1_000_000} MB, as in its own benchmark;"
        f" {failures} of its {2 * ROUNDS} transfers did not arrive whole"
    )
    ratios = []
    for way in _WAYS:
        speed = statistics.median(mine[way])
        recording.metrics[f"{pump}_http_{way}_1"] = round(speed, 2)
        if theirs[way]:
            beaten = statistics.median(theirs[way])
            recording.peers[f"goose_{way}_1"] = round(beaten, 2)
            ratios.append(speed / beaten)
    if len(ratios) == len(_WAYS):
        recording.metrics[f"{pump}_vs_goose"] = round(min(ratios), 2)
