"""The room's small rules: commands, paths, packets, tokens, records, settings, spans."""

from __future__ import annotations

import asyncio
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from chassis.errors import FairleadError
from chassis.ids import random_id
from chassis.packets import number, pack, unpack
from sandbox_worker.brief_work import BriefWork
from sandbox_worker.errors import HostFull
from sandbox_worker.execution import Command, Exit, ExitReason
from sandbox_worker.held_sandbox import SandboxOrder
from sandbox_worker.isolation.working_directory import working_directory
from sandbox_worker.network.networks import Networks
from sandbox_worker.ports import SandboxRecord
from sandbox_worker.profile import Profile
from sandbox_worker.record_store import HostState, RecordStore
from sandbox_worker.sandbox_plans import SandboxPlans
from sandbox_worker.sandboxes import Sandboxes
from sandbox_worker.settings import Settings
from sandbox_worker.tracing import TracedRuns, TracedSandboxes
from tests.fakes.clock import FakeClock
from tests.fakes.egress_doors import ListedDoors
from tests.fakes.isolation import ScriptedIsolation
from tests.fakes.sandbox_stores import ListedTrees, MemoryRecords


@pytest.mark.parametrize(
    "command",
    [
        Command(arguments=()),
        Command(arguments=("",)),
        Command(arguments=("a\0",)),
        Command(arguments=("a",), environment={"A": "\0"}),
        Command(arguments=("a",), directory="\0"),
    ],
)
def test_commands_that_nobody_could_run(command: Command) -> None:
    with pytest.raises(FairleadError) as caught:
        command.check()
    assert caught.value.reason == "command_invalid"


def test_the_largest_commands() -> None:
    Command(arguments=("a",) * 4096).check()
    Command(arguments=("a", "x" * 131_000), environment={"A": "x" * 65_000}).check()


fields = st.lists(st.binary(max_size=20).filter(lambda field: b"\0" not in field), min_size=1)


@given(fields)
def test_packets_come_out_as_they_went_in(parts: list[bytes]) -> None:
    assert unpack(pack(*parts)) == parts
    assert int(unpack(pack(b"verb", number(-12)))[1]) == -12


def test_working_directories_stay_below_their_root(tmp_path: Path) -> None:
    root = tmp_path / "link"
    real = tmp_path / "real"
    (real / "a" / "b").mkdir(parents=True)
    (tmp_path / "real-sibling").mkdir()
    root.symlink_to(real)
    (real / "loop").symlink_to("loop")
    (real / "up").symlink_to("..")
    below = {b"": root, b".": real, b"a/../a/b": real / "a" / "b", b"up/real": real}
    for directory, path in below.items():
        assert working_directory(os.fsencode(root), directory) == os.fsencode(path)
    refused = {
        b"../real-sibling": errno.EXDEV,
        b"up": errno.EXDEV,
        b"/": errno.EXDEV,
        b"loop": errno.ENOENT,
    }
    for directory, cause in refused.items():
        with pytest.raises(OSError, match=r"outside|not found") as caught:
            working_directory(os.fsencode(root), directory)
        assert caught.value.errno == cause, directory


def bench(clock: FakeClock) -> Sandboxes:
    return Sandboxes(
        host_id="hst",
        id_key=b"k" * 32,
        epoch=1,
        plans=SandboxPlans(
            isolations={"process": ScriptedIsolation(home=Path("/"))},
            profiles={"default": Profile()},
        ),
        networks=Networks(doors=ListedDoors()),
        records=MemoryRecords(),
        trees=ListedTrees(),
        clock=clock,
        most=1,
        tombstone_seconds=60,
    )


