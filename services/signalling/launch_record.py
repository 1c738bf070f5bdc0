"""What is kept of a launch between replicas and restarts: the launch, who owns it and where it is
placed. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from signalling.host import Host
from signalling.launch import Launch


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """A launch with what only signalling needs; `version` counts its writes, for compare-and-set.

    `owner` is the replica that runs it, `fingerprint` that of its request, `host` the host with the
    addresses that it had when the launch was placed, `last_event` the number of its newest control
    event. A workspace that is lent was there before, and stays. `traceparent` (W3C) is the span of
    its run, which its sessions belong to.
    """

    tenant: str
    owner: str
    fingerprint: str
    launch: Launch
    host: Host
    lease: timedelta
    has_command: bool
    has_channel: bool
    version: int = 1
    last_event: int = 0
    workspace_lent: bool = False
    traceparent: str = ""

    @property
    def launch_id(self) -> str:
        """Return the launch's id."""
        return self.launch.launch_id

    def next(self) -> LaunchRecord:
        """Return it as the version that follows."""
        return replace(self, version=self.version + 1)


@dataclass(frozen=True, slots=True)
class ExecutionPlace:
    """Where an execution or a sandbox is; the host's addresses come from its registration."""

    tenant: str
    host: Host
    sandbox_id: str


@dataclass(frozen=True, slots=True)
class LaunchTimings:
    """How long things may take, in seconds.

    `working_lease` is what the host is asked for at least while steps or the command are under way,
    so that a short lease does not end under them; it is renewed as long as the command runs.
    `lease_grace` is what the host is asked for on top of a launch's lease, so that signalling is
    the one to end it as long as it lives. `release_later` is how long a release that was not
    confirmed is tried again behind the launch's back. `count_patience` is how long the news of the
    command's end waits for the number of changed files, `note_timeout` how long the end of a
    cancelled launch waits for how far its output goes.
    """

    upload_timeout: float = 120.0
    step_timeout: float = 120.0
    channel_timeout: float = 15.0
    count_patience: float = 0.25
    note_timeout: float = 5.0
    release_timeout: float = 10.0
    release_attempts: int = 3
    release_later: float = 600.0
    working_lease: float = 600.0
    lease_grace: float = 15.0
    host_lost_after: float = 30.0
    retry_pause: float = 0.2
    retry_pause_limit: float = 2.0
