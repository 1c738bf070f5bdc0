"""What a launch may be asked for."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chassis.errors import InvalidArgument
from fairlead_limits import table
from fairlead_sdk import packs
from signalling.execution import Command
from signalling.launch_request import LaunchRequest, check_command, check_key, check_request
from signalling.snapshot import Changes, Source, Tip
from signalling.source_rules import check_source, check_tips
from tests.fakes.launch_room import COMMIT, OFFER, request
from workspace_provisioner import sources

SOURCE = Source(project="p", commit=COMMIT)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (replace(SOURCE, project=""), "project_invalid"),
        (replace(SOURCE, project="x" * 201), "project_invalid"),
        (replace(SOURCE, project="a\nb"), "project_invalid"),
        (replace(SOURCE, object_format="md5"), "object_format_invalid"),
        (replace(SOURCE, commit="C" * 40), "commit_invalid"),
        (replace(SOURCE, commit="HEAD"), "commit_invalid"),
        (replace(SOURCE, commit="c" * 39), "commit_invalid"),
        (replace(SOURCE, object_format="sha256"), "commit_invalid"),
        (replace(SOURCE, branch="a..b"), "branch_invalid"),
        (replace(SOURCE, digest="x"), "digest_invalid"),
        (replace(SOURCE, changes=Changes("nope")), "tree_invalid"),
        (replace(SOURCE, changes=Changes(COMMIT, b"x" * (256 * 1024 + 1))), "changes_too_large"),
    ],
)
def test_sources_that_are_refused(source: Source, reason: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        check_source(source)
    assert raised.value.reason == reason


def test_sources_that_are_taken() -> None:
    check_source(SOURCE)
    check_source(replace(SOURCE, object_format="sha256", commit="c" * 64, digest="d" * 64))
    check_source(replace(SOURCE, changes=Changes(COMMIT, b"x" * 256 * 1024), branch="a/b"))


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (Command(()), "command_invalid"),
        (Command(("",)), "command_invalid"),
        (Command(("a", "b\0")), "command_invalid"),
        (Command(("a", "\udcff")), "command_invalid"),
        (Command(("a",) * 4097), "command_too_long"),
        (Command(("x" * (128 * 1024),)), "command_too_long"),
        (Command(("a",), {"A=B": "c"}), "environment_invalid"),
        (Command(("a",), {"": "c"}), "environment_invalid"),
        (Command(("a",), {"A": "c\0"}), "environment_invalid"),
        (Command(("a",), {"A": "c" * 128 * 1024}), "environment_invalid"),
        (Command(("a",), directory="/etc"), "directory_invalid"),
        (Command(("a",), directory="a/../../b"), "directory_invalid"),
        (Command(("a",), timeout=timedelta(0)), "timeout_invalid"),
        (Command(("a",), timeout=timedelta(hours=48)), "timeout_invalid"),
    ],
)
def test_commands_that_are_refused(command: Command, reason: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        check_command(command)
    assert raised.value.reason == reason


def test_commands_that_are_taken() -> None:
    check_command(Command(("a",) * 4096, {"PATH": "x", "_x1": ""}, "a/b..c", True))
    check_command(Command(("x" * (128 * 1024 - 1),), timeout=timedelta(seconds=0.5)))


@pytest.mark.parametrize("key", ["", " a", "a ", "ü", "a\n", "x" * 256])
def test_keys_that_are_refused(key: str) -> None:
    with pytest.raises(InvalidArgument):
        check_key(key)


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=255))
def test_keys_of_printable_ascii_are_taken(key: str) -> None:
    check_key(key)


@pytest.mark.parametrize(
    "tip", [Tip("main", COMMIT), Tip("refs/heads/a..b", COMMIT), Tip("refs/heads/a", "x")]
)
def test_tips_that_are_refused(tip: Tip) -> None:
    with pytest.raises(InvalidArgument):
        check_tips((tip,), "sha1")


def test_whoever_takes_tips_takes_as_many_as_are_sent() -> None:
    longest = "refs/heads/" + "/".join(["p" * table.REF_PART_BYTES] * 3)
    padding = table.REF_BYTES - len(longest) - 1
    assert not packs.is_refused(f"{longest}/{'q' * padding}")
    tip = Tip(f"{longest}/{'q' * padding}", COMMIT)
    check_tips((tip,), "sha1")
    sources.checked_tips((sources.Tip(tip.ref, tip.commit),), sources.ObjectFormat.SHA1)


@given(st.builds(LaunchRequest, source=st.builds(Source, st.text(), st.text()), branch=st.text()))
def test_any_text_is_taken_or_refused(wanted: LaunchRequest) -> None:
    with suppress(InvalidArgument):
        check_request(wanted)


@pytest.mark.parametrize(
    "change",
    [
        {"branch": "x"},
        {"keep": True},
        {"command": None},
        {"command": Command(("true",), {"A": "b"})},
        {"command": Command(("true",), stdin=True)},
        {"lease": timedelta(seconds=5)},
        {"isolation": "walled"},
        {"offer": OFFER},
        {"source": replace(SOURCE, branch="main", changes=Changes(COMMIT))},
        {"source": replace(SOURCE, branch="other")},
    ],
)
def test_another_request_has_another_fingerprint(change: dict[str, object]) -> None:
    assert request(**change).fingerprint() != request().fingerprint()


def test_the_same_request_has_the_same_fingerprint() -> None:
    one = Command(("a",), {"A": "1", "B": "2"})
    other = Command(("a",), {"B": "2", "A": "1"})
    assert request(command=one).fingerprint() == request(command=other).fingerprint()
    assert request(lease=timedelta(minutes=30)).fingerprint() == request().fingerprint()
