"""The rooms of a local stack: how each is started, where it listens and how one sees that it is
ready.

What the user has set in the environment is kept; everything else gets a value that suits one
machine.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chassis.mesh_ports import MeshPort
from devstack import health
from devstack.ports import LOOPBACK, PortReservation

Probe = Callable[[], Awaitable[bool]]
DEFAULT_PORTS = int(MeshPort.SIGNALLING_HTTP)
DEMO_PORTS = 7400


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """One room: its command, the settings that are its own and the test for being ready."""

    name: str
    command: tuple[str, ...]
    address: str
    is_ready: Probe
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that is decided before the first room starts: addresses, shared environment and
    the rooms. `sandboxes` tells how sandboxes are isolated once a host has registered, and nothing
    before that.
    """

    http: str
    grpc: str
    gateway: str
    environment: Mapping[str, str]
    rooms: tuple[Room, ...]
    sandboxes: Callable[[], Awaitable[str]]

    @property
    def url(self) -> str:
        """Return the front door's URL as clients on this machine use it."""
        return f"http://{dialled(self.http)}"

    @property
    def dialled_grpc(self) -> str:
        """Return the front door's gRPC address as clients on this machine use it."""
        return dialled(self.grpc)


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The files of one stack that the rooms are told of."""

    runtime: Path
    state: Path
    host: Path
    secret: Path
    api_key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanDestination:
    """Where the rooms of this stack send their spans, and read traces."""

    url: str
    write_token: str


Planner = Callable[[Places, PortReservation, str, SpanDestination | None], Plan]


def dialled(bind: str) -> str:
    """Turn a bind address into one that a client on this machine can dial."""
    host, _, port = bind.rpartition(":")
    return f"{LOOPBACK}:{port}" if host in {"", "0.0.0.0", "[::]", "::"} else bind  # noqa: S104


def user_collector(environment: Mapping[str, str]) -> str | None:
    """Return the OpenTelemetry endpoint that the user has set, or None."""
    return (
        environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
        or None
    )


def plan_rooms(first_port: int) -> Planner:
    """Return a planner for the four rooms whose preferred ports start at `first_port`."""

    def plan(
        places: Places, ports: PortReservation, redis_url: str, spans: SpanDestination | None
    ) -> Plan:
        return _plan(places, ports, redis_url, spans, first_port)

    return plan


def _plan(
    places: Places,
    ports: PortReservation,
    redis_url: str,
    spans: SpanDestination | None,
    first_port: int,
) -> Plan:
    def bind(name: str, offset: int) -> str:
        return os.environ.get(name) or f"{LOOPBACK}:{ports.pick(first_port + offset)}"

    def unix(name: str, file: str) -> str:
        return os.environ.get(name) or f"unix:{places.runtime / file}"

    http = bind("FAIRLEAD_SIGNALLING_HTTP_BIND", 0)
    grpc = bind("FAIRLEAD_SIGNALLING_GRPC_BIND", 1)
    gateway = bind("FAIRLEAD_RELAY_HTTP_BIND", 10)
    tunnels = bind("FAIRLEAD_RELAY_TCP_BIND", 11)
    internal = unix("FAIRLEAD_SIGNALLING_INTERNAL_BIND", "signalling.sock")
    workspace = unix("FAIRLEAD_WORKSPACE_BIND", "workspace.sock")
    sandbox = unix("FAIRLEAD_SANDBOX_BIND", "sandbox.sock")
    workers = unix("FAIRLEAD_RELAY_WORKERS_BIND", "relay.sock")
    rooms = (
        _room(
            "signalling",
            _http_probe(http, "/readyz"),
            {
                "FAIRLEAD_SIGNALLING_HTTP_BIND": http,
                "FAIRLEAD_SIGNALLING_GRPC_BIND": grpc,
                "FAIRLEAD_SIGNALLING_INTERNAL_BIND": internal,
                "FAIRLEAD_SIGNALLING_STATE": str(places.state / "signalling"),
                "FAIRLEAD_SIGNALLING_BOOTSTRAP_KEY_FILE": str(places.api_key),
                "FAIRLEAD_SIGNALLING_SPAN_STORE": spans.url if spans else "",
            },
            address=f"{dialled(http)}, gRPC {dialled(grpc)}",
        ),
        _room(
            "workspace-provisioner",
            _grpc_probe(workspace),
            {"FAIRLEAD_WORKSPACE_BIND": workspace},
            address=workspace,
        ),
        _room(
            "sandbox-worker",
            _grpc_probe(sandbox),
            {
                "FAIRLEAD_SANDBOX_BIND": sandbox,
                "FAIRLEAD_SANDBOX_MESH_ADDRESSES": ",".join(
                    [
                        http,
                        grpc,
                        gateway,
                        tunnels,
                        workers,
                        internal,
                        workspace,
                        *([spans.url] if spans else []),
                    ]
                ),
            },
            address=sandbox,
        ),
        _room(
            "relay-gateway",
            _http_probe(gateway, "/readyz"),
            {
                "FAIRLEAD_RELAY_HTTP_BIND": gateway,
                "FAIRLEAD_RELAY_TCP_BIND": tunnels,
                "FAIRLEAD_RELAY_SIGNALLING": internal,
                "FAIRLEAD_RELAY_WORKERS_BIND": workers,
            },
            address=dialled(gateway),
        ),
    )
    return Plan(
        http=http,
        grpc=grpc,
        gateway=gateway,
        environment=_shared_environment(places, redis_url, spans),
        rooms=rooms,
        sandboxes=_sandboxes_probe(f"http://{dialled(http)}/v1/hosts", places.api_key),
    )


def _room(name: str, is_ready: Probe, environment: Mapping[str, str], *, address: str) -> Room:
    return Room(
        name=name,
        command=(sys.executable, "-m", name.replace("-", "_")),
        address=address,
        is_ready=is_ready,
        environment={key: os.environ.get(key) or value for key, value in environment.items()},
    )


def _shared_environment(
    places: Places, redis_url: str, spans: SpanDestination | None
) -> dict[str, str]:
    defaults = {
        "FAIRLEAD_SECRET_FILE": str(places.secret),
        "FAIRLEAD_HOST_ROOT": str(places.host),
        # Shorter than the supervisor's patience, so that a room ends by itself before it is killed.
        "FAIRLEAD_DRAIN_SECONDS": "1",
    }
    if spans:
        defaults |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": spans.url,
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{spans.write_token}",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FAIRLEAD_API")}
    chosen = {key: os.environ.get(key) or value for key, value in defaults.items()}
    # On Linux the kernel kills a room with its supervisor (`processes.dies_with_parent`), which no
    # drain may delay; elsewhere the room has to look for itself.
    supervised = "0" if sys.platform == "linux" else "1"
    return kept | chosen | {"FAIRLEAD_SUPERVISED": supervised, "FAIRLEAD_REDIS_URL": redis_url}


def _grpc_probe(bind: str) -> Probe:
    async def probe() -> bool:
        return await health.grpc_serves(bind)

    return probe


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _sandboxes_probe(url: str, api_key: Path) -> Callable[[], Awaitable[str]]:
    """Return a probe for signalling having seen a whole host, so that launches work: it tells how
    sandboxes are isolated there.
    """

    async def probe() -> str:
        key = _text(api_key)
        status, body = await health.http_answer(url, bearer=key)
        if status == 200:
            hosts = json.loads(body)["hosts"]
            return sandboxes_line(hosts[0]) if hosts else ""
        # With a key of the user's own there is nothing to ask with.
        return "see `fairlead doctor`" if status == 401 and not key else ""

    return probe


def sandboxes_line(host: Mapping[str, Any]) -> str:
    """Say in one line how the sandboxes of a host are isolated, from its entry in /v1/hosts."""
    offered, walls = host["isolation"], host["walls"]
    if "walled" in offered:
        both = "process" in offered
        return "walled; without walls for one tenant who asks (process)" if both else "walled"
    causes = [wall["reason"] for wall in walls.get("walled", []) if not wall["stands"]]
    cause = f" ({causes[0]})" if causes else ""
    if not offered:
        return f"NO WALLS{cause}; they serve another tenant only"
    who = "the stack's user"
    for wall in walls.get("process", []):
        if wall["name"] == "unprivileged" and not wall["stands"]:
            who = "root"
    return f"NO WALLS{cause}: programs run on this machine as {who}, for one tenant only"


def _http_probe(bind: str, path: str) -> Probe:
    async def probe() -> bool:
        status, _ = await health.http_answer(f"http://{dialled(bind)}{path}")
        return status == 200

    return probe
