"""Every verb describes itself, and so does the version."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from fairlead_sdk.cli.app import main

GROUPS = ("workspace", "sandbox", "session", "context")


def helped(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        main([*arguments, "--help"])
    assert left.value.code == 0
    return capsys.readouterr().out


def verbs_of(shown: str) -> list[str]:
    """Return the verbs that a help lists; a description that wraps is indented further."""
    listed = shown.split("VERB\n")[1].splitlines()
    return [line.split()[0] for line in listed if line[4:5].strip()]


def test_every_verb_describes_itself_and_its_output_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    verbs = verbs_of(helped(capsys))
    assert {"up", "launch", *GROUPS} <= set(verbs)
    below = [f"{group} {verb}" for group in GROUPS for verb in verbs_of(helped(capsys, group))]
    for verb in [*(verb for verb in verbs if verb not in GROUPS), *below]:
        shown = helped(capsys, *verb.split())
        assert f"usage: fairlead {verb} [OPTIONS]" in shown
        assert "-o, --output FORMAT" in shown, verb


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"fairlead {version('fairlead-sdk')}\n"
