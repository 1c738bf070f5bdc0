"""`make bench NAME=sandboxes`: creates, commands, lives, bursts, output and idle sandboxes, with
bubblewrap, multiprocessing and posix_spawn in the same run.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from pathlib import Path

from benchmarks.recording import QUICK, Recording, median_ms, percentile
from benchmarks.sandboxes import direct, idle, peers, wire
from benchmarks.sandboxes.rooms import opened_worker
from benchmarks.workspaces.host import Host, opened_host
from benchmarks.workspaces.repositories import make_large_repository
from workspace_provisioner.workspaces import Workspace

FILES = 50 if QUICK else 200
NOTES = (
    "bwrap has the same namespaces, private root, bound tree and call filter; not Landlock, "
    "cgroups, a host uid of its own and the overlay",
    "what bounds a forked create: the clone of the zygote (a quarter of it), 350 pages that the "
    "clone copies or maps (a sixth), and the Python of worker, zygote and init in cold caches",
    "what bounds a pooled one: to wake the init and then the worker (a fifth of it), and to mount "
    "the overlay (another); what bounds pooled_vs_bwrap: to execute `true` (posix_spawn_p50_ms)",
)


async def over_grpc(
    recording: Recording, directory: Path, workspaces: list[Workspace], isolation: str
) -> None:
    """Measure a worker process from outside."""
    metrics = recording.metrics
    async with opened_worker(directory) as worker, worker.dial() as client:
        client_side = wire.Wire(
            client=client,
            isolation=isolation,
            workspaces=[each.workspace_id for each in workspaces],
            notes=recording.notes,
        )
        ends, firsts = await client_side.commands()
        metrics["exec_true_p50_ms"] = median_ms(ends)
        metrics["exec_true_p99_ms"] = round(percentile(ends, 0.99) * 1000, 2)
        metrics["first_byte_p50_ms"] = median_ms(firsts)
        metrics["create_exec_delete_per_s"] = round(await client_side.lives(), 1)
        lasts, failures = zip(*[await client_side.burst() for _ in range(wire.BURSTS)], strict=True)
        metrics["burst_100_last_ms"] = median_ms(lasts)
        metrics["burst_100_failures"] = sum(failures)
        outputs = [await client_side.output() for _ in range(wire.OUTPUTS)]
        metrics["output_mb_per_s"] = round(statistics.median(outputs), 1)
        megabytes, percent = await idle.idle(client_side, worker.pid)
        metrics["idle_sandbox_mb"] = round(megabytes, 3)
        metrics["idle_cpu_pct"] = round(percent, 3)


async def take_all(host: Host, directory: Path, count: int) -> list[Workspace]:
    """Make workspaces as launches do, with their layers prepared."""
    repository = make_large_repository(directory / "repository", files=FILES, seed=7, size=2000)
    await host.sync(repository)
    made = [await host.take(repository) for _ in range(count)]
    host.rungs |= {str(each.rung) for each in made}
    return made


async def in_the_worker(recording: Recording, directory: Path, workspaces: list[Workspace]) -> bool:
    """Measure creates without a wire, and the peers; says whether sandboxes can be walled."""
    metrics = recording.metrics
    (directory / "tree").mkdir()
    with peers.opened_peers(directory / "tree", recording.notes) as others:
        async with direct.opened_lanes(directory / "host", recording.notes) as lanes:
            lives, seconds = await direct.interleaved(
                lanes, others, (each.workspace_id for each in workspaces)
            )
    for name, each in seconds.items():
        recording.peers[name] = median_ms(each)
    for name, metric in (("forked", "create_walled_fork"), ("pooled", "create_pooled")):
        creates = [life.create for life in lives.get(name, [])]
        metrics[f"{metric}_p50_ms"] = median_ms(creates) if creates else None
    for name in ("forked", "pooled"):
        ours = [life.create_and_true for life in lives.get(name, [])]
        theirs = seconds.get("bwrap_p50_ms", [])
        metrics[f"{name}_vs_bwrap"] = (
            round(statistics.median(theirs) / statistics.median(ours), 2)
            if ours and theirs
            else None
        )
    return bool(lanes)


async def measure(recording: Recording, directory: Path) -> None:
    async with opened_host(directory / "host") as host:
        made = await take_all(host, directory, wire.BURST + direct.MOST_CREATES)
        workspaces, fresh = made[: wire.BURST], made[wire.BURST :]
        walled = await in_the_worker(recording, directory, fresh)
        isolation = "walled" if walled else "process"
        if not walled:
            recording.notes.append("what went over gRPC ran in sandboxes without walls")
        await over_grpc(recording, directory, workspaces, isolation)
        recording.notes.append(f"rungs of the workspaces: {', '.join(sorted(host.rungs))}")
        recording.notes.extend(NOTES)


def main() -> None:
    recording = Recording(name="sandboxes", runs=wire.COMMANDS)
    with tempfile.TemporaryDirectory(prefix="flb-") as name:
        asyncio.run(measure(recording, Path(name)))
    recording.write()


if __name__ == "__main__":
    main()
