"""What the provisioner asks the program that starts git for."""

from __future__ import annotations

import os
from typing import Required, TypedDict

REFUSED = 126
"""Exit status of a process that could not be walled in or executed, whose complaint says why, or
that was lost with the program that starts them all.
"""


class Layers(TypedDict):
    """An overlay to mount first; without `upper` it can only be read."""

    lower: list[str]
    upper: str
    work: str
    target: str


class Job(TypedDict, total=False):
    """What to start, and what it may reach."""

    arguments: Required[list[str]]
    environment: Required[dict[str, str]]
    directory: Required[str]
    writable: Required[list[str]]
    readable: Required[list[str]]
    overlay: Layers | None
    limits: Required[dict[str, int]]
    idle: bool


def fields_of(job: Job) -> list[bytes]:
    """Write a job as fields of a packet, each `name=value`; cell.job_of reads them."""
    found = [
        *(f"argument={each}" for each in job["arguments"]),
        *(f"variable={name}={value}" for name, value in job["environment"].items()),
        f"directory={job['directory']}",
        *(f"writable={path}" for path in job["writable"]),
        *(f"readable={path}" for path in job["readable"]),
        *(f"limit={name}={value}" for name, value in job["limits"].items()),
    ]
    layers = job.get("overlay")
    if layers is not None:
        found += [f"lower={path}" for path in layers["lower"]]
        found += [f"upper={layers['upper']}", f"work={layers['work']}"]
        found.append(f"target={layers['target']}")
    if job.get("idle"):
        found.append("idle=1")
    return [os.fsencode(each) for each in found]
