"""The observability profile's files agree with each other; no image is needed to see that."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
KINDS = ("receivers", "processors", "exporters")


def load(name: str) -> dict[str, dict[str, dict[str, object]]]:
    loaded = yaml.safe_load((ROOT / name).read_text())
    assert isinstance(loaded, dict)
    return loaded


@pytest.mark.parametrize("name", ["deploy/otel/collector.yaml", "deploy/otel/jaeger.yaml"])
def test_pipelines_use_what_is_defined_and_nothing_else(name: str) -> None:
    configuration = load(name)
    pipelines = configuration["service"]["pipelines"]
    assert list(pipelines) == ["traces"]
    traces = pipelines["traces"]
    assert isinstance(traces, dict)
    for kind in KINDS:
        assert sorted(traces[kind]) == sorted(configuration[kind]), kind
    assert sorted(configuration["service"]["extensions"]) == sorted(configuration["extensions"])


def test_a_memory_limiter_comes_first() -> None:
    traces = load("deploy/otel/collector.yaml")["service"]["pipelines"]["traces"]
    assert isinstance(traces, dict)
    assert traces["processors"][0] == "memory_limiter"


def test_the_collector_sends_to_the_service_that_listens() -> None:
    exporter = load("deploy/otel/collector.yaml")["exporters"]["otlphttp/jaeger"]
    target = urlsplit(str(exporter["endpoint"]))
    services = load("docker-compose.yml")["services"]
    assert target.hostname in services
    otlp = load("deploy/otel/jaeger.yaml")["receivers"]["otlp"]
    assert isinstance(otlp["protocols"], dict)
    assert urlsplit("//" + otlp["protocols"]["http"]["endpoint"]).port == target.port


def test_the_profile_mounts_the_files_that_are_checked_here() -> None:
    services = load("docker-compose.yml")["services"]
    for service, name in (("otel-collector", "collector.yaml"), ("jaeger", "jaeger.yaml")):
        assert services[service]["profiles"] == ["observability"]
        mounted = str(services[service]["volumes"]).split(":")[0]
        assert mounted.endswith(f"deploy/otel/{name}")
        assert f"/{name}" in str(services[service]["command"])


def test_the_store_that_jaeger_queries_is_the_one_it_writes() -> None:
    configuration = load("deploy/otel/jaeger.yaml")
    written = configuration["exporters"]["jaeger_storage_exporter"]["trace_storage"]
    queried = configuration["extensions"]["jaeger_query"]["storage"]
    assert queried == {"traces": written}
    assert written in configuration["extensions"]["jaeger_storage"]["backends"]  # type: ignore[operator]
