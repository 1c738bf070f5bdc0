"""A host over SSH: launches, commands, and nothing left of either."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fairlead_sdk import SshHost
from fairlead_sdk.errors import FairleadError, WorkspaceNotFound
from fairlead_sdk.launches import Command
from fairlead_sdk.repository import read_repository
from fairlead_sdk.ssh_errors import ConnectionLost
from fairlead_sdk.ssh_host import AsyncSshHost, HostWorkspace
from fairlead_sdk.ssh_program import HostProgram
from tests.eventually import eventually
from tests.fakes.local_repository import LocalRepository
from tests.openssh import OpenSshServer

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

SLEEPER = "sleep 1000 & setsid sleep 1000 & echo started; wait"


def below(root: Path) -> list[psutil.Process]:
    """Return the processes that work below a host's directory."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(root):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def residents(root: Path) -> list[psutil.Process]:
    """Return the processes that a host's program has, the guard first."""
    found = []
    for process in psutil.process_iter():
        try:
            files = [each.path for each in process.open_files()]
        except (psutil.Error, OSError):
            continue
        if any(Path(file).is_relative_to(root / "workspaces") for file in files):
            found.append(process)
    return found


def kill(processes: list[psutil.Process]) -> None:
    for each in processes:
        with suppress(psutil.NoSuchProcess):  # one may go with another
            each.kill()


def text_of(*place: str) -> str:
    return Path(*place).read_text()


async def at_its_output(
    host: AsyncSshHost, workspace: HostWorkspace, happens: Callable[[], None]
) -> None:
    """Run a command that starts others and never ends, and do something when it has spoken."""
    command = Command(arguments=["sh", "-c", SLEEPER])
    async with host.run(workspace.workspace_id, command) as execution:
        async for _, content in execution.output():
            assert content == b"started\n"
            happens()


async def nothing_runs(root: Path) -> None:
    async def look() -> list[psutil.Process]:
        return below(root) + residents(root)

    await eventually(look, until=lambda found: not found)


async def test_a_launch_has_every_file_as_it_is_and_leaves_nothing(
    server: OpenSshServer, repository: LocalRepository, root: Path
) -> None:
    async with AsyncSshHost(server.address(root)) as host:
        async with host.launch(repository.path) as launch:
            where = await launch.run("pwd; cat README sub/file; git status --short")
            assert where.stdout_text == (f"{launch.workspace.path}\nchanged\nbelow\n M README\n")
            assert launch.workspace.commit == repository.git("rev-parse", "HEAD")
            assert launch.workspace.branch == "main"
            assert [each.workspace_id for each in await host.workspaces()] == [
                launch.workspace.workspace_id
            ]
        assert await host.workspaces() == ()
        assert os.listdir(root / "trees") == []
        with pytest.raises(WorkspaceNotFound):
            async with host.run(launch.workspace.workspace_id, Command(arguments=["true"])):
                await launch.run("true")
    await nothing_runs(root)


async def test_the_second_launch_sends_nothing_but_the_question(
    server: OpenSshServer, repository: LocalRepository, root: Path
) -> None:
    misses: list[str] = []
    async with AsyncSshHost(server.address(root)) as host:
        for _ in range(2):
            read = read_repository(repository.path)
            await host.materialize(read, on_miss=misses.append)
            read.close()
    assert len(misses) == 1


async def test_a_new_commit_travels_with_the_question(
    server: OpenSshServer, repository: LocalRepository, root: Path
) -> None:
    misses: list[str] = []
    async with AsyncSshHost(server.address(root)) as host:
        async with host.launch(repository.path):
            pass
        repository.git("commit", "-q", "-a", "-m", "second")
        read = read_repository(repository.path)
        workspace = await host.materialize(read, on_miss=misses.append)
        assert workspace.commit == repository.git("rev-parse", "HEAD")
    assert misses == []


