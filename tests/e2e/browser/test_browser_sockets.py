"""A browser's WebSockets at the front door: its key travels as a subprotocol."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from fairlead_sdk import Fairlead
from tests.e2e.browser.in_page import outcome
from tests.e2e.mesh_client import MeshClient
from tests.e2e.running_stack import RunningStack

pytestmark = pytest.mark.chromium

_TYPE = """([path, protocol, key, typed]) => new Promise(resolve => {
    const socket = new FrontDoor(location.origin, key).socket(path, protocol);
    socket.binaryType = "arraybuffer";
    let shown = "";
    let typing = new Uint8Array([0, 0, 0, 0, 0, 0, 0, 0, ...new TextEncoder().encode(typed)]);
    socket.onopen = () => socket.send(JSON.stringify({ type: "open" }));
    socket.onmessage = ({ data }) => {
        if (typeof data !== "string") shown += new TextDecoder().decode(data.slice(8));
        else if (JSON.parse(data).type === "snapshot") socket.send(typing);
    };
    socket.onclose = ({ code }) => {
        resolve({ protocol: socket.protocol, url: socket.url, shown, code });
    };
})"""
"""Types into a terminal, and says in the end what it was like."""


@pytest.fixture
def execution(stack: RunningStack) -> Iterator[str]:
    """A shell on a terminal."""
    with (
        Fairlead(url=stack.url, api_key=stack.api_key) as fairlead,
        fairlead.sandboxes.create() as sandbox,
        MeshClient(stack=stack) as mesh,
    ):
        started = mesh.post(
            f"/v1/sandboxes/{sandbox.sandbox_id}/executions",
            {"arguments": ["sh"], "terminal": {"rows": 24, "columns": 80}},
        )
        yield str(started["execution_id"])


def test_it_types_into_a_terminal(page: Page, stack: RunningStack, execution: str) -> None:
    path, protocol = f"/v1/executions/{execution}/terminal", "fairlead.terminal.v1"
    typed = "echo so$((6 * 7)); exit\n"
    found = outcome(page, _TYPE, [path, protocol, stack.api_key, typed])
    assert (found["protocol"], found["code"]) == (protocol, 1000)
    assert "so42" in str(found["shown"])
    assert stack.api_key not in str(found["url"])


@pytest.mark.parametrize("path", ["/v1/executions/exe_x/terminal", "/v1/sandboxes/sbx_x/objects"])
def test_a_wrong_key_opens_none(page: Page, path: str) -> None:
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    key = "flk_" + "x" * 43
    found = outcome(page, _TYPE, [path, "fairlead.terminal.v1", key, ""])
    assert (found["protocol"], found["shown"], found["code"]) == ("", "", 1006)
    (line,) = said
    assert "HTTP Authentication failed" in line
