"""The file of profiles, TOML: one table per profile, checked as a whole before anything starts."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from chassis.errors import FairleadError
from fairlead_limits.table import DEFAULT_LEASE_SECONDS, LEASE, PROFILE
from sandbox_worker.errors import ProfilesInvalid
from sandbox_worker.held_sandbox import check_limits
from sandbox_worker.profile import Profile
from sandbox_worker.sandbox import (
    DEFAULT_LIMITS,
    DEFAULT_PROFILE,
    NETWORKS,
    Limits,
    NetworkMode,
    NetworkPolicy,
)

_Name = Annotated[str, StringConstraints(pattern=f"^{PROFILE.pattern}$")]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _LimitsTable(_Table):
    memory_bytes: int | None = None
    processes: int | None = None
    open_files: int | None = None
    file_bytes: int | None = None
    cpu_milli: int | None = None
    disk_bytes: int | None = None
    wall_seconds: float | None = None
    output_bytes: int | None = None


class _ProfileTable(_Table):
    isolation: Literal["", "process", "walled"] = ""
    lease_seconds: float = Field(
        default=DEFAULT_LEASE_SECONDS, ge=LEASE.least, le=LEASE.most, allow_inf_nan=False
    )
    network: Literal["none", "host", "egress"] | None = None
    network_most: Literal["none", "host", "egress"] | None = None
    allow: tuple[str, ...] = Field(default=(), strict=False)
    limits: _LimitsTable = _LimitsTable()


_FILE = TypeAdapter(dict[_Name, _ProfileTable])


def read_profiles(path: Path | None, *, defaults: Limits = DEFAULT_LIMITS) -> Mapping[str, Profile]:
    """Return the profiles of a file by name, always with a `default`; only that without a file.
    What limits they do not name are those of `defaults`.

    Raises ProfilesInvalid, which names the place in the file.
    """
    found = {DEFAULT_PROFILE: Profile(limits=defaults)}
    if path is None:
        return found
    try:
        tables = _FILE.validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
        for name, table in tables.items():
            found[name] = _profile(name, table, defaults)
    except OSError as error:
        raise ProfilesInvalid(str(path), error.strerror or "it cannot be read") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        cause = "it is no table" if first["type"] == "model_type" else first["msg"]
        raise ProfilesInvalid(str(path), f"{place}: {cause}") from None
    except FairleadError as error:
        raise ProfilesInvalid(str(path), f"{name}: {error.message.removesuffix('.')}") from None
    except ValueError as error:  # Not UTF-8, or not TOML.
        raise ProfilesInvalid(str(path), str(error)) from None
    return found


def _profile(name: str, table: _ProfileTable, defaults: Limits) -> Profile:
    limits = replace(defaults, **table.limits.model_dump(exclude_none=True))
    check_limits(limits)
    if table.allow and table.network != "egress":
        raise ValueError(f'{name}: `allow` goes with network = "egress" only')
    network = table.network and NetworkPolicy(NetworkMode(table.network), table.allow)
    most = NetworkMode(table.network_most) if table.network_most else None
    if network and most and NETWORKS.index(network.mode) > NETWORKS.index(most):
        raise ValueError(f"{name}: `network` is more than `network_most`")
    return Profile(
        name=name,
        isolation=table.isolation,
        limits=limits,
        network=network or None,
        network_most=most,
        lease_seconds=table.lease_seconds,
    )