async def test_the_program_is_sent_once_and_again_when_it_is_damaged(
    server: OpenSshServer, program: HostProgram, root: Path
) -> None:
    kept = root / ".resident" / f"{program.digest}.zip"
    async with AsyncSshHost(server.address(root)) as host:
        await host.workspaces()
    first = kept.stat()
    async with AsyncSshHost(server.address(root)) as host:
        await host.workspaces()
    assert kept.stat().st_ino == first.st_ino
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-100])
    async with AsyncSshHost(server.address(root)) as host:
        assert await host.workspaces() == ()
    assert kept.read_bytes() == whole
    assert os.listdir(kept.parent) == [kept.name]


async def test_output_input_and_endings_are_told_apart(
    server: OpenSshServer, repository: LocalRepository, root: Path
) -> None:
    address = server.address(root)
    async with AsyncSshHost(address) as host, host.launch(repository.path / "sub") as launch:
        both = await launch.run("cat file; echo oops >&2; exit 3")
        assert (both.stdout, both.stderr, both.exit_code) == (b"below\n", b"oops\n", 3)
        fed = await launch.run(["wc", "-c"], stdin=b"x" * 6_000_000)
        assert fed.stdout.strip() == b"6000000"
        ignored = await launch.run(["true"], stdin=b"x" * 6_000_000)
        assert ignored.exit_code == 0
        much = await launch.run(["head", "-c", "20000000", "/dev/zero"])
        assert much.stdout == bytes(20_000_000)
        killed = await launch.run("kill -TERM $$")
        assert (killed.exit.reason, killed.exit.signal) == ("signalled", signal.SIGTERM)
        late = await launch.run("echo begun; sleep 1000", timeout=0.3)
        assert (late.stdout, late.exit.reason, late.exit_code) == (b"begun\n", "timed_out", 124)
        named = await launch.run("echo $NAME", environment={"NAME": "text"}, directory="")
        assert named.stdout == b"text\n"
        for directory in ("..", "/", "absent", "../../..", "README"):
            with pytest.raises(FairleadError, match="directory") as refused:
                await launch.run("true", directory=directory)
            assert refused.value.reason == "directory_invalid"
        with pytest.raises(FairleadError) as absent:
            await launch.run(["no-such-program"])
        assert absent.value.reason == "command_not_found"


async def test_what_a_command_leaves_in_the_background_ends_with_it(
    server: OpenSshServer, repository: LocalRepository, root: Path
) -> None:
    address = server.address(root)
    async with AsyncSshHost(address) as host, host.launch(repository.path) as launch:
        left = await launch.run("sleep 1000 & echo $!")
        pid = int(left.stdout)

        async def look() -> bool:
            return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE

        await eventually(look, until=lambda runs: not runs)


async def test_what_stays_outlives_the_connection(
    server: OpenSshServer, repository: LocalRepository, root: Path
) -> None:
    async with AsyncSshHost(server.address(root)) as host:
        read = read_repository(repository.path)
        workspace = await host.materialize(read)
        command = Command(arguments=["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!"])
        async with host.run(workspace.workspace_id, command, stays=True) as execution:
            said = b"".join([content async for _, content in execution.output()])
    left = psutil.Process(int(said))

    async def others() -> list[psutil.Process]:
        return [each for each in below(root) + residents(root) if each.pid != left.pid]

    try:
        await eventually(others, until=lambda found: not found)
        assert left.is_running()
    finally:
        left.kill()


async def test_two_launches_run_at_once_on_one_connection(
    server: OpenSshServer, repository: LocalRepository, root: Path
) -> None:
    async with AsyncSshHost(server.address(root)) as host:
        async with host.launch(repository.path) as one, host.launch(repository.path) as other:
            waiting = asyncio.ensure_future(one.run("until [ -e go ]; do sleep 0.01; done; pwd"))
            quick = await other.run(f"touch {one.workspace.path}/go; pwd")
            assert quick.stdout_text.strip() == other.workspace.path
            assert (await waiting).stdout_text.strip() == one.workspace.path
            assert one.workspace.path != other.workspace.path
        assert len(server.sessions()) == 1