@pytest.mark.asyncio
async def test_records_on_disk(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as executor:
        work = BriefWork(executor=executor, clock=FakeClock())
        store = RecordStore(root=tmp_path / "records", work=work)
        live = SandboxRecord(sandbox_id=random_id("sbx"), tenant="t")
        dead = SandboxRecord(
            sandbox_id=random_id("sbx"), tenant="t", released_at=datetime(2026, 1, 1, tzinfo=UTC)
        )
        for record in (live, dead):
            await store.put(record)
        for name in ("x.json", f"{random_id('sbx')}.draft", f"{random_id('sbx')}.json"):
            (tmp_path / "records" / name).write_text("{")
        assert set(await store.all()) == {live, dead}
        assert len(list((tmp_path / "records").iterdir())) == 2
        await store.remove(live.sandbox_id)
        assert await store.all() == [dead]
    with ThreadPoolExecutor(4) as executor:
        clock = FakeClock()
        work = BriefWork(executor=executor, clock=clock)
        # In threads, where one could overtake the other.
        await work.run(lambda: clock.advance(1))
        store = RecordStore(root=tmp_path / "records", work=work)
        for _ in range(50):
            # As when a release comes during the create: the last call is what stays.
            await asyncio.gather(
                store.put(SandboxRecord(sandbox_id=dead.sandbox_id, tenant="t")), store.put(dead)
            )
            assert await store.all() == [dead]
    (tmp_path / "file").write_text("")
    with ThreadPoolExecutor(1) as executor:
        work = BriefWork(executor=executor, clock=FakeClock())
        broken = RecordStore(root=tmp_path / "file", work=work)
        with pytest.raises(FairleadError) as caught:
            await broken.put(live)
        assert caught.value.reason == "storage_unavailable"


def test_the_host_keeps_its_key_and_counts_its_lives(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    first = HostState(root=tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    assert first.next_epoch() == 1
    key = first.id_key()
    with pytest.raises(FairleadError):
        HostState(root=tmp_path)
    first.close()
    second = HostState(root=tmp_path)
    assert second.next_epoch() == 2
    assert second.id_key() == key
    assert len(key) == 32
    second.close()


def test_settings_have_defaults_for_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    monkeypatch.delenv("FAIRLEAD_HOST_ROOT", raising=False)
    monkeypatch.delenv("FAIRLEAD_HOST_ID", raising=False)
    settings = Settings()
    assert settings.host_root == Path("/state/fairlead/host")
    assert settings.host_id.startswith("hst_")
    assert settings.host_id == Settings().host_id


def test_over_tcp_there_must_be_a_secret(tmp_path: Path) -> None:
    with pytest.raises(FairleadError) as caught:
        Settings(bind="127.0.0.1:0").rpc_secret()
    assert caught.value.reason == "secret_required"
    (tmp_path / "secret").write_text("s" * 43)
    assert Settings(bind="127.0.0.1:0", secret_file=tmp_path / "secret").rpc_secret() == "s" * 43
    assert Settings(bind="unix:/x").rpc_secret() is None


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


@pytest.mark.asyncio
async def test_changes_of_sandboxes_are_spans(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    traced = TracedSandboxes(sandboxes=bench(FakeClock()), tracer_provider=provider)

    async def create(key: str) -> str:
        sandbox = await traced.create(tenant="t", key=key, order=SandboxOrder())
        return sandbox.sandbox_id

    sandbox_id = await create("one")
    with pytest.raises(HostFull):
        await create("two")
    with pytest.raises(FairleadError):
        await traced.bind(tenant="t", sandbox_id=sandbox_id, workspace_id="x")
    assert await traced.release(tenant="t", sandbox_id=sandbox_id)
    spans = exporter.get_finished_spans()
    assert [(span.name, span.status.status_code) for span in spans] == [
        ("sandbox.create", StatusCode.UNSET),
        ("sandbox.create", StatusCode.ERROR),
        ("sandbox.bind", StatusCode.ERROR),
        ("sandbox.release", StatusCode.UNSET),
    ]
    assert (spans[1].attributes or {})["error.type"] == "host_full"
    assert (spans[3].attributes or {})["fairlead.sandbox.released"] is True


def test_an_execution_is_one_span_from_start_to_exit(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    runs = TracedRuns(tracer_provider=provider)
    with provider.get_tracer("test").start_as_current_span("caller") as caller:
        run = runs.open(execution_id="exe", sandbox_id="sbx")
        failed = runs.open(execution_id="exe2", sandbox_id="sbx")
    assert exporter.get_finished_spans()[0].name == "caller"
    version, trace_id, span_id, _ = run.traceparent.split("-")
    at = datetime(2026, 1, 1, tzinfo=UTC)
    run.close(Exit(reason=ExitReason.EXITED, last_sequence=1, ended_at=at, code=3))
    failed.fail(HostFull(1))
    _, span, other = exporter.get_finished_spans()
    assert version == "00"
    assert span.context is not None
    assert int(trace_id, 16) == span.context.trace_id
    assert int(span_id, 16) == span.context.span_id
    assert span.parent is not None
    assert span.parent.span_id == caller.get_span_context().span_id
    assert (span.attributes or {})["fairlead.execution.code"] == 3
    assert other.status.status_code is StatusCode.ERROR
