"""Origins spoken to for real: https with a certificate of our own, ssh with OpenSSH, both versions
of git's protocol, and everything that a host must refuse.
"""

from __future__ import annotations

import asyncio
import getpass
import shutil
import socket
import ssl
import threading
from collections.abc import Awaitable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from chassis.own_addresses import is_own
from chassis.resolver import SystemResolver
from tests.fakes.git_client import GitClient, run_git
from tests.https_git import NAME, HttpsGitServer, https_git_server
from tests.openssh import OpenSshServer, openssh_server, sshd_program
from workspace_provisioner.egress import EgressRules
from workspace_provisioner.origins import OriginFailed, OriginFault, checked_origin
from workspace_provisioner.sources import ObjectFormat
from workspace_provisioner.transport.address import OriginAddresses
from workspace_provisioner.transport.credentials import Credentials
from workspace_provisioner.transport.upstreams import GitOrigins


class Names:
    """A resolver that knows our names, and how often it was asked for each."""

    def __init__(self, **names: list[str]) -> None:
        self.names = {name.replace("_", "."): found for name, found in names.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        if host in self.names:
            return self.names[host]
        with closing(SystemResolver(threads=2)) as resolver:
            return await resolver(host, port)


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> GitClient:
    """A repository of thirty commits, some of them on another branch, with a tag."""
    found = GitClient(tmp_path_factory.mktemp("origin") / "work")
    for number in range(30):
        found.write(f"f{number % 7}", f"{number}\n".encode() * 200)
        found.commit(f"commit {number}")
    found.git("branch", "release/1.0", "HEAD~5")
    found.git("tag", "-a", "-m", "first", "v1", "HEAD~10")
    return found


@pytest.fixture
def https(tmp_path: Path, origin: GitClient) -> Iterator[HttpsGitServer]:
    """A server with the origin, as `project.git` and, behind a login, as `private.git`."""
    with https_git_server(tmp_path / "https") as server:
        for name in ("project.git", "private.git"):
            run_git(server.root, "clone", "-q", "--bare", str(origin.path), name)
        server.logins["/private.git"] = ("ada", "p@ss:word")
        yield server


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[OpenSshServer]:
    program = sshd_program()
    if program is None or shutil.which("ssh") is None:
        pytest.skip("needs OpenSSH's server: apt-get install openssh-server")
    with openssh_server(program, tmp_path / "sshd", "AcceptEnv GIT_PROTOCOL") as server:
        yield server


def origins(
    server: HttpsGitServer | None = None,
    *,
    allowed: tuple[str, ...] = (NAME, "127.0.0.0/8"),
    credentials: Path | None = None,
    resolve: Names | None = None,
) -> GitOrigins:
    return GitOrigins(
        addresses=OriginAddresses(
            rules=EgressRules(allowed=allowed, is_own=is_own),
            resolve=resolve or Names(origin_test=["127.0.0.1"], other_test=["127.0.0.1"]),
        ),
        credentials=Credentials(directory=credentials),
        trust=server.trust() if server else ssl.create_default_context(),
    )


async def tip(found: GitOrigins, url: str, branch: str = "main", tenant: str = "ada") -> str:
    async with found.talk(tenant, checked_origin(url), ObjectFormat.SHA1) as talk:
        return await talk.tip(branch)


async def pack_of(
    found: GitOrigins, url: str, commit: str, having: tuple[str, ...] = (), tenant: str = "ada"
) -> bytes:
    async with found.talk(tenant, checked_origin(url), ObjectFormat.SHA1) as talk:
        return b"".join([chunk async for chunk in talk.pack(commit, having)])


async def fault(asked: Awaitable[object]) -> OriginFault:
    with pytest.raises(OriginFailed) as raised:
        await asked
    return raised.value.fault


def clone_with(tmp_path: Path, pack: bytes, *, having: GitClient | None = None) -> Path:
    """Index a pack where the objects of `having` are."""
    target = tmp_path / f"clone{len(list(tmp_path.iterdir()))}"
    target.mkdir()
    run_git(target, "init", "-q", "--bare")
    if having is not None:
        (target / "objects/info/alternates").write_text(f"{having.path}/.git/objects\n")
    run_git(target, "index-pack", "--stdin", "--fix-thin", "--strict", given=pack)
    return target


@pytest.mark.asyncio
@pytest.mark.parametrize("speaks_v2", [True, False], ids=["v2", "v0"])
async def test_a_tip_and_its_pack_over_https(
    https: HttpsGitServer, origin: GitClient, tmp_path: Path, speaks_v2: bool
) -> None:
    https.speaks_v2 = speaks_v2
    found = origins(https)
    assert await tip(found, https.url("project.git")) == origin.head()
    release = origin.git("rev-parse", "release/1.0").decode().strip()
    assert await tip(found, https.url("project.git"), "release/1.0") == release
    pack = await pack_of(found, https.url("project.git"), origin.head())
    whole = clone_with(tmp_path, pack)
    assert run_git(whole, "rev-list", "--count", origin.head()) == b"30\n"
    thin = await pack_of(
        found, https.url("project.git"), origin.head(), (release, "1" * 40, origin.head()[::-1])
    )
    assert len(thin) < len(pack) / 2
    near = clone_with(tmp_path, thin, having=origin)
    assert run_git(near, "cat-file", "-t", origin.head()) == b"commit\n"
    # A commit that no ref names is had as well, as submodules need it.
    older = origin.git("rev-parse", "HEAD~7").decode().strip()
    some = clone_with(tmp_path, await pack_of(found, https.url("project.git"), older))
    assert run_git(some, "rev-list", "--count", older) == b"23\n"


@pytest.mark.asyncio
@pytest.mark.parametrize("speaks_v2", [True, False], ids=["v2", "v0"])
async def test_a_missing_branch_is_told_from_a_missing_repository(
    https: HttpsGitServer, speaks_v2: bool
) -> None:
    https.speaks_v2 = speaks_v2
    found = origins(https)
    url = https.url("project.git")
    assert await fault(tip(found, url, "mai")) is OriginFault.BRANCH_MISSING
    assert await fault(tip(found, url, "release")) is OriginFault.BRANCH_MISSING
    assert await fault(tip(found, https.url("none.git"))) is OriginFault.UNREACHABLE
    if speaks_v2:  # in the first version it shows once the pack is here
        assert await fault(pack_of(found, url, "1" * 40)) is OriginFault.COMMIT_MISSING


@pytest.mark.asyncio
async def test_two_tenants_credentials(
    https: HttpsGitServer, origin: GitClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "credentials"
    for tenant, password in (("ada", "p%40ss%3Aword"), ("eve", "guess")):
        (folder / tenant).mkdir(parents=True)
        lines = f"https://x:y@elsewhere.test\nhttps://ada:{password}@{NAME}:{https.port}\n"
        (folder / tenant / "git-credentials").write_text(lines)
    found = origins(https, credentials=folder)
    url = https.url("private.git")
    assert await tip(found, url, tenant="ada") == origin.head()
    assert await fault(tip(found, url, tenant="eve")) is OriginFault.UNAUTHORIZED
    assert await fault(tip(found, url, tenant="bob")) is OriginFault.UNAUTHORIZED
    assert "p@ss" not in caplog.text
    assert "p@ss" not in repr(found)


@pytest.mark.asyncio
async def test_redirects_stay_on_their_host(https: HttpsGitServer, origin: GitClient) -> None:
    found = origins(https)
    https.redirects["/old.git"] = "/project.git"
    https.redirects["/also.git"] = https.url("project.git")
    https.redirects["/away.git"] = https.url("project.git", "other.test")
    https.redirects["/port.git"] = f"https://{NAME}/project.git"
    https.redirects["/plain.git"] = f"http://{NAME}:{https.port}/project.git"
    https.redirects["/round.git"] = "/round.git"
    https.redirects["/login.git"] = "/sign-in?to="
    for name in ("old.git", "also.git"):
        assert await tip(found, https.url(name)) == origin.head()
        assert await pack_of(found, https.url(name), origin.head())
    for name in ("away.git", "port.git", "plain.git", "round.git", "login.git"):
        assert await fault(tip(found, https.url(name))) is OriginFault.REDIRECTED, name


@pytest.mark.asyncio
async def test_private_addresses_are_denied(https: HttpsGitServer) -> None:
    names = Names(
        origin_test=["127.0.0.1"], cloud_test=["169.254.169.254", "fd00:ec2::254"], six_test=["::1"]
    )
    found = origins(https, allowed=(), resolve=names)
    for host in (
        NAME, "cloud.test", "six.test", "127.0.0.1", "2130706433", "0x7f.1", "10.1.2.3",
        "100.64.0.1", "[::ffff:127.0.0.1]", "[64:ff9b::a9fe:a9fe]", "224.0.0.1",
    ):  # fmt: skip
        url = f"https://{host}:{https.port}/project.git"
        assert await fault(tip(found, url)) is OriginFault.DENIED, host
        if host.startswith("["):
            continue
        assert await fault(tip(found, f"ssh://git@{host}/x")) is OriginFault.DENIED, host
    assert https.requests == []


@pytest.mark.asyncio
async def test_the_address_is_resolved_once_and_pinned(
    https: HttpsGitServer, origin: GitClient
) -> None:
    """A name that means something else the second time is not asked a second time."""
    names = Names(origin_test=["127.0.0.1"])
    found = origins(https, allowed=("127.0.0.1",), resolve=names)
    async with found.talk(
        "ada", checked_origin(https.url("project.git")), ObjectFormat.SHA1
    ) as talk:
        names.names[NAME] = ["169.254.169.254"]
        assert await talk.tip("main") == origin.head()
        assert b"".join([each async for each in talk.pack(origin.head(), ())])
    assert names.asked == [NAME]
    assert await fault(tip(found, https.url("project.git"))) is OriginFault.DENIED


@pytest.mark.asyncio
async def test_only_the_addresses_that_are_allowed_are_dialled(https: HttpsGitServer) -> None:
    names = Names(origin_test=["169.254.169.254", "127.0.0.1"])
    assert await tip(
        origins(https, allowed=("127.0.0.1",), resolve=names), https.url("project.git")
    )


@pytest.mark.asyncio
async def test_a_certificate_that_nobody_vouches_for(https: HttpsGitServer) -> None:
    assert await fault(tip(origins(), https.url("project.git"))) is OriginFault.DENIED


@pytest.mark.asyncio
async def test_a_dead_origin_and_one_that_is_no_git_server(https: HttpsGitServer) -> None:
    found = origins(https)
    dead = f"https://{NAME}:1/project.git"
    assert await fault(tip(found, dead)) is OriginFault.UNREACHABLE
    https.broken_pack = True
    url = https.url("project.git")
    assert await fault(pack_of(found, url, await tip(found, url))) is OriginFault.UNREACHABLE

    async def gibberish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"SSH-2.0-other\r\n" * 3)
        writer.close()

    server = await asyncio.start_server(
        gibberish, "127.0.0.1", 0, ssl=_server_context(https.certificate)
    )
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert await fault(tip(found, f"https://{NAME}:{port}/x")) is OriginFault.MALFORMED


def _server_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    return context


@pytest.mark.asyncio
async def test_another_object_format_is_refused(https: HttpsGitServer, tmp_path: Path) -> None:
    other = GitClient(tmp_path / "sha256", object_format="sha256")
    other.write("a", b"a")
    head = other.commit()
    run_git(https.root, "clone", "-q", "--bare", str(other.path), "sha256.git")
    found = origins(https)
    url = https.url("sha256.git")
    assert await fault(tip(found, url)) is OriginFault.MALFORMED
    async with found.talk("ada", checked_origin(url), ObjectFormat.SHA256) as talk:
        assert await talk.tip("main") == head
        assert b"".join([each async for each in talk.pack(head, ())]).startswith(b"PACK")


def identity(folder: Path, tenant: str, server: OpenSshServer, *, alias: str = "") -> None:
    """Give a tenant the server's user key, and its host key under another name if one is given."""
    (folder / tenant).mkdir(parents=True)
    shutil.copy(server.directory / "user_key", folder / tenant / "ssh_key")
    (folder / tenant / "ssh_key").chmod(0o600)
    known = (server.directory / "known_hosts").read_text()
    if alias:
        known = known.replace("127.0.0.1", alias)
    (folder / tenant / "known_hosts").write_text(known)


@pytest.mark.asyncio
async def test_ssh_with_the_tenants_own_key(
    sshd: OpenSshServer, origin: GitClient, tmp_path: Path
) -> None:
    folder = tmp_path / "credentials"
    identity(folder, "ada", sshd, alias=NAME)
    found = origins(credentials=folder)
    url = f"ssh://{getpass.getuser()}@{NAME}:{sshd.port}{origin.path}"
    assert await tip(found, url) == origin.head()
    older = origin.git("rev-parse", "HEAD~3").decode().strip()
    thin = await pack_of(found, url, origin.head(), (older,))
    clone_with(tmp_path, thin, having=origin)
    assert await fault(tip(found, url, "none")) is OriginFault.BRANCH_MISSING
    assert await fault(tip(found, url, tenant="eve")) is OriginFault.UNAUTHORIZED
    assert await fault(tip(found, f"{url}/none")) is OriginFault.UNREACHABLE


@pytest.mark.asyncio
async def test_ssh_without_the_newer_protocol(origin: GitClient, tmp_path: Path) -> None:
    program = sshd_program()
    if program is None or shutil.which("ssh") is None:
        pytest.skip("needs OpenSSH's server: apt-get install openssh-server")
    with openssh_server(program, tmp_path / "sshd") as server:
        folder = tmp_path / "credentials"
        identity(folder, "ada", server)
        found = origins(credentials=folder)
        url = f"ssh://{getpass.getuser()}@127.0.0.1:{server.port}{origin.path}"
        assert await tip(found, url) == origin.head()
        whole = clone_with(tmp_path, await pack_of(found, url, origin.head()))
        assert run_git(whole, "rev-list", "--count", origin.head()) == b"30\n"
        older = origin.git("rev-parse", "HEAD~7").decode().strip()
        some = clone_with(tmp_path, await pack_of(found, url, older))
        assert run_git(some, "rev-list", "--count", older) == b"23\n"


@pytest.mark.asyncio
async def test_a_host_key_that_the_tenant_does_not_know(
    sshd: OpenSshServer, origin: GitClient, tmp_path: Path
) -> None:
    folder = tmp_path / "credentials"
    identity(folder, "ada", sshd)
    other = (sshd.directory / "user_key.pub").read_text().split()[1]
    known = folder / "ada" / "known_hosts"
    known.write_text(f"[127.0.0.1]:{sshd.port} ssh-ed25519 {other}\n")
    found = origins(credentials=folder)
    url = f"ssh://{getpass.getuser()}@127.0.0.1:{sshd.port}{origin.path}"
    assert await fault(tip(found, url)) is OriginFault.DENIED
    known.write_text("")
    assert await fault(tip(found, url)) is OriginFault.DENIED


@pytest.mark.asyncio
async def test_a_key_that_the_server_does_not_take(
    sshd: OpenSshServer, origin: GitClient, tmp_path: Path
) -> None:
    folder = tmp_path / "credentials"
    identity(folder, "ada", sshd)
    shutil.copy(sshd.directory / "host_key", folder / "ada" / "ssh_key")
    url = f"ssh://{getpass.getuser()}@127.0.0.1:{sshd.port}{origin.path}"
    assert await fault(tip(origins(credentials=folder), url)) is OriginFault.UNAUTHORIZED


@pytest.mark.asyncio
async def test_silent_name_servers_hold_up_no_other_name(monkeypatch: pytest.MonkeyPatch) -> None:
    known, gate = socket.getaddrinfo, threading.Event()

    def ask(host: str, port: int, **options: int) -> object:
        if host.startswith("silent"):
            gate.wait()
            raise OSError("no answer")
        return known(host, port, **options)

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    with closing(SystemResolver(threads=2)) as resolver:
        silent = [
            asyncio.ensure_future(resolver(f"silent{number}.example", 443)) for number in range(64)
        ]
        try:
            async with asyncio.timeout(60):
                assert await resolver("127.0.0.1", 443) == ["127.0.0.1"]
                # Nor does anybody else who has to leave the loop for a moment.
                await asyncio.to_thread(gate.is_set)
        finally:
            gate.set()
        found = await asyncio.gather(*silent, return_exceptions=True)
        assert all(isinstance(each, OSError) for each in found)
