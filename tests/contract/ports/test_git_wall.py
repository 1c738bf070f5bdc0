"""Git behind its wall: what a process that touches a client's content can reach, use and leave."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from tests.fakes.git_client import GitClient, run_git
from tests.fakes.git_wall import instead_of_git, running, shell
from workspace_provisioner.git.command import Git, GitLimits, GitTimedOut, OverlayMount, Place
from workspace_provisioner.wall.git_wall import WALLS, GitWall

pytestmark = pytest.mark.asyncio

_SERVICES = Path(__file__).resolve().parents[3] / "services"
_WITHOUT_NAMESPACES = """
set -e
echo 0 >/proc/sys/user/max_user_namespaces
exec setpriv --bounding-set -sys_admin --inh-caps -sys_admin "$@"
"""
_PRINTS_REPORT = """
import asyncio, json, sys
from pathlib import Path
from workspace_provisioner.git.command import Git, Place
from workspace_provisioner.wall.git_wall import GitWall

async def main():
    async with GitWall(program=sys.argv[1], directory=Path(sys.argv[2])) as wall:
        git = Git(wall=wall, seconds=1000)
        found = await git.run("gc", place=Place(Path(sys.argv[2])))
        print(json.dumps([wall.report().standing, wall.report().missing, found.output.decode()]))

