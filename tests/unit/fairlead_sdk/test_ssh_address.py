"""Addresses of hosts over SSH, and what ssh says when there is no way to one."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from fairlead_sdk.cli.running import MESH_UNAVAILABLE, NOT_PERMITTED, exit_status_of
from fairlead_sdk.errors import FairleadError, WorkspaceNotFound
from fairlead_sdk.ssh_address import SshAddress
from fairlead_sdk.ssh_bootstrap import command, mark
from fairlead_sdk.ssh_errors import AddressInvalid, error_fields, error_from_host, error_from_ssh


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ssh://ada@box/srv/x", SshAddress("ada", "box", 0, "/srv/x")),
        ("ssh://Box:2222/srv/x/", SshAddress("", "Box", 2222, "/srv/x")),
        ("ssh://ada@[::1]:22/srv", SshAddress("ada", "::1", 22, "/srv")),
        ("ssh://ada@box/~/fairlead", SshAddress("ada", "box", 0, "~/fairlead")),
        ("ssh://box/with%20space", SshAddress("", "box", 0, "/with space")),
    ],
)
def test_an_address_names_user_host_port_and_directory(text: str, found: SshAddress) -> None:
    assert SshAddress.read(text) == found
    assert SshAddress.read(str(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "box:/srv",
        "http://box/srv",
        "ssh://box",
        "ssh://box/",
        "ssh://box/~",
        "ssh://box:99999/srv",
        "ssh://ada:secret@box/srv",
        "ssh://-oProxyCommand=touch%20x/srv",
        "ssh://-l@box/srv",
        "ssh://ada;ls@box/srv",
        "ssh://box/srv?x",
        "ssh://box/a%0Ab",
        "ssh://box/a:b",
    ],
)
def test_what_is_no_address_is_refused_before_ssh_sees_it(text: str) -> None:
    with pytest.raises(AddressInvalid) as refused:
        SshAddress.read(text)
    assert refused.value.reason == "host_invalid"
    assert "ssh://user@host" in refused.value.remedy


@pytest.mark.parametrize(
    ("status", "complaint", "reason", "exit_status"),
    [
        (255, "Host key verification failed.\n", "host_key_unknown", NOT_PERMITTED),
        (
            255,
            "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
            "Host key verification failed.\n",
            "host_key_changed",
            NOT_PERMITTED,
        ),
        (255, "ada@box: Permission denied (publickey).\n", "ssh_unauthorized", NOT_PERMITTED),
        (
            255,
            "ssh: connect to host box port 22: Connection refused\n",
            "ssh_unreachable",
            MESH_UNAVAILABLE,
        ),
        (255, "", "ssh_unreachable", MESH_UNAVAILABLE),
        (255, "motd: Permission denied (publickey)\nlost\n", "ssh_unauthorized", NOT_PERMITTED),
        (255, "you said: ada@box: Permission denied (x)\n", "ssh_unreachable", MESH_UNAVAILABLE),
        (97, "Host key verification failed.\n", "python_missing", MESH_UNAVAILABLE),
        (98, "", "python_too_old", MESH_UNAVAILABLE),
        (1, "This account is not available.\n", "resident_failed", MESH_UNAVAILABLE),
        (None, "", "ssh_unreachable", MESH_UNAVAILABLE),
    ],
)
def test_the_end_of_ssh_has_a_reason_a_remedy_and_an_exit_status(
    status: int | None, complaint: str, reason: str, exit_status: int
) -> None:
    error = error_from_ssh("ada@box", status, complaint)
    assert error.reason == reason
    assert error.remedy
    assert error.message.count("\n") == 0
    assert exit_status_of(error) == exit_status


@pytest.mark.parametrize(
    "complaint",
    ["Host key verification failed.\n", "ada@box: Permission denied (publickey).\n", "", "lost\n"],
)
def test_a_remedy_names_the_port(complaint: str) -> None:
    assert "-p 2222 ada@box" in error_from_ssh("ada@box", 255, complaint, port=2222).remedy
    assert "-p " not in error_from_ssh("ada@box", 255, complaint).remedy


def test_the_key_that_is_to_be_forgotten_is_named_as_ssh_has_it() -> None:
    changed = "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
    assert "ssh-keygen -R '[box]:2222'" in error_from_ssh("a@box", 255, changed, port=2222).remedy
    assert error_from_ssh("a@box", 255, changed).remedy.endswith("ssh-keygen -R box")


def test_an_error_of_the_host_becomes_its_class_again() -> None:
    told: dict[str, object] = {
        "kind": "not_found",
        "reason": "workspace_not_found",
        "message": "There is no such workspace on this host.",
        "remedy": "Launch again.",
        "fields": {"workspace_id": "wsp_x"},
    }
    error = error_from_host("box", told)
    assert isinstance(error, WorkspaceNotFound)
    assert error_fields(error) == told
    missing = error_from_host("box", {"kind": "failed_precondition", "reason": "git_not_found"})
    assert missing.reason == "git_missing"
    assert exit_status_of(missing) == MESH_UNAVAILABLE
    assert isinstance(error_from_host("box", {}), FairleadError)


def test_the_command_is_one_line_and_an_echo_of_it_holds_no_mark() -> None:
    line = command("0123456789abcdef")
    assert "\n" not in line
    assert "\\" not in line
    words = shlex.split(line)
    assert words[:3] == ["exec", "sh", "-c"]
    assert subprocess.run(["sh", "-n", "-c", words[3]], check=False).returncode == 0
    assert mark("0123456789abcdef") not in line.encode()
    assert mark("0123456789abcdef").hex() not in line
