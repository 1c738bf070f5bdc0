"""One launch is one trace: every room is in it, the sandboxed program too, and no orphan span."""

from __future__ import annotations

import re
import secrets
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans
from opentelemetry.proto.trace.v1.trace_pb2 import Span as TracedSpan

from tests.e2e.endings import make_offer
from tests.e2e.mesh_client import MeshClient, command, reading, with_offer
from tests.e2e.running_stack import ROOT, RunningStack, eventually, places, running_stack

ROOMS = {"signalling", "workspace-provisioner", "sandbox-worker", "relay-gateway", "program"}
TELEMETRY = ROOT / "docs" / "telemetry.md"

# What an instrumented program does: continue the trace that it finds, and export its span. The
# user of the sandbox may not be able to read a library of ours: the message comes ready.
PROGRAM = """
import os, sys, urllib.parse, urllib.request
_, trace, parent, _ = os.environ["TRACEPARENT"].split("-")
body = bytes.fromhex(sys.argv[1]).replace(b"T" * 16, bytes.fromhex(trace))
body = body.replace(b"P" * 8, bytes.fromhex(parent))
name, _, value = os.environ["OTEL_EXPORTER_OTLP_HEADERS"].partition("=")
headers = {name: urllib.parse.unquote(value), "content-type": "application/x-protobuf"}
url = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/traces"
urllib.request.urlopen(urllib.request.Request(url, body, headers)).close()
print("worked")
"""


def exported() -> str:
    """Return the program's message, with room for the ids of its trace and of its parent."""
    now = time.time_ns()
    work = TracedSpan(
        trace_id=b"T" * 16,
        span_id=secrets.token_bytes(8),
        parent_span_id=b"P" * 8,
        name="program.work",
        start_time_unix_nano=now,
        end_time_unix_nano=now,
    )
    service = KeyValue(key="service.name", value=AnyValue(string_value="program"))
    spans = ResourceSpans(
        resource=Resource(attributes=[service]), scope_spans=[ScopeSpans(spans=[work])]
    )
    return ExportTraceServiceRequest(resource_spans=[spans]).SerializeToString().hex()


@dataclass(frozen=True, slots=True)
class Span:
    span_id: str
    parent: str
    name: str
    service: str
    attributes: frozenset[str]


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    """A stack whose sandboxes may have the network of this machine: the program exports to it."""
    with places() as where:
        offering = replace(where, extra={"FAIRLEAD_SANDBOX_EXPOSE_HOST_TO_ONE_TENANT": "1"})
        with running_stack(offering) as running:
            yield running


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "repository"
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", "init", "-q", "-b", "main", path], check=True)
    (path / "committed.txt").write_text("committed\n")
    subprocess.run(["git", "-C", path, "add", "-A"], check=True)
    subprocess.run(["git", "-C", path, *identity, "commit", "-qm", "first"], check=True)
    (path / "program.py").write_text(PROGRAM)
    return path


def read_trace(mesh: MeshClient, launch_id: str) -> list[Span]:
    spans = mesh.get(f"/v1/launches/{launch_id}/trace")["spans"]
    assert isinstance(spans, list)
    found = []
    for span in spans:
        assert isinstance(span, dict)
        attributes = span["attributes"]
        assert isinstance(attributes, dict)
        found.append(
            Span(
                str(span["span_id"]),
                str(span["parent_span_id"]),
                str(span["name"]),
                str(span["service"]),
                frozenset(attributes),
            )
        )
    return found


def orphans(spans: list[Span]) -> list[Span]:
    known = {span.span_id for span in spans}
    return [span for span in spans if span.parent and span.parent not in known]


def whole_trace(mesh: MeshClient, launch_id: str) -> list[Span]:
    """Read the trace once every room has exported what it has."""
    expected = {
        "launch.run",
        "program.work",
        "execution.run",
        "sandbox.release",
        "workspace.release",
    }

    def is_whole() -> bool:
        spans = read_trace(mesh, launch_id)
        services = {span.service for span in spans}
        names = {span.name for span in spans}
        return services >= ROOMS and names >= expected and not orphans(spans)

    eventually(is_whole)
    return read_trace(mesh, launch_id)


@pytest.fixture(scope="module")
def spans(stack: RunningStack, repository: Path) -> list[Span]:
    """The trace of a cold launch with changes, an offer and a program that adds a span."""
    header = psutil.Process(stack.pids["sandbox-worker"]).environ()["OTEL_EXPORTER_OTLP_HEADERS"]
    request = command(
        "python3",
        "program.py",
        exported(),
        OTEL_EXPORTER_OTLP_ENDPOINT=str(stack.described()["span_store"]),
        OTEL_EXPORTER_OTLP_HEADERS=header,
    )
    # Its program reaches the span store over the network.
    request = replace(request, isolation="process")
    with MeshClient(stack=stack) as mesh, reading(repository) as read:
        launch_id = mesh.launch(read, with_offer(request, make_offer()), project=f"{time.time()}")
        events = mesh.see_through(read, launch_id)
        types = [event.type for event in events]
        assert {"miss", "answer", "output"} <= set(types)
        said = b"".join(event.content for event in events)
        assert events[-1].type == "exited", said
        assert said == b"worked\n", said
        return whole_trace(mesh, launch_id)


def test_one_launch_is_one_trace_without_an_orphan(spans: list[Span]) -> None:
    assert {span.service for span in spans} == ROOMS
    assert orphans(spans) == []
    assert [span.name for span in spans if not span.parent] == ["rest.POST /v1/launches"]
    names = {span.name for span in spans}
    assert names >= {
        "launch.run",
        "launch.place",
        "snapshot.import",
        "workspace.materialize",
        "sandbox.create",
        "sandbox.bind",
        "session.offer",
        "execution.run",
        "sandbox.release",
        "workspace.release",
    }


def test_the_program_in_the_sandbox_is_a_child_of_its_execution(spans: list[Span]) -> None:
    execution = next(span for span in spans if span.name == "execution.run")
    program = next(span for span in spans if span.service == "program")
    assert program.parent == execution.span_id


def test_what_is_emitted_is_listed(spans: list[Span]) -> None:
    text = TELEMETRY.read_text()
    ours = [span for span in spans if span.service != "program"]
    for name in {span.name for span in ours}:
        if name.startswith(("rpc.", "rest.")):
            assert f"`{name.split('.')[0]}." in text
        else:
            assert f"| `{name}` |" in text, name
    listed = listed_attributes(text)
    emitted = {attribute for span in ours for attribute in span.attributes}
    assert emitted - listed == set()


def listed_attributes(text: str) -> set[str]:
    """Read the first column of the attribute table."""
    table = text.partition("## Attributes")[2].partition("\n## ")[0]
    rows = [row for row in table.splitlines() if row.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
