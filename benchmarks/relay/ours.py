"""Our tunnels: a stack whose gateway dials the load tool's target, and `fairlead forward`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.local_stack import Stack, local_stack
from benchmarks.relay.peers import Peer, Tunnel, free_port, running
from benchmarks.sessions.whole import held_launch

_HERE = "127.0.0.1"
_PUMP = "FAIRLEAD_TUNNEL_PUMP"
_THREAD = "fairlead-pump"


class OtherPump(Exception):
    """A process does not pump its tunnels by what it was told to."""


def pumps() -> Sequence[str]:
    """Return what may pump tunnels here, the one that is preferred first."""
    has_native = importlib.util.find_spec("fairlead_native") is not None
    return ("native", "python") if has_native else ("python",)


@dataclass(frozen=True, slots=True)
class Ours:
    """A stack with a launch whose gateway reaches the target; `environment` is for its clients."""

    pump: str
    stack: Stack
    launch_id: str
    environment: dict[str, str]

    @property
    def peer(self) -> Peer:
        """Return what `fairlead forward` opens."""
        return Peer(self.pump, True, self._forward)

    @asynccontextmanager
    async def _forward(self, target: int) -> AsyncIterator[Tunnel]:
        near = free_port()
        way = f"{near}:{_HERE}:{target}"
        words = (sys.executable, "-m", "fairlead_sdk", "forward", self.launch_id, way)
        async with running(*words, port=near, environment=self.environment) as pid:
            tunnel = Tunnel(f"{_HERE}:{near}", (self.stack.pids["relay-gateway"], pid))
            for each in tunnel.pids:
                if pumps_natively(each) is not (self.pump == "native"):
                    raise OtherPump(f"process {each} does not pump by {self.pump}")
            yield tunnel


def pumps_natively(pid: int) -> bool:
    """Say whether a process has the thread of the native pump."""
    for name in Path(f"/proc/{pid}/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            if name.read_text().strip() == _THREAD:
                return True
    return False


@asynccontextmanager
async def our_stack(target: int, *, pump: str, **settings: str) -> AsyncIterator[Ours]:
    """Run a stack in the block whose gateway and clients pump tunnels by `pump`, of `pumps`."""
    chosen = {_PUMP: "python"} if pump == "python" else {}
    settings = chosen | {
        "FAIRLEAD_RELAY_TARGETS": f"{_HERE}:{target}",
        "FAIRLEAD_RELAY_CHANNELS_PER_SESSION": "1024",
        **settings,
    }
    with local_stack(**settings) as stack:
        async with held_launch(stack) as launch:
            clients = {"FAIRLEAD_URL": stack.url, "FAIRLEAD_API_KEY": stack.api_key}
            environment = os.environ | chosen | clients
            yield Ours(pump, stack, launch.launch_id, environment)
