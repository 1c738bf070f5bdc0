"""Runs the workspace-provisioner: `python -m workspace_provisioner`."""

from __future__ import annotations

from chassis.service import run
from workspace_provisioner.settings import Settings
from workspace_provisioner.wiring import build

if __name__ == "__main__":
    raise SystemExit(run("workspace-provisioner", Settings, build))