async def test_a_cut_in_the_middle_of_a_command_ends_it_there_and_says_so_here(
    server: OpenSshServer, repository: LocalRepository, root: Path
) -> None:
    async with AsyncSshHost(server.address(root)) as host:
        read = read_repository(repository.path)
        workspace = await host.materialize(read, key="one key")
        with pytest.raises(ConnectionLost) as lost:
            await at_its_output(host, workspace, server.hang_up)
        assert lost.value.reason == "connection_lost"
        await nothing_runs(root)
        again = await host.materialize(read, key="one key")
        assert again.workspace_id == workspace.workspace_id


async def test_a_cut_in_the_middle_of_an_upload_is_mended_with_the_same_key(
    server: OpenSshServer, repository: LocalRepository, root: Path
) -> None:
    repository.write("large", os.urandom(24 * 1024 * 1024))
    repository.git("add", ".")
    repository.git("commit", "-q", "-m", "large")
    misses: list[str] = []
    cuts: list[int] = []

    def cut_once(sent: int, written: int | None) -> None:
        if not cuts:
            cuts.append(sent)
            server.hang_up()

    async with AsyncSshHost(server.address(root)) as host:
        read = read_repository(repository.path)
        workspace = await host.materialize(read, on_miss=misses.append, on_upload=cut_once)
        assert workspace.commit == repository.git("rev-parse", "HEAD")
        assert len(await host.workspaces()) == 1
        assert await host.settle(wait=True) is False
    assert len(misses) == 2
    await nothing_runs(root)
    assert not list((root / "workspaces" / ".incoming").glob("*"))


async def test_kill_9_of_the_program_leaves_nothing_and_the_next_one_goes_on(
    server: OpenSshServer, repository: LocalRepository, root: Path
) -> None:
    async with AsyncSshHost(server.address(root)) as host:
        read = read_repository(repository.path)
        workspace = await host.materialize(read, key="one key")
        with pytest.raises(ConnectionLost):
            await at_its_output(host, workspace, lambda: kill(residents(root)))
        await nothing_runs(root)
        again = await host.materialize(read, key="one key")
        assert again.workspace_id == workspace.workspace_id
        assert text_of(workspace.path, "README") == "changed\n"


async def test_kill_9_of_the_guard_leaves_nothing_either(
    server: OpenSshServer, repository: LocalRepository, root: Path
) -> None:
    async with AsyncSshHost(server.address(root)) as host:
        read = read_repository(repository.path)
        workspace = await host.materialize(read)
        guard = psutil.Process(server.pid).children(recursive=True)
        guard = [each for each in guard if each.name().startswith("python")][:1]
        assert len(guard) == 1
        with pytest.raises(ConnectionLost):
            await at_its_output(host, workspace, lambda: kill(guard))
        await nothing_runs(root)


async def test_kill_9_of_ssh_here_leaves_nothing_there(
    server: OpenSshServer, repository: LocalRepository, root: Path
) -> None:
    async with AsyncSshHost(server.address(root)) as host:
        read = read_repository(repository.path)
        workspace = await host.materialize(read)
        ours = [each for each in psutil.Process().children() if each.name() == "ssh"]
        with pytest.raises(ConnectionLost):
            await at_its_output(host, workspace, lambda: kill(ours))
        await nothing_runs(root)


def blocking(address: str, path: Path) -> bytes:
    with SshHost(address) as host:
        with host.launch(path) as launch:
            result = launch.run(["cat", "README"], check=True)
        assert host.workspaces() == ()
    return result.stdout


async def test_the_blocking_client_does_the_same(
    server: OpenSshServer, repository: LocalRepository, root: Path
) -> None:
    said = await asyncio.to_thread(blocking, server.address(root), repository.path)
    assert said == b"changed\n"


