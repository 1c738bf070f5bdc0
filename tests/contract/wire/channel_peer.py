"""`python -m tests.contract.wire.channel_peer FOLDER [WIRE]`: all but the gateway, for an exchange.

Signalling is a Unix socket in FOLDER, and so is the gateway's address for workers: a gateway in
another network namespace finds them, and only the association crosses the network. Prints what it
saw as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterable

from fairlead.gateway.v1 import gateway_pb2 as pb
from fairlead_sdk.forwarding import forward, open_tunnel
from fairlead_tunnel.native_core import NativeCore
from tests.eventually import SECONDS
from tests.fakes.port_worker import open_servers, open_worker
from tests.fakes.scripted_sessions import ScriptedSessions
from tests.fakes.scripted_signalling import ScriptedSignalling, serve_signalling


def addresses(description: str, candidates: Iterable[str]) -> list[str]:
    """Return the addresses of candidates, inside a description or after it, sorted."""
    lines = [line.removeprefix("a=") for line in (*description.splitlines(), *candidates)]
    return sorted({line.split()[4] for line in lines if line.startswith("candidate:")})


async def exchange(signalling: ScriptedSignalling, port: int) -> dict[str, object]:
    content = os.urandom(500_000)
    async with forward(ScriptedSessions(signalling), "lch_test", port) as local:
        reader, writer = await asyncio.open_connection(local.host, local.port)
        writer.write(content)
        writer.write_eof()
        echoed = await reader.read()
        writer.close()
        (wanted,) = signalling.wanted.values()
        (answered,) = signalling.answers.values()
        told = [said for said in signalling.said if isinstance(said, pb.CandidatesFound)]
        found = [candidate for said in told for candidate in said.candidates]
    return {
        "whole": echoed == content,
        "offered": addresses(wanted.offer, wanted.candidates),
        "answered": addresses(answered.answer, found),
    }


async def interrupted(signalling: ScriptedSignalling, port: int, wire: str) -> dict[str, object]:
    """Exchange over a wire that is down until the client has noticed."""
    content = os.urandom(500_000)
    core = NativeCore(silence=4.0)
    async with open_tunnel(ScriptedSessions(signalling), "lch_test", core=core) as tunnel:
        local = await tunnel.listen(port)
        reader, writer = await asyncio.open_connection(local.host, local.port)
        writer.write(content[:250_000])
        echoed = await reader.readexactly(250_000)
        await set_wire(wire, "down")
        writer.write(content[250_000:])
        writer.write_eof()
        await tunnel._session._pulse.until(lambda: not tunnel._session.is_connected)
        await set_wire(wire, "up")
        echoed += await reader.read()
        writer.close()
        return {"whole": echoed == content, "restarted": tunnel._session.round > 1}


async def set_wire(wire: str, state: str) -> None:
    done = await asyncio.create_subprocess_exec("ip", "link", "set", wire, state)
    assert await done.wait() == 0


async def main(folder: str, wire: str = "") -> None:
    async with (
        asyncio.timeout(SECONDS),
        open_servers() as servers,
        open_worker() as worker,
        serve_signalling(worker, f"unix:{folder}/signalling.sock") as signalling,
    ):
        await signalling.until(lambda: signalling.is_connected, SECONDS)
        if wire:
            seen = await interrupted(signalling, servers.echo, wire)
        else:
            seen = await exchange(signalling, servers.echo)
        sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
