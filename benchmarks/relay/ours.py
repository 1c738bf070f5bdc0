"""Our tunnels: a stack whose gateway dials the load tool's target, and `fairlead forward`."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.local_stack import Stack, local_stack
from benchmarks.relay.peers import Peer, Tunnel, free_port, running
from benchmarks.sessions.whole import held_launch

_HERE = "127.0.0.1"


@asynccontextmanager
async def our_tunnels(target: int) -> AsyncIterator[list[Peer]]:
    """Run a stack in the block, and return what can be opened on it."""
    settings = {
        "FAIRLEAD_RELAY_TARGETS": f"{_HERE}:{target}",
        "FAIRLEAD_RELAY_CHANNELS_PER_SESSION": "1024",
    }
    with local_stack(**settings) as stack:
        async with held_launch(stack) as launch:
            yield [Peer("python", True, lambda port: _forward(stack, launch.launch_id, port))]


@asynccontextmanager
async def _forward(stack: Stack, launch_id: str, target: int) -> AsyncIterator[Tunnel]:
    near = free_port()
    way = f"{near}:{_HERE}:{target}"
    words = (sys.executable, "-m", "fairlead_sdk", "forward", launch_id, way)
    settings = os.environ | {"FAIRLEAD_URL": stack.url, "FAIRLEAD_API_KEY": stack.api_key}
    async with running(*words, port=near, environment=settings) as pid:
        yield Tunnel(f"{_HERE}:{near}", (stack.pids["relay-gateway"], pid))
