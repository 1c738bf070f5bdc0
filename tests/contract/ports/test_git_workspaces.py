"""Checkouts by real git: files bit for bit, safe names, counting, releases, restarts."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fakes.git_client import GitClient, listing, run_git
from tests.fakes.provisioner_room import ProvisionerRoom, open_room
from workspace_provisioner.errors import PackInvalid, WorkspaceReleased
from workspace_provisioner.sources import Changes
from workspace_provisioner.trees import git_trees
from workspace_provisioner.workspaces import Miss, MissReason, Workspace


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    for number in range(100):
        found.write(f"d{number % 10}/f{number}", f"line {number}\n".encode() * 20)
    found.write("run.sh", b"#!/bin/sh\n", executable=True)
    os.symlink("d0/f0", found.path / "link")
    os.symlink("/etc/passwd", found.path / "outside")
    found.write(b"caf\xe9", b"latin\n")
    found.write("new\nline\ttab", b"odd\n")
    found.write('quo"te\\', b"odd\n")
    found.write("-rf", b"option\n")
    found.write(".gitignore", b"*.log\n")
    found.write("debug.log", b"stays at home")
    found.commit()
    return found


@pytest_asyncio.fixture
async def room(tmp_path: Path) -> AsyncIterator[ProvisionerRoom]:
    async with open_room(tmp_path / "host") as opened:
        yield opened


def files_of(client: GitClient) -> dict[bytes, tuple[str, bytes]]:
    """The client's files without the ignored one."""
    return {name: each for name, each in listing(client.path).items() if name != b"debug.log"}


def statuses(path: Path) -> list[bytes]:
    """What `git status` says, sorted."""
    return sorted(
        run_git(path, "status", "--porcelain", "-z", "--untracked-files=all").split(b"\0")[:-1]
    )


@pytest.mark.asyncio
async def test_a_clean_tree(room: ProvisionerRoom, client: GitClient) -> None:
    await room.upload(client)
    made, path = await room.make("k", client.source(), branch="fix/login")
    assert listing(path) == files_of(client)
    assert statuses(path) == []
    assert run_git(path, "symbolic-ref", "HEAD") == b"refs/heads/fix/login\n"
    assert run_git(path, "rev-parse", "HEAD").decode().strip() == client.head() == made.commit
    assert made.branch == "fix/login"
    assert not made.has_submodules
    assert not (path / ".git/hooks").exists()
    assert run_git(path, "remote") == b""
    assert run_git(path, "config", "core.bare") == b"false\n"
    assert run_git(path, "config", "gc.auto") == b"0\n"
    assert stat.S_IMODE((path / "d0/f0").stat().st_mode) == 0o644
    assert stat.S_IMODE((path / "run.sh").stat().st_mode) == 0o755
    assert await room.provisioner.count_changes(made) == 0
    # It is a repository to work in, and its commits stay its own.
    run_git(path, "commit", "--allow-empty", "-qm", "mine")
    assert (await room.make("other", client.source()))[0].commit == client.head()


@pytest.mark.asyncio
async def test_a_detached_head(room: ProvisionerRoom, client: GitClient) -> None:
    await room.upload(client)
    made, path = await room.make("k", client.source(branch=""))
    assert made.branch == ""
    assert run_git(path, "rev-parse", "--abbrev-ref", "HEAD") == b"HEAD\n"


