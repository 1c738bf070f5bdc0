"""What `up` says in one line about how sandboxes are isolated."""

from __future__ import annotations

import pytest

from devstack.rooms import sandboxes_line


@pytest.mark.parametrize(
    ("offered", "is_root", "said"),
    [
        (["walled"], False, "walled"),
        (["walled", "process"], False, "walled; without walls for one tenant who asks (process)"),
        (
            ["process"],
            False,
            "NO WALLS (refused): programs run on this machine as the stack",
        ),
        (["process"], True, "NO WALLS (refused): programs run on this machine as root"),
        ([], False, "NO WALLS (refused); they serve another tenant only"),
    ],
)
def test_the_line_says_as_whom_programs_run(offered: list[str], is_root: bool, said: str) -> None:
    missing = {"name": "user", "stands": False, "reason": "refused"}
    user = {"name": "unprivileged", "stands": not is_root, "reason": ""}
    line = sandboxes_line({"isolation": offered, "walls": {"walled": [missing], "process": [user]}})
    assert line.startswith(said)
    assert "\n" not in line