asyncio.run(main())
"""


@pytest_asyncio.fixture
async def wall(tmp_path: Path) -> AsyncIterator[GitWall]:
    program = shutil.which("git")
    assert program is not None
    async with GitWall(program=program, directory=tmp_path) as opened:
        yield opened


@pytest.fixture
def git(wall: GitWall) -> Git:
    return Git(wall=wall, seconds=20)


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "repository")
    for number in range(5):
        found.write(f"d/f{number}", b"line\n" * (number + 1))
    found.commit()
    return found


@pytest.fixture
def place(client: GitClient) -> Place:
    return Place(client.path / ".git", work_tree=client.path)


async def test_git_works_in_its_place(git: Git, place: Place, client: GitClient) -> None:
    client.write("d/f0", b"changed")
    status = await git.run("status", "--porcelain", place=place)
    assert (status.status, status.output) == (0, b" M d/f0\n")
    added = await git.run("hash-object", "-w", "--stdin", place=place, given=b"content")
    path = client.path / ".git/objects" / added.output[:2].decode()
    assert added.succeeded
    assert path.stat().st_uid == os.getuid()
    assert client.git("cat-file", "-p", added.output.decode().strip()) == b"content"


async def test_every_wall_stands_or_is_missing_for_a_reason(wall: GitWall) -> None:
    report = wall.report()
    assert {*report.standing, *report.missing} == {*WALLS}
    assert not {*report.standing} & {*report.missing}
    assert all(report.missing.values())


@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs util-linux")
async def test_without_namespaces_the_other_walls_stand(
    tmp_path: Path, place: Place, wall: GitWall
) -> None:
    if "file_rules" in wall.report().missing:
        pytest.skip("no Landlock here")
    secret = tmp_path / "secret"
    secret.write_text("for nobody")
    script = f"cat {secret}; cat $GIT_DIR/HEAD; echo x >{tmp_path}/made"
    service = await asyncio.create_subprocess_exec(
        *("unshare", "-Ur", "sh", "-c", _WITHOUT_NAMESPACES, "sh"),
        *(sys.executable, "-c", _PRINTS_REPORT),
        *(instead_of_git(tmp_path, script), str(place.git_dir)),
        env={"PYTHONPATH": str(_SERVICES), "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
    )
    output, _ = await service.communicate()
    if not output:
        pytest.skip("no user namespaces here")
    standing, missing, printed = json.loads(output)
    assert {"file_rules", "network", "call_filter", "files"} <= {*standing}
    assert {"own_user", "file_view", "process_tree"} <= {*missing}
    assert printed == "ref: refs/heads/main\n"
    assert not (tmp_path / "made").exists()


async def test_what_is_outside_its_place_can_be_neither_read_nor_written(
    tmp_path: Path, place: Place
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("for nobody")
    secret.chmod(0o666)
    script = f"cat {secret}; echo x >>{secret}; echo x >{tmp_path}/made; cat /etc/passwd; ls /root"
    async with shell(tmp_path, script) as git:
        found = await git.run("gc", place=place)
    assert found.output == b""
    assert secret.read_text() == "for nobody"
    assert not (tmp_path / "made").exists()


async def test_what_is_lent_can_be_read_but_not_written(tmp_path: Path, place: Place) -> None:
    lent = tmp_path / "lent"
    lent.mkdir(mode=0o777)
    (lent / "file").write_text("borrowed")
    (lent / "file").chmod(0o666)
    script = f"cat {lent}/file; echo x >{lent}/file; rm {lent}/file; echo x >{lent}/made"
    async with shell(tmp_path, script) as git:
        found = await git.run("gc", place=replace(place, alternates=(lent,)))
    assert found.output == b"borrowed"
    assert (lent / "file").read_text() == "borrowed"
    assert [path.name for path in lent.iterdir()] == ["file"]


async def test_a_command_that_only_reads_can_write_nothing(tmp_path: Path, place: Place) -> None:
    async with shell(tmp_path, 'echo x >"$GIT_DIR/made" && echo made') as git:
        assert (await git.run("status", place=place)).output == b""
        assert not (place.git_dir / "made").exists()
        assert (await git.run("gc", place=place)).output == b"made\n"
    assert (place.git_dir / "made").stat().st_uid == os.getuid()


async def test_links_out_of_the_place_lead_nowhere(tmp_path: Path, place: Place) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o777)
    (outside / "secret").write_text("for nobody")
    work_tree = place.work_tree
    assert work_tree is not None
    (work_tree / "link").symlink_to(outside)
    async with shell(tmp_path, "cat link/secret; echo x >link/made") as git:
        assert (await git.run("gc", place=place)).output == b""
    assert [path.name for path in outside.iterdir()] == ["secret"]


async def test_the_network_is_unreachable(git: Git, place: Place) -> None:
    arrived = asyncio.Event()
    server = await asyncio.start_server(lambda reader, writer: arrived.set(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        open_to_all = replace(place, config={"protocol.allow": "always"})
        asked = await git.run("ls-remote", f"git://127.0.0.1:{port}/x", place=open_to_all)
        assert asked.status == 128
        assert "unable to connect" in asked.complaint
        assert not arrived.is_set()


async def test_it_is_a_user_of_its_own_where_the_service_may_say_so(
    tmp_path: Path, place: Place, wall: GitWall
) -> None:
    async with shell(tmp_path, "id -u; id -g; id -G") as git:
        found = (await git.run("gc", place=place)).output.split()
    if "own_user" in wall.report().standing:
        assert found == [b"65521"] * 3
    else:
        assert found[0] == str(os.getuid()).encode()


async def test_the_processor_time_limit_ends_it(tmp_path: Path, place: Place) -> None:
    program = instead_of_git(tmp_path, "while :; do :; done")
    async with GitWall(program=program, directory=tmp_path) as wall:
        git = Git(wall=wall, seconds=1)
        async with git.started("gc", place=place) as process:
            assert await process.wait() == -signal.SIGXCPU
        with pytest.raises(GitTimedOut):
            await git.run("gc", place=place)


async def test_the_memory_limit_holds(wall: GitWall, place: Place) -> None:
    git = Git(wall=wall, seconds=20, limits=GitLimits(memory_bytes=64 * 1024**2))
    whole = replace(place, config={"core.bigFileThreshold": "1g"})
    found = await git.run("hash-object", "--stdin", place=whole, given=bytes(100_000_000))
    assert found.status == 128
    assert "Out of memory" in found.complaint


async def test_the_file_size_limit_holds(wall: GitWall, place: Place, client: GitClient) -> None:
    git = Git(wall=wall, seconds=20, limits=GitLimits(file_bytes=10_000))
    given = os.urandom(50_000)
    found = await git.run("hash-object", "-w", "--stdin", place=place, given=given)
    assert not found.succeeded
    assert not [path for path in client.path.rglob("*") if path.stat().st_size > 10_000]


async def test_background_work_gives_way(tmp_path: Path, place: Place) -> None:
    async with shell(tmp_path, "nice") as git:
        assert (await git.run("gc", place=place)).output == b"0\n"
        assert (await git.run("gc", place=replace(place, idle=True))).output == b"10\n"


async def test_background_work_is_not_kept_from_a_busy_disk(tmp_path: Path, place: Place) -> None:
    program = instead_of_git(tmp_path, "echo begun; read -r _")
    async with GitWall(program=program, directory=tmp_path) as wall:
        git = Git(wall=wall, seconds=20)
        async with git.started("gc", place=replace(place, idle=True)) as process:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"begun\n"
            (pid,) = running(program)
            assert os.sched_getscheduler(pid) == os.SCHED_IDLE
            assert psutil.Process(pid).ionice() == (psutil.IOPRIO_CLASS_BE, 7)


async def test_many_at_once(git: Git, place: Place, client: GitClient) -> None:
    found = await asyncio.gather(*(git.run("rev-parse", "HEAD", place=place) for _ in range(40)))
    assert {each.output for each in found} == {f"{client.head()}\n".encode()}


@pytest.fixture
def layers(tmp_path: Path, client: GitClient, wall: GitWall) -> OverlayMount:
    if "file_view" in wall.report().missing:
        pytest.skip("no mounts here")
    for name in ("top/upper", "top/work", "seen"):
        (tmp_path / name).mkdir(parents=True)
    return OverlayMount(
        (client.path,), tmp_path / "seen", tmp_path / "top/upper", tmp_path / "top/work"
    )


async def test_an_overlay_is_seen_by_git_and_by_nobody_else(
    git: Git, layers: OverlayMount, client: GitClient
) -> None:
    before = client.git("status", "--porcelain")
    place = Place(layers.target / ".git", overlay=layers)
    (client.path / "d/f0").read_bytes()
    assert (await git.run("rm", "-q", "d/f0", place=place)).succeeded
    found = await git.run("status", "--porcelain", place=place)
    assert found.output == b"D  d/f0\n"
    assert list(layers.target.iterdir()) == []
    assert client.git("status", "--porcelain") == before == b""
    assert layers.upper is not None
    assert sorted(path.name for path in layers.upper.iterdir()) == [".git", "d"]
    assert (layers.upper / ".git/index").stat().st_uid == os.getuid()


async def test_an_overlay_without_an_upper_layer_is_only_read(
    git: Git, layers: OverlayMount, tmp_path: Path
) -> None:
    over = tmp_path / "over"
    (over / "d").mkdir(parents=True)
    (over / "d/f1").write_text("another")
    mount = replace(layers, lower=(over, *layers.lower), upper=None, work=None)
    place = Place(mount.target / ".git", overlay=mount)
    assert (await git.run("status", "--porcelain", place=place)).output == b" M d/f1\n"
    single = replace(mount, lower=layers.lower)
    place = replace(place, overlay=single)
    assert (await git.run("status", "--porcelain", place=place)).output == b""
    assert not (await git.run("rm", "-q", "d/f0", place=place)).succeeded
    assert run_git(layers.lower[0], "status", "--porcelain") == b""
