"""Run the sandbox-worker: `python -m sandbox_worker`."""

from __future__ import annotations

from chassis.service import run
from sandbox_worker.settings import Settings
from sandbox_worker.wiring import build

if __name__ == "__main__":
    raise SystemExit(run("sandbox-worker", Settings, build))
