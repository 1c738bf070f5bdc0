"""`python -m signalling`: the front door."""

from __future__ import annotations

from chassis.service import run
from signalling.settings import Settings
from signalling.wiring import build

if __name__ == "__main__":
    raise SystemExit(run("signalling", Settings, build))
