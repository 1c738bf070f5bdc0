"""`python -m relay_gateway`."""

from __future__ import annotations

from chassis.service import run
from fairlead_tunnel.event_loops import loop_factory
from fairlead_tunnel.freed_memory import keep_freed_memory
from relay_gateway.settings import Settings
from relay_gateway.wiring import build

if __name__ == "__main__":
    keep_freed_memory()
    raise SystemExit(run("relay-gateway", Settings, build, loop_factory=loop_factory()))
