"""Which addresses of origins are taken, which are dialled, and whose credentials go along."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from chassis.errors import FairleadError
from workspace_provisioner.egress import EgressRules
from workspace_provisioner.origins import (
    Origin,
    OriginFailed,
    OriginFault,
    checked_origin,
    checked_upstream,
)
from workspace_provisioner.transport.address import OriginAddresses
from workspace_provisioner.transport.credentials import Credentials, Login, SshIdentity
from workspace_provisioner.transport.ssh import ssh_arguments


@pytest.mark.parametrize(
    ("url", "text", "path"),
    [
        ("https://GitHub.com/a/b.git", "https://github.com/a/b.git", "/a/b.git"),
        ("https://h:443/a/", "https://h/a", "/a"),
        ("https://h:8443/a%20b", "https://h:8443/a%20b", "/a%20b"),
        ("git@github.com:a/b.git", "ssh://git@github.com/~/a/b.git", "a/b.git"),
        ("git@h:/srv/b.git", "ssh://git@h/srv/b.git", "/srv/b.git"),
        ("[::1]:b", "ssh://[::1]/~/b", "b"),
        ("ssh://git@h:2222/srv/b", "ssh://git@h:2222/srv/b", "/srv/b"),
        ("ssh://git@h/~ada/b", "ssh://git@h/~/~ada/b", "~ada/b"),
        ("ssh://h/a%20b", "ssh://h/a b", "/a b"),
    ],
)
def test_addresses_are_normalised(url: str, text: str, path: str) -> None:
    found = checked_origin(url)
    assert (found.text, found.path) == (text, path)


@pytest.mark.parametrize(
    ("url", "written"),
    [
        ("git@h:a/b.git", "git@h:a/b.git"),
        ("ssh://git@h:2222/~/b", "ssh://git@h:2222/~/b"),
        ("ssh://git@h/srv/b", "ssh://git@h/srv/b"),
        ("https://h/b", "https://h/b"),
    ],
)
def test_a_workspace_gets_addresses_that_its_git_understands(url: str, written: str) -> None:
    assert checked_origin(url).git_url == written


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://h/a",
        "git://h/a",
        "file:///etc",
        "/srv/a.git",
        "ext::sh -c x",
        "ext::x",
        "https://user:token@h/a",
        "https://token@h/a",
        "ssh://user:word@h/a",
        "https://h",
        "https://h/",
        "https://h/a?x=y",
        "https://h/a#b",
        "https://h:99999/a",
        "https://-h/a",
        "ssh://-oProxyCommand=x/a",
        "-oProxyCommand=x@h:a",
        "ssh://-u@h/a",
        "h:-x",
        "https://h/a\nb",
        "https://h/a b",
        "ssh://h/a'b",
        "https://" + "h" * 300 + "/a",
        "https://h/" + "a" * 2000,
    ],
)
def test_anything_else_is_refused(url: str) -> None:
    with pytest.raises(FairleadError) as raised:
        checked_origin(url)
    assert raised.value.reason == "origin_invalid"
    assert "token" not in raised.value.message


@pytest.mark.parametrize(
    ("origin", "url", "text"),
    [
        ("https://h/a/b.git", "../c.git", "https://h/a/c.git"),
        ("https://h/a/b.git", "./c.git", "https://h/a/b.git/c.git"),
        ("https://h/a/b.git", "../../x/c", "https://h/x/c"),
        ("git@h:a/b.git", "../c.git", "ssh://git@h/~/a/c.git"),
        ("https://h/a/b", "https://other/c", "https://other/c"),
    ],
)
def test_relative_urls_start_from_the_origin(origin: str, url: str, text: str) -> None:
    assert checked_origin(origin).related(url).text == text


@pytest.mark.parametrize("url", ["../../../c", "../..", "./../../../../etc"])
def test_relative_urls_stay_on_their_host(url: str) -> None:
    with pytest.raises(FairleadError):
        checked_origin("https://h/a/b").related(url)


@pytest.mark.parametrize("age", [timedelta(seconds=-1), timedelta(hours=25)])
def test_an_age_beyond_a_day_is_refused(age: timedelta) -> None:
    with pytest.raises(FairleadError) as raised:
        checked_upstream("https://h/a", "main", age)
    assert raised.value.reason == "max_age_invalid"


def test_the_age_is_half_a_minute_by_default() -> None:
    assert checked_upstream("https://h/a", "main", None).max_age == timedelta(seconds=30)


OWN = "1.2.3.4"


def _rules(*allowed: str) -> EgressRules:
    return EgressRules(allowed=allowed, is_own=lambda address: str(address) == OWN)


@pytest.mark.parametrize(
    "address",
    [
        "0.1.2.3", "10.0.0.1", "100.64.0.1", "127.0.0.1", "169.254.169.254", "172.31.255.255",
        "192.168.1.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
        "::", "::1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1",
        "2001::1", "2002:a9fe:a9fe::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0",
        "fec0::1", "ff02::1",
    ],
)  # fmt: skip
def test_private_loopback_metadata_and_multicast_addresses_are_denied(address: str) -> None:
    assert _rules().allow("h.example", [address]) == ()


@pytest.mark.parametrize(
    "address", ["140.82.121.4", "2606:50c0:8000::1", "64:ff9b::8c52:7904", "::ffff:140.82.121.4"]
)
def test_public_addresses_are_allowed(address: str) -> None:
    assert _rules().allow("h.example", [address]) == (address,)


def test_what_is_configured_is_allowed_besides() -> None:
    rules = _rules("Git.Corp.", "10.1.0.0/16", "fd00::7", "192.168.0.9")
    assert rules.allow("git.corp", ["10.9.9.9", "100.64.0.1"]) == ("10.9.9.9", "100.64.0.1")
    found = ["10.1.2.3", "10.2.0.1", "fd00::7", "fd00::8", "192.168.0.9", "::ffff:10.1.2.3"]
    assert rules.allow("h", found) == ("10.1.2.3", "fd00::7", "192.168.0.9", "::ffff:10.1.2.3")
    assert rules.allow("evil.git.corp", ["10.9.9.9"]) == ()


def test_an_allowed_name_reaches_neither_this_machine_nor_metadata_services() -> None:
    special = ["127.0.0.1", "::1", "0.0.0.0", OWN, "168.63.129.16", "fd00:ec2::254"]  # noqa: S104
    assert _rules("git.corp", "0.0.0.0/0", "::/0").allow("git.corp", special) == ()
    rules = _rules("git.corp", "127.0.0.0/8", OWN, "168.63.129.16")
    assert rules.allow("git.corp", special) == ("127.0.0.1", OWN)
    assert rules.allow("168.63.129.16", ["168.63.129.16"]) == ("168.63.129.16",)


@pytest.mark.parametrize("entry", ["", "a b", "10.0.0.1/8", "https://h", "h:22"])
def test_an_entry_that_means_nothing_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="neither"):
        _rules(entry)


@pytest.mark.asyncio
async def test_a_name_without_an_address() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    with pytest.raises(OriginFailed) as raised:
        await OriginAddresses(rules=_rules(), resolve=resolve).of(checked_origin("h:a"))
    assert raised.value.fault is OriginFault.UNREACHABLE


LINES = """
not a line
http://ada:plain@h
https://ada:one@h/team
https://ada:tw%6f%3A@h
https://ada:three@h:8443
https://nobody@other
"""


@pytest.mark.parametrize(
    ("tenant", "url", "login"),
    [
        ("ada", "https://h/x", Login("ada", "two:")),
        ("ada", "https://h/team/x", Login("ada", "one")),
        ("ada", "https://h/teams", Login("ada", "two:")),
        ("ada", "https://h:8443/x", Login("ada", "three")),
        ("ada", "https://other/x", Login("nobody", "")),
        ("ada", "https://x.h/x", None),
        ("ada", "ssh://h/x", None),
        ("eve", "https://h/x", None),
    ],
)
def test_a_login_is_for_its_own_tenant_and_host(
    tmp_path: Path, tenant: str, url: str, login: Login | None
) -> None:
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada/git-credentials").write_text(LINES)
    found = Credentials(directory=tmp_path)
    assert found.login(tenant, checked_origin(url)) == login
    assert Credentials(directory=None).login(tenant, checked_origin(url)) is None
    assert "two" not in repr(login)


def test_a_tenant_never_leaves_its_directory(tmp_path: Path) -> None:
    (tmp_path / "git-credentials").write_text("https://a:b@h\n")
    (tmp_path / "sub").mkdir()
    with pytest.raises(FairleadError):
        Credentials(directory=tmp_path / "sub").login("..", checked_origin("https://h/x"))


def test_a_key_needs_the_hosts_that_it_trusts(tmp_path: Path) -> None:
    found = Credentials(directory=tmp_path)
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada/ssh_key").write_text("key")
    assert found.identity("ada") is None
    (tmp_path / "ada/known_hosts").write_text("h ssh-ed25519 x")
    assert found.identity("ada") == SshIdentity(
        tmp_path / "ada/ssh_key", tmp_path / "ada/known_hosts"
    )


def test_ssh_is_told_everything_and_reads_nothing() -> None:
    identity = SshIdentity(Path("/c/ada/ssh_key"), Path("/c/ada/known_hosts"))
    found = ssh_arguments(Origin("ssh", "h.example", 2222, "a b;c", "git"), "192.0.2.1", identity)
    assert found[:3] == ["-F", "none", "-T"]
    assert found[-3:] == ["--", "h.example", "git-upload-pack 'a b;c'"]
    for option in (
        "HostName=192.0.2.1",
        "HostKeyAlias=[h.example]:2222",
        "StrictHostKeyChecking=yes",
        'UserKnownHostsFile="/c/ada/known_hosts"',
        "GlobalKnownHostsFile=/dev/null",
        "IdentityAgent=none",
        "ProxyCommand=none",
        "BatchMode=yes",
    ):
        assert option in found
