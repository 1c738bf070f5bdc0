"""`make bench NAME=workspaces`: takes, bursts, deletions, launches over a wide-area link and from a
shell, with `git worktree add` in the same run.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
from pathlib import Path

import grpc

from benchmarks.local_stack import Repository, Stack, local_stack
from benchmarks.recording import QUICK, Recording, median_ms, percentile
from benchmarks.workspaces import front, host, shell, ssh
from benchmarks.workspaces.link import RTT_SECONDS, delayed, round_trip
from benchmarks.workspaces.repositories import make_large_repository, source_of, thin_pack

SIZES = (
    {"1k": 200, "10k": 600, "100k": 1500} if QUICK else {"1k": 1000, "10k": 10_000, "100k": 100_000}
)


async def on_the_host(
    recording: Recording, directory: Path, repositories: dict[str, Repository]
) -> None:
    """Measure what needs no wire."""
    async with host.opened_host(directory / "host") as opened:
        for repository in repositories.values():
            await opened.sync(repository)
        for size in ("10k", "100k"):
            taking, forced, checked = await opened.takes(repositories[size])
            recording.metrics[f"warm_take_p50_ms_{size}"] = median_ms(taking)
            recording.metrics[f"warm_take_p99_ms_{size}"] = _p99_ms(taking)
            if size == "10k":
                recording.metrics["delete_forced_p50_ms_10k"] = median_ms(forced)
                recording.metrics["delete_forced_p99_ms_10k"] = _p99_ms(forced)
                recording.metrics["delete_checked_p50_ms_10k"] = median_ms(checked)
            runs = host.PEER_RUNS if size == "10k" else 1
            peers = host.worktrees(repositories[size], directory, runs=runs)
            recording.peers[f"worktree_add_p50_ms_{size}"] = median_ms(peers)
        rates, lasts, failures = zip(
            *[await opened.burst(repositories["1k"]) for _ in range(host.BURSTS)], strict=True
        )
        recording.metrics["burst_50_per_s"] = round(statistics.median(rates), 1)
        recording.metrics["burst_50_failures"] = sum(failures)
        rates, lasts, failures = zip(
            *[await opened.burst(repositories["100k"]) for _ in range(host.BURSTS)], strict=True
        )
        recording.metrics["burst_50_100k_last_ms"] = median_ms(lasts)
        recording.metrics["burst_50_failures"] += sum(failures)
        first = []
        for _ in range(host.PEER_RUNS * 2):
            made = await opened.take(repositories["10k"])
            first.append(await opened.first_status(made))
            await opened.release(made)
        settled = host.settled_status(repositories["10k"], directory)
        recording.metrics["first_status_ratio_10k"] = _ratio(first, statistics.median(settled))
        recording.peers["settled_status_p50_ms_10k"] = median_ms(settled)
        recording.notes.append(f"rungs on the host: {', '.join(sorted(opened.rungs))}")


async def over_the_link(
    recording: Recording, directory: Path, repository: Repository, stack: Stack, rtt: float
) -> None:
    """Measure gRPC on one kept channel, with the mesh's own authentication."""
    with delayed(stack.grpc) as link:
        async with grpc.aio.insecure_channel(link.address) as channel:
            door = front.FrontDoor(stack, channel)
            answer = await door.materialize(source_of(repository))
            if answer.WhichOneof("outcome") == "miss":
                await door.release(await door.upload(repository, thin_pack(repository)))
            await asyncio.sleep(3)
            seconds, rungs = await front.warm(door, repository)
            recording.metrics["warm_rtt_ratio"] = _ratio(seconds, rtt)
            recording.metrics["warm_rtt_ratio_p99"] = round(percentile(seconds, 0.99) / rtt, 3)
            recording.notes.append(f"rungs over the link: {', '.join(sorted(rungs))}")
            cold = await front.cold(door, directory)
            recording.metrics["cold_4mb_ms_over_rtt"] = _ratio(cold, rtt)
            resync = await front.resync(door, repository)
            recording.metrics["resync_5_commits_ms_over_rtt"] = _ratio(resync, rtt)


def from_a_shell(
    recording: Recording, directory: Path, repository: Repository, stack: Stack, rtt: float
) -> None:
    """Measure fresh `fairlead` processes, without and with the agent."""
    with delayed(stack.url.removeprefix("http://")) as link:
        laptop = shell.Shell(stack=stack, link=link, state=directory / "laptop")
        for agent, metric in (
            (False, "cli_launch_ms_over_rtt"),
            (True, "cli_agent_launch_ms_over_rtt"),
        ):
            laptop.launch(repository, agent=agent)
            seconds = [laptop.launch(repository, agent=agent) for _ in range(shell.RUNS)]
            recording.metrics[metric] = _ratio(seconds, rtt)
        (repository.path / front.LARGE).write_bytes(os.urandom(shell.LARGE_BYTES))
        laptop.launch(repository, agent=True)
        for changed, metric in (
            (False, "cli_agent_launch_large_unchanged_ms_over_rtt"),
            (True, "cli_agent_launch_large_beside_changes_ms_over_rtt"),
        ):
            laptop.launch(repository, agent=True, changed=changed)
            seconds = [
                laptop.launch(repository, agent=True, changed=changed) for _ in range(shell.RUNS)
            ]
            recording.metrics[metric] = _ratio(seconds, rtt)
        laptop.stop_agent()
        recording.notes.append(
            f"`large` is with an untracked file of {shell.LARGE_BYTES / 1e6:g} MB"
        )


def over_ssh(recording: Recording, directory: Path, repository: Repository, rtt: float) -> None:
    """Measure the resident program behind the same link."""
    measured = asyncio.run(ssh.warm(directory, repository))
    if measured is None:
        recording.metrics["warm_ssh_rtt_ratio"] = None
        recording.notes.append("there is no sshd here, so that nothing was measured over SSH")
        return
    seconds, rungs, tries = measured
    recording.metrics["warm_ssh_rtt_ratio"] = _ratio(seconds, rtt)
    recording.metrics["warm_ssh_rtt_ratio_p99"] = round(percentile(seconds, 0.99) / rtt, 3)
    recording.notes.append(f"rungs over SSH: {', '.join(sorted(rungs))}")
    recording.notes.append(ssh.uncounted(seconds, tries))


def _ratio(seconds: list[float], unit: float) -> float:
    return round(statistics.median(seconds) / unit, 3)


def _p99_ms(seconds: list[float]) -> float:
    return round(percentile(seconds, 0.99) * 1000, 2)


def main() -> None:
    recording = Recording(name="workspaces", runs=host.TAKES)
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as name:
        directory = Path(name)
        repositories = {
            size: make_large_repository(
                directory / size, files=files, seed=files, size=4000 if size != "100k" else 1000
            )
            for size, files in SIZES.items()
        }
        asyncio.run(on_the_host(recording, directory, repositories))
        rtt = round_trip()
        recording.metrics["link_rtt_ms"] = round(rtt * 1000, 2)
        over_ssh(recording, directory, repositories["10k"], rtt)
        with local_stack() as stack:
            asyncio.run(over_the_link(recording, directory, repositories["10k"], stack, rtt))
            from_a_shell(recording, directory, repositories["10k"], stack, rtt)
    recording.notes.append(
        f"the link holds every byte back for {RTT_SECONDS * 500:g} ms each way;"
        " TCP slow start is not in it"
    )
    recording.write()


if __name__ == "__main__":
    main()
