"""What `fairlead socks` says of options that cannot be right."""

from __future__ import annotations

import pytest

from fairlead_sdk.cli.app import main


@pytest.mark.parametrize("text", ["65536", "-1", "x", ""])
def test_what_is_no_port_is_said_in_words(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["socks", f"--port={text}"])
    assert ended.value.code == 2
    assert f"{text!r} is not a port from 0 to 65535" in capsys.readouterr().err
