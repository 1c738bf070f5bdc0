"""Every row of the table of limits, at its bounds and just beyond: the front door refuses before
anything is created, the host refuses as well, and both give the same reason.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from chassis.errors import FairleadError
from fairlead.execution.v1 import execution_pb2
from fairlead.sandbox.v1 import sandbox_pb2
from fairlead.snapshot.v1 import snapshot_pb2
from fairlead_limits import table
from fairlead_limits.table import Limit, Name, Range
from relay_gateway.offers import usable_offer
from sandbox_worker.batch import Batch
from sandbox_worker.execution import Command
from sandbox_worker.files import Files
from sandbox_worker.held_sandbox import check_limits
from sandbox_worker.profile import Profile
from sandbox_worker.sandbox import Limits
from sandbox_worker.sandbox_plans import SandboxPlans
from sandbox_worker.wire.execution_messages import from_command
from sandbox_worker.wire.sandbox_messages import from_order
from signalling.description import check_offer
from signalling.ice_candidate import check_batch
from signalling.snapshot import Tip
from signalling.source_rules import check_tips
from tests.contract.wire.front_door import LAUNCH, Door, make_door
from tests.fakes.execution_bench import Bench
from tests.fakes.front_door import SANDBOX
from tests.fakes.isolation import ScriptedIsolation
from tests.fakes.launch_room import OFFER, TENANT, Room, World
from tests.fakes.virtual_time import run
from workspace_provisioner import sources
from workspace_provisioner.names import checked_name
from workspace_provisioner.workspace_messages import read_lease, read_source

COMMIT = "a" * 40
EXECUTION = "exe_" + "a" * 26
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """How a value of a row is asked for: as a request to the front door, or a call of what is
    behind it, and of a host; `value` makes one of a size.
    """

    value: Callable[[float], Any] = lambda size: size
    body: Callable[[Any], tuple[str, Json]] | None = None
    front: Callable[[Any], None] | None = None
    host: Callable[[Any], object] | None


def launch(**fields: Any) -> tuple[str, Json]:
    return "/v1/launches", LAUNCH | fields


def sourced(**fields: Any) -> tuple[str, Json]:
    return launch(source={"project": "p", "commit": COMMIT, **fields})


def running(**fields: Any) -> tuple[str, Json]:
    return launch(command={"arguments": ["true"], **fields})


def text(pack: bytes) -> str:
    return base64.b64encode(pack).decode()


def source(**fields: Any) -> object:
    asked = {"project": "p", "commit": COMMIT, **fields}
    return read_source("t", snapshot_pb2.Source(**asked))


def command(**fields: Any) -> None:
    message = execution_pb2.Command(**{"arguments": ["true"], **fields})
    from_command(message).check()


def seconds(name: str) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        message = execution_pb2.Command(arguments=["true"])
        getattr(message, name).FromTimedelta(timedelta(seconds=value))
        from_command(message).check()

    return check


def sandbox(**fields: Any) -> object:
    request = sandbox_pb2.CreateSandboxRequest(**fields)
    plans = SandboxPlans(
        isolations={"process": ScriptedIsolation(home=Path("/"))}, profiles={"default": Profile()}
    )
    return plans.plan(from_order(request))


def limit_drive(name: str) -> Drive:
    # Some of what is beyond a limit does not even fit into the message.
    field = "wall_seconds" if name == "wall_time" else name
    return Drive(
        value=float if name == "wall_time" else int,
        body=lambda v: launch(limits={name: v}),
        host=lambda v: check_limits(Limits(**{field: v})),
    )


def leased(value: float) -> None:
    """Ask both services of a host for a lease."""
    lease = Duration()
    lease.FromTimedelta(timedelta(seconds=value))
    found = {reason_of(lambda: read_lease(lease)), reason_of(lambda: sandbox(lease=lease))}
    assert len(found) == 1, found
    read_lease(lease)


def keyed(value: str) -> None:
    """Ask both services of a host with a key."""
    bench = Bench()
    found = {
        reason_of(lambda: sources.checked_key(value)),
        reason_of(lambda: bench.sandboxes.id_of("t", value)),
    }
    assert len(found) == 1, found
    sources.checked_key(value)


def on_worker(ask: Callable[[Bench, Any], Awaitable[object]]) -> Callable[[Any], None]:
    """Ask a worker for something of an execution that is not there, which it says last."""

    def check(value: Any) -> None:
        async def asking() -> None:
            await ask(Bench(), value)

        asyncio.run(asking())

    return check


def at_front(ask: Callable[[Room, Any], Awaitable[object]]) -> Callable[[Any], None]:
    """Ask what is behind the front door, in the same way."""

    def check(value: Any) -> None:
        async def asking() -> None:
            async with World().room() as room:
                await ask(room, value)

        run(asking())

    return check


def sized(size: float) -> bytes:
    return b"x" * int(size)


def named(count: float) -> list[str]:
    return ["a"] * int(count)


def tags(size: float) -> list[tuple[str, str]]:
    """Return 64 tags whose names have so many bytes together."""
    rest = int(size) - 63 * 512
    names = [f"refs/tags/{'n' * 250}/{'n' * 249}/n"] * 63
    names.append(f"refs/tags/{'n' * 250}/{'n' * 249}/{'n' * (rest - 511)}")
    return [(name, COMMIT) for name in names]


def tips(found: list[tuple[str, str]]) -> list[snapshot_pb2.Tip]:
    return [snapshot_pb2.Tip(ref=ref, commit=commit) for ref, commit in found]


def refs(found: list[tuple[str, str]]) -> list[Json]:
    return [{"ref": ref, "commit": commit} for ref, commit in found]


def offered(size: float) -> str:
    offer = OFFER.replace("\r\n", "\n").rstrip("\n")
    return f"{offer}\na=pad:{'x' * (int(size) - len(offer) - 7)}"


SIZE = {"rows": 24, "columns": 80}

DRIVES: Mapping[int, Drive] = {
    id(row): drive
    for row, drive in [
        (table.LEASE, Drive(body=lambda v: launch(lease=v), host=leased)),
        (
            table.ARGUMENTS,
            Drive(
                value=named,
                body=lambda v: running(arguments=v),
                host=lambda v: command(arguments=v),
            ),
        ),
        (
            table.ARGUMENT_BYTES,
            Drive(
                value=lambda size: ["x" * (int(size) - 1)],
                body=lambda v: running(arguments=v),
                host=lambda v: command(arguments=v),
            ),
        ),
        (
            table.ENVIRONMENT_BYTES,
            Drive(
                value=lambda size: {"A": "x" * (int(size) - 3)},
                body=lambda v: running(environment=v),
                host=lambda v: command(environment=v),
            ),
        ),
        (
            table.VARIABLE,
            Drive(
                body=lambda v: running(environment={v: ""}),
                host=lambda v: command(environment={v: ""}),
            ),
        ),
        (
            table.DIRECTORY_BYTES,
            Drive(
                value=lambda size: "d" * int(size),
                body=lambda v: running(directory=v),
                host=lambda v: command(directory=v),
            ),
        ),
        (table.TIMEOUT, Drive(body=lambda v: running(timeout=v), host=seconds("timeout"))),
        (table.GRACE, Drive(body=lambda v: running(grace=v), host=seconds("grace"))),
        (
            table.TERMINAL_CELLS,
            Drive(
                value=int,
                body=lambda v: running(terminal=SIZE | {"columns": v}),
                host=lambda v: command(terminal=SIZE | {"columns": v}),
            ),
        ),
        (
            table.STDIN_BYTES,
            Drive(
                value=sized,
                front=at_front(
                    lambda room, v: room.executor.write_stdin(TENANT, EXECUTION, 0, v, False)
                ),
                host=on_worker(
                    lambda bench, v: bench.executions.write_stdin(
                        tenant="t", execution_id=EXECUTION, offset=0, content=v, close=False
                    )
                ),
            ),
        ),
        (
            table.POSITION,
            Drive(
                value=int,
                front=at_front(
                    lambda room, v: room.executor.write_stdin(TENANT, EXECUTION, v, b"", False)
                ),
                host=on_worker(
                    lambda bench, v: bench.executions.write_stdin(
                        tenant="t", execution_id=EXECUTION, offset=v, content=b"", close=False
                    )
                ),
            ),
        ),
        (
            table.SIGNAL,
            Drive(
                value=int,
                front=at_front(lambda room, v: room.executor.signal(TENANT, EXECUTION, v)),
                host=on_worker(
                    lambda bench, v: bench.executions.signal(
                        tenant="t", execution_id=EXECUTION, number=v
                    )
                ),
            ),
        ),
        (
            table.BATCH_ITEMS,
            Drive(
                value=named,
                body=lambda v: (
                    f"/v1/sandboxes/{SANDBOX}/batch",
                    {"items": [{"command": {"arguments": [each]}} for each in v]},
                ),
                host=lambda v: Batch(tuple(Command((each,)) for each in v)).check(),
            ),
        ),
        (
            table.ISOLATION,
            Drive(body=lambda v: launch(isolation=v), host=lambda v: sandbox(isolation=v)),
        ),
        (
            table.PROFILE,
            Drive(body=lambda v: launch(profile=v), host=lambda v: sandbox(profile=v)),
        ),
        (
            table.ALLOW_ENTRIES,
            Drive(
                value=named,
                body=lambda v: launch(network={"mode": "egress", "allow": v}),
                host=lambda v: sandbox(
                    network=sandbox_pb2.NetworkPolicy(
                        mode=sandbox_pb2.NETWORK_MODE_EGRESS,
                        allow=v,
                    )
                ),
            ),
        ),
        *((row, limit_drive(name)) for name, row in table.SANDBOX_LIMITS.items()),
        (table.PROJECT, Drive(body=lambda v: sourced(project=v), host=lambda v: source(project=v))),
        (
            table.CHANGES_BYTES,
            Drive(
                value=sized,
                body=lambda v: sourced(changes={"tree": COMMIT, "pack": text(v)}),
                host=lambda v: source(changes={"tree": COMMIT, "pack": v}),
            ),
        ),
        (
            table.COMMITS_BYTES,
            Drive(
                value=sized,
                body=lambda v: sourced(commits={"against": [], "pack": text(v)}),
                host=lambda v: source(commits={"against": [], "pack": v}),
            ),
        ),
        (
            table.AGAINST,
            Drive(
                value=lambda count: [COMMIT] * int(count),
                body=lambda v: sourced(commits={"against": v, "pack": ""}),
                host=lambda v: source(commits={"against": v, "pack": b""}),
            ),
        ),
        (
            table.ADDRESS,
            Drive(
                value=lambda size: f"https://h/a{'a' * (int(size) - 11)}",
                body=lambda v: sourced(upstream={"url": v, "branch": "main"}),
                host=lambda v: source(upstream={"url": v, "branch": "main"}),
            ),
        ),
        (
            table.MAX_AGE,
            Drive(
                body=lambda v: sourced(
                    upstream={"url": "https://h/a", "branch": "main", "max_age": v}
                ),
                host=lambda v: source(
                    upstream={
                        "url": "https://h/a",
                        "branch": "main",
                        "max_age": timedelta(seconds=v),
                    }
                ),
            ),
        ),
        (
            table.TAGS,
            Drive(
                value=lambda count: [("refs/tags/a", COMMIT)] * int(count),
                body=lambda v: sourced(tags=refs(v)),
                host=lambda v: source(tags=tips(v)),
            ),
        ),
        (
            table.TAG_BYTES,
            Drive(
                value=tags,
                body=lambda v: sourced(tags=refs(v)),
                host=lambda v: source(tags=tips(v)),
            ),
        ),
        (
            table.TIPS,
            Drive(
                value=int,
                front=lambda v: check_tips((Tip("refs/heads/a", COMMIT),) * v, "sha1"),
                host=lambda v: sources.checked_tips(
                    [sources.Tip("refs/heads/a", COMMIT)] * v, sources.ObjectFormat.SHA1
                ),
            ),
        ),
        (
            table.WORKSPACE_NAME,
            Drive(
                body=lambda v: (
                    "/v1/workspaces",
                    {"source": {"project": "p", "commit": COMMIT}, "name": v},
                ),
                host=lambda v: checked_name(v),
            ),
        ),
        (
            table.OFFER_BYTES,
            Drive(
                value=offered,
                front=lambda v: check_offer(v),
                host=lambda v: usable_offer(v),
            ),
        ),
        # These two are read at the front door alone, the last one at the host alone.
        (table.CANDIDATES, Drive(value=named, front=lambda v: check_batch(v), host=None)),
        (
            table.PAGE_SIZE,
            Drive(
                value=int,
                front=at_front(lambda room, v: room.launcher.list(TENANT, v, "")),
                host=None,
            ),
        ),
        (
            table.FILE_PAGE_SIZE,
            Drive(
                value=int,
                host=on_worker(
                    lambda bench, v: Files(sandboxes=bench.sandboxes, silence=1, wait=1).list(
                        tenant="t", sandbox_id=SANDBOX, path=b"", page_size=v, page_token=""
                    )
                ),
            ),
        ),
    ]
}

NAMES = {
    id(table.VARIABLE): (["A", "_a1", "A" * 256], ["", "a-b", "1a", "A" * 257, "ä", "a b"]),
    id(table.ISOLATION): (["walled", "a" * 32], ["No", "a" * 33, "-a", "a_b"]),
    id(table.PROFILE): (["ci", "a_b-1", "a" * 32], ["L", "a" * 33, "_a", "a b"]),
    id(table.PROJECT): (["p", "ü" * 200, "a b"], ["", "x" * 201, "a\nb", "a\x7f", "a\x85"]),
    id(table.WORKSPACE_NAME): (["a", "0._-", "a" * 64], ["A", "-a", "a" * 65, "a/b", "a b"]),
    id(table.IDEMPOTENCY_KEY): (["k", "a b", "~" * 255], ["k" * 256, "ü"]),
}


def reason_of(call: Callable[[], object]) -> str:
    try:
        call()
    except FairleadError as error:
        return error.reason
    return ""


def values(row: Limit, drive: Drive) -> Iterator[tuple[object, bool]]:
    """Give values that a row allows, and values that it does not."""
    if isinstance(row, Name):
        allowed, refused = NAMES[id(row)]
        yield from ((each, True) for each in allowed)
        yield from ((each, False) for each in refused)
        return
    step = 0.0005 if row.unit == "s" else 1
    yield drive.value(row.least), True
    yield drive.value(row.most), True
    yield drive.value(row.most + (1 if row.unit == "s" else step)), False
    if row.unit in ("entries", "bytes", "characters") and not row.is_number:
        return  # An empty list or text has a meaning of its own.
    if row.zero_means:
        yield drive.value(0), True
    if row.least > step or (row.least and not row.zero_means):
        yield drive.value(row.least - step), False


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Door:
    return make_door(tmp_path_factory.mktemp("state"))


def asked(door: Door, path: str, body: Json, headers: Mapping[str, str]) -> tuple[int, str]:
    async def asking() -> tuple[int, str]:
        async with door.client() as client:
            answer = await client.post(path, json=body, headers=headers)
            return answer.status_code, str(answer.json().get("reason", ""))

    return asyncio.run(asking())


def test_every_row_is_driven() -> None:
    assert set(DRIVES) | {id(table.IDEMPOTENCY_KEY)} == {id(row) for row in table.ROWS}


@pytest.mark.parametrize(
    "row",
    [row for row in table.ROWS if id(row) in DRIVES],
    ids=lambda row: f"{row.field}-{row.unit}",
)
def test_front_door_and_host_hold_the_same_limit(door: Door, row: Limit) -> None:
    drive = DRIVES[id(row)]
    for value, is_allowed in values(row, drive):
        reasons = {}
        if drive.body is not None:
            status, reasons["front"] = asked(door, *drive.body(value), {})
            assert is_allowed or status == 400
        if drive.front is not None:
            reasons["front"] = reason_of(partial(drive.front, value))
        if drive.host is not None:
            reasons["host"] = reason_of(partial(drive.host, value))
        assert reasons
        for who, reason in reasons.items():
            assert (reason != row.reason) is is_allowed, (who, str(value)[:80], reason)


def test_front_door_and_host_take_the_same_keys(door: Door) -> None:
    allowed, refused = NAMES[id(table.IDEMPOTENCY_KEY)]
    for key, is_allowed in [
        *((each, True) for each in allowed),
        *((each, False) for each in refused),
    ]:
        body = dict(LAUNCH, idempotency_key=key)
        status, reason = asked(door, "/v1/launches", body, {})
        assert (status < 300) is is_allowed, (key, reason)
        host = reason_of(partial(keyed, key))
        assert (reason, host) == (("", "") if is_allowed else (table.IDEMPOTENCY_KEY.reason,) * 2)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"command": {"arguments": ["true"], "timeout": 48 * 3600}}, "timeout_invalid"),
        (
            {"command": {"arguments": ["true"], "environment": {"A": "x" * 140 * 1024}}},
            "environment_invalid",
        ),
        ({"limits": {"memory_bytes": 1024}}, "limit_invalid"),
        ({"network": {"mode": "egress", "allow": ["a b"]}}, "allow_entry_invalid"),
    ],
)
def test_what_no_host_takes_creates_nothing(door: Door, fields: Json, reason: str) -> None:
    before = asked(door, "/v1/launches", LAUNCH, {})[0]
    assert before < 300
    status, found = asked(door, "/v1/launches", LAUNCH | fields, {})
    assert (status, found) == (400, reason)


def test_bounds_are_written_as_a_person_writes_them() -> None:
    assert table.TIMEOUT.sentence == "The timeout must be 0.001 s to 24 h."
    assert table.BATCH_ITEMS.sentence == "The list of a batch must have 1 to 64 entries."
    assert table.SANDBOX_LIMITS["disk_bytes"].sentence == (
        "The field limits.disk_bytes must be 64 KiB to 2^62 bytes, or 0 for the profile's."
    )
    assert Range(field="f", what="It", reason="r", most=7).sentence == "It must be 0 to 7."