@pytest.mark.asyncio
async def test_a_dirty_tree_bit_for_bit(room: ProvisionerRoom, client: GitClient) -> None:
    await room.upload(client)
    client.write("d0/f0", b"changed\n")
    client.write("run.sh", b"#!/bin/sh\n", executable=False)
    client.write("d1/f1", b"line 1\n" * 20, executable=True)
    (client.path / "d2/f2").unlink()
    (client.path / "d3/f3").rename(client.path / "renamed")
    (client.path / "link").unlink()
    os.symlink("d1/f1", client.path / "link")
    (client.path / "d4/f4").unlink()
    os.symlink("../d0", client.path / "d4/f4")
    (client.path / "outside").unlink()
    client.write("outside/inside", b"a file where a link was\n")
    client.write(b"caf\xe9", b"changed latin\n")
    client.write(b"\xff\xfe", b"untracked\n")
    client.write("un\ntracked", b"")
    client.write("other.log", b"ignored")
    client.write("deep/er/and/deeper", bytes(range(256)))
    home = {n: e for n, e in listing(client.path).items() if not n.endswith(b".log")}
    made, path = await room.make("k", client.source(changes=client.dirty()))
    assert listing(path) == home
    expected = [each for each in statuses(client.path) if not each.endswith(b".log")]
    assert statuses(path) == expected
    assert b" D d2/f2" in expected
    assert run_git(path, "diff", "--cached") == b""
    assert run_git(path, "diff", "--binary") == client.git("diff", "--binary")
    assert run_git(path, "rev-parse", "HEAD").decode().strip() == client.head()
    assert await room.provisioner.count_changes(made) == 0
    assert run_git(path, "fsck") is not None


@pytest.mark.asyncio
async def test_many_small_changes(room: ProvisionerRoom, client: GitClient) -> None:
    await room.upload(client)
    for number in range(300):
        client.write(f"many/{number}", str(number).encode())
    os.symlink("many/1", client.path / "fresh")
    made, path = await room.make("k", client.source(changes=client.dirty()))
    assert listing(path) == files_of(client)
    assert await room.provisioner.count_changes(made) == 0


@pytest.mark.asyncio
async def test_line_ends_and_attributes(room: ProvisionerRoom, client: GitClient) -> None:
    client.write(".gitattributes", b"* text=auto\n*.bat text eol=crlf\n*.bin -text\n")
    client.write("a.bat", b"one\r\ntwo\r\n")
    client.write("a.txt", b"one\ntwo\n")
    client.write("a.bin", b"one\r\ntwo\n")
    client.commit()
    await room.upload(client)
    client.write("b.bat", b"three\r\n")
    made, path = await room.make("k", client.source(changes=client.dirty()))
    assert listing(path) == files_of(client)
    assert statuses(path) == [b"?? b.bat"]
    assert await room.provisioner.count_changes(made) == 0