async def test_two_clients_with_connections_of_their_own_share_a_host(
    server: OpenSshServer, repository: LocalRepository, root: Path
) -> None:
    address = server.address(root)
    async with AsyncSshHost(address) as one, AsyncSshHost(address) as other:
        read = read_repository(repository.path)
        made = await asyncio.gather(
            *(host.materialize(read) for host in (one, other) for _ in range(3))
        )
        assert len({each.workspace_id for each in made}) == 6
        assert len(server.sessions()) == 2
        for host in (one, other):
            assert {each.workspace_id for each in await host.workspaces()} == {
                each.workspace_id for each in made
            }
        for number, each in enumerate(made):
            assert await (one, other)[number % 2].release(each.workspace_id)
        assert await one.workspaces() == await other.workspaces() == ()


async def test_of_a_large_repository_the_files_come_first_and_the_history_later(
    server: OpenSshServer, repository: LocalRepository, root: Path
) -> None:
    for number in range(3):
        repository.write("large", os.urandom(4 * 1024 * 1024))
        repository.git("add", ".")
        repository.git("commit", "-q", "-m", f"number {number}")
    sent: list[int] = []
    async with AsyncSshHost(server.address(root)) as host:
        read = read_repository(repository.path)
        await host.materialize(read, on_upload=lambda size, written: sent.append(size))
        assert sent[-1] < 6 * 1024 * 1024
        assert await host.settle(wait=True) is False
        async with host.launch(repository.path) as launch:
            said = await launch.run("git log --format=%s; git fsck --connectivity-only")
            assert said.stdout_text == "number 2\nnumber 1\nnumber 0\nfirst\n"


async def test_large_uncommitted_files_are_sent_once_to_a_host(
    server: OpenSshServer, repository: LocalRepository, root: Path, tmp_path: Path
) -> None:
    """They are sent again to one that was set up anew."""
    large = os.urandom(4 * 1024 * 1024)
    clean = LocalRepository.make(tmp_path / "clean")
    clean.git("fetch", "-q", str(repository.path))
    clean.git("reset", "-q", "--hard", "FETCH_HEAD")
    repository.write("large", large)
    sent: list[int] = []

    async def launched() -> int:
        repository.write("small", os.urandom(300_000))
        sent.clear()
        async with AsyncSshHost(server.address(root)) as host:
            read = read_repository(repository.path)
            made = await host.materialize(read, on_upload=lambda size, _: sent.append(size))
            command = Command(arguments=["cat", "small", "large"])
            async with host.run(made.workspace_id, command) as execution:
                found = b"".join([content async for _, content in execution.output()])
        assert found == (repository.path / "small").read_bytes() + large
        return max(sent)

    assert await launched() > len(large)
    assert await launched() < len(large)
    await nothing_runs(root)
    shutil.rmtree(root)
    async with AsyncSshHost(server.address(root)) as host:
        await host.materialize(read_repository(clean.path))
    await nothing_runs(root)
    assert await launched() > len(large)
    assert await launched() < len(large)


async def test_a_history_that_was_given_up_comes_with_the_next_launch(
    server: OpenSshServer, repository: LocalRepository, root: Path
) -> None:
    for number in range(3):
        repository.write("large", os.urandom(4 * 1024 * 1024))
        repository.git("add", ".")
        repository.git("commit", "-q", "-m", f"number {number}")
    misses: list[str] = []
    async with AsyncSshHost(server.address(root)) as host:
        read = read_repository(repository.path)
        await host.materialize(read, on_miss=misses.append)
        assert await host.settle(wait=False) is True
        await host.materialize(read, on_miss=misses.append)
        assert await host.settle(wait=True) is False
        assert misses == ["no_base"]
        async with host.launch(repository.path) as launch:
            said = await launch.run("git log --format=%s")
            assert said.stdout_text == "number 2\nnumber 1\nnumber 0\nfirst\n"
