"""What locust loads: both kinds of user, and the judge of the budgets."""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path

import grpc.experimental.gevent
from locust import events
from locust.env import Environment

from loadtests import scenario
from loadtests.users.grpc_api import GrpcUser
from loadtests.users.rest import RestUser

# After locust's monkey-patching and before the first channel.
grpc.experimental.gevent.init_gevent()

__all__ = ["GrpcUser", "RestUser"]

log = logging.getLogger(__name__)


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def prepare(**_: object) -> None:
    """Make the repository and its pack before the first user needs them."""
    scenario.pack()


@events.test_stop.add_listener  # type: ignore[untyped-decorator]
def tidy(**_: object) -> None:
    """Remove the repository that the users launched."""
    scenario.remove_repository()


@events.quitting.add_listener  # type: ignore[untyped-decorator]
def judge(environment: Environment, **_: object) -> None:
    """Fail the run when a budget, or the error rate, is exceeded, or when a step never ran."""
    budgets = tomllib.loads((Path(__file__).parent / "budgets.toml").read_text())
    allowed = budgets.pop("errors")["rate"]
    complaints = []
    stats = environment.runner.stats if environment.runner else environment.stats
    if stats.total.fail_ratio > allowed:
        complaints.append(f"{stats.total.fail_ratio:.1%} of the requests failed")
    for name, budget in budgets.items():
        entry = stats.get(name, name.split()[0])
        if entry.num_requests == 0:
            complaints.append(f"{name} never ran")
            continue
        for level, share in (("p50", 0.5), ("p95", 0.95)):
            taken = entry.get_response_time_percentile(share)
            if taken > budget[level]:
                complaints.append(f"{name}: {level} is {taken:.0f} ms, budget {budget[level]} ms")
    for complaint in complaints:
        log.error("budget exceeded: %s", complaint)
    environment.process_exit_code = 1 if complaints else 0