@pytest.mark.asyncio
async def test_content_runs_nothing_on_the_host(
    room: ProvisionerRoom, client: GitClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = tmp_path / "ran"
    home = tmp_path / "home"
    hooks = home / "hooks"
    hooks.mkdir(parents=True)
    script = f"#!/bin/sh\ntouch {proof}\ncat\n"
    for name in ("post-checkout", "post-index-change", "reference-transaction"):
        (hooks / name).write_text(script)
        (hooks / name).chmod(0o755)
    (home / "filter").write_text(script)
    (home / "filter").chmod(0o755)
    (home / ".gitconfig").write_text(
        f"[core]\n\thooksPath = {hooks}\n\tfsmonitor = {home}/filter\n"
        f'[filter "evil"]\n\tsmudge = {home}/filter\n\tclean = {home}/filter\n'
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.hooksPath")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(hooks))
    client.write(".gitattributes", b"* filter=evil\n")
    client.write(".lfsconfig", b"[lfs]\n\turl = file:///\n")
    client.commit()
    await room.upload(client)
    client.write("d0/f0", b"changed\n")
    made, path = await room.make("k", client.source(changes=client.dirty()))
    # What the sandboxed program writes into its own git directory is not read either.
    (path / ".git/config").write_text((home / ".gitconfig").read_text())
    (path / "d0/f0").write_bytes(b"changes\n")
    (path / "d0/f10").write_bytes(b"x")
    assert await room.provisioner.count_changes(made) == 2
    assert not proof.exists()


@pytest.mark.asyncio
async def test_submodules_are_told(room: ProvisionerRoom, client: GitClient) -> None:
    client.write(".gitmodules", b'[submodule "x"]\n\tpath = x\n\turl = https://example.com/x\n')
    client.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},x")
    (client.path / "x").mkdir()
    client.git("add", ".gitmodules")
    client.git("commit", "-qm", "submodule")
    await room.upload(client)
    made, path = await room.make("k", client.source())
    assert made.has_submodules
    assert (path / "x").is_dir()
    assert await room.provisioner.count_changes(made) == 0


@pytest.mark.asyncio
async def test_changes_that_are_not_whole(room: ProvisionerRoom, client: GitClient) -> None:
    await room.upload(client)
    client.write("d0/f0", b"changed\n")
    tree = client.changes_tree()
    lone_tree = client.git("pack-objects", "--stdout", "-q", given=f"{tree}\n".encode())
    for changes in (Changes(tree, lone_tree), Changes("e" * 40, client.pack([tree]))):
        missed = await room.ask("k", client.source(changes=changes))
        assert missed == Miss(MissReason.UNKNOWN_CHANGES, (changes.tree,), (client.head(),))
    with pytest.raises(PackInvalid):
        await room.ask("k", client.source(changes=Changes(tree, b"PACK and no more")))
    await room.preparations.finished()  # which stages for templates
    assert not room.leftovers()
    assert not await room.trees.present()
    await room.make("k", client.source(changes=client.dirty()))


@pytest.mark.asyncio
async def test_twenty_calls_with_one_key(room: ProvisionerRoom, client: GitClient) -> None:
    await room.upload(client)
    made = await asyncio.gather(*(room.make("k", client.source()) for _ in range(20)))
    assert len({path for _, path in made}) == 1
    assert len(await room.trees.present()) == 1


@pytest.mark.asyncio
async def test_twenty_keys_at_once(room: ProvisionerRoom, client: GitClient) -> None:
    await room.upload(client)
    source = client.source()
    made = await asyncio.gather(*(room.make(str(n), source, "same") for n in range(20)))
    assert len({path for _, path in made}) == 20
    for _, path in made:
        assert statuses(path) == []


@pytest.mark.asyncio
async def test_release_while_it_is_made(room: ProvisionerRoom, client: GitClient) -> None:
    await room.upload(client)
    source = client.source()
    for pause in range(12):
        key = f"k{pause}"
        call = asyncio.create_task(room.ask(key, source))
        await asyncio.sleep(pause / 1000)
        await room.provisioner.release("ada", idempotency_key=key)
        assert not await room.trees.present()
        (outcome,) = await asyncio.gather(call, return_exceptions=True)
        assert isinstance(outcome, WorkspaceReleased | Workspace)
        await room.preparations.finished()  # which stages for the pool
        assert not room.leftovers()
        with pytest.raises(WorkspaceReleased):
            await room.ask(key, source)


@pytest.mark.asyncio
async def test_release_takes_the_path_away_at_once(
    room: ProvisionerRoom, client: GitClient, tmp_path: Path
) -> None:
    await room.upload(client)
    made, path = await room.make("k", client.source())
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("stays")
    os.symlink(precious, path / "way-out")
    locked = path / "locked/deeper"
    locked.mkdir(parents=True)
    (locked / "file").write_text("x")
    locked.chmod(0o000)
    (path / "locked").chmod(0o555)
    deep = os.open(path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d" * 100, dir_fd=deep)
        inner = os.open("d" * 100, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = inner
    os.close(deep)
    assert await room.provisioner.release("ada", workspace_id=made.workspace_id)
    assert not path.exists()
    assert not await room.provisioner.release("ada", workspace_id=made.workspace_id)
    while any(room.layout.trash.iterdir()):
        await room.trees.empty_trash()
    assert (precious / "file").read_text() == "stays"
    assert precious.stat().st_mode & 0o777 == 0o755 & ~_umask()


def _umask() -> int:
    now = os.umask(0o022)
    os.umask(now)
    return now


@pytest.mark.asyncio
async def test_counting_changes(room: ProvisionerRoom, client: GitClient) -> None:
    await room.upload(client)
    client.write("d0/f0", b"changed\n")
    made, path = await room.make("k", client.source(changes=client.dirty()))

    async def count() -> int | None:
        return await room.provisioner.count_changes(made)

    assert await count() == 0
    (path / "d0/f0").write_bytes(b"CHANGED\n")  # same size, maybe the same second
    assert await count() == 1
    (path / "d1/f1").unlink()
    (path / "run.sh").chmod(0o644)
    (path / "new\nfile").write_text("n")
    (path / "build.log").write_text("ignored")
    assert await count() == 4
    (path / "link").unlink()
    (path / "link").write_text("a file now")
    assert await count() == 5
    # What the program does to its git directory does not matter.
    run_git(path, "add", "-A")
    run_git(path, "commit", "-qm", "all")
    assert await count() == 5
    (path / ".git/index").write_bytes(b"garbage")
    (path / ".git/HEAD").write_bytes(b"garbage")
    (path / "nested").mkdir()
    run_git(path / "nested", "init", "-q")
    (path / "nested/.git/config").write_text("[core\nfsmonitor = touch /tmp/no")
    os.mkfifo(path / "fifo")
    assert await count() in (5, 6)
    shutil.rmtree(path / ".git")
    os.symlink("/etc", path / ".git")
    assert await count() in (5, 6)
    (path / "closed").mkdir(mode=0o000)
    assert await count() is not None
    (path / "closed").chmod(0o755)


class LoudGit:
    """A git that prints half a million untracked files."""

    @asynccontextmanager
    async def started(self, *_: str, **__: object) -> AsyncIterator[asyncio.subprocess.Process]:
        process = await asyncio.create_subprocess_shell(
            "yes '?? name' | head -c 4000000 | tr '\\n' '\\0'", stdout=asyncio.subprocess.PIPE
        )
        try:
            yield process
        finally:
            await process.communicate()


@pytest.mark.asyncio
async def test_counting_very_many_changes_takes_no_memory(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.upload(client)
    made, _ = await room.make("k", client.source())
    monkeypatch.setattr(room.trees, "_git", LoudGit())
    # How long it takes, which is more while memory is traced, is not what this shows.
    monkeypatch.setattr(git_trees, "_COUNT_SECONDS", 100.0)
    tracemalloc.start()
    try:
        assert await room.trees.count_changes(made) == 500_000
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.asyncio
async def test_directory_behind_a_symlink_is_not_the_workspaces(
    room: ProvisionerRoom, client: GitClient, tmp_path: Path
) -> None:
    await room.upload(client)
    made, path = await room.make("k", client.source())
    (path / "d0").rename(tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", path / "d0")
    # Ten files are gone and a link is new.
    assert await room.provisioner.count_changes(made) == 11


@pytest.mark.asyncio
async def test_a_restart_keeps_what_is_ready(tmp_path: Path, client: GitClient) -> None:
    async with open_room(tmp_path / "host") as room:
        await room.upload(client)
        made, path = await room.make("k", client.source())
        gone, _ = await room.make("gone", client.source())
        await room.provisioner.release("ada", workspace_id=gone.workspace_id)
        (path / "mine").write_text("work")
        (room.layout.staging / f"{made.workspace_id}.0123").mkdir()
        (room.layout.incoming / "half").mkdir()
        (room.layout.trees / ("wsp_" + "q" * 26)).mkdir()
        (room.layout.records / "wsp_torn.json").write_text('{"works')
        draft = room.layout.records / ".wsp_x.json.tmp"
        draft.write_text("{")
        os.utime(draft, (1, 1))
    async with open_room(tmp_path / "host") as room:
        again, same = await room.make("k", client.source())
        assert (again, same) == (made, path)
        assert (path / "mine").read_text() == "work"
        assert await room.provisioner.count_changes(again) == 1
        assert await room.trees.present() == {made.workspace_id}
        assert not room.leftovers()
        assert sorted(each.name for each in room.layout.records.iterdir()) == sorted(
            [".flushed", f"{made.workspace_id}.json", f"{gone.workspace_id}.json"]
        )
        with pytest.raises(WorkspaceReleased):
            await room.make("gone", client.source())
        while any(room.layout.trash.iterdir()):
            await room.trees.empty_trash()
