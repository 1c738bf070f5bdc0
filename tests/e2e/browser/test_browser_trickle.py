"""A browser and a gateway with the native core: candidates on their way, restarts under load."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.e2e.browser.in_page import outcome, run
from tests.e2e.browser.inside import Inside, echoes, opened
from tests.e2e.mesh_client import MeshClient
from tests.e2e.running_stack import RunningStack

pytestmark = pytest.mark.chromium

_RESTARTED = """async port => {
    const stream = session.connect(port);
    const bytes = content(4 * 1024 * 1024);
    const half = bytes.byteLength / 2;
    const writer = stream.writable.getWriter();
    const received = new Response(stream.readable).arrayBuffer();
    await writer.write(bytes.subarray(0, half));
    const restarting = session.restart();
    await writer.write(bytes.subarray(half));
    await restarting;
    show(`restarted: round ${session.round}, ${session.state}`);
    await writer.close();
    const echoed = new Uint8Array(await received);
    await stream.closed;
    return { sent: await digest(bytes), received: await digest(echoed), round: session.round };
}"""


def test_it_trickles_and_goes_on_over_restarts(
    page: Page, stack: RunningStack, inside: Inside
) -> None:
    session_id = opened(page, inside, "trickle")
    echoes(page, inside, 1024 * 1024)
    for number in (2, 3):
        found = outcome(page, _RESTARTED, inside.echo)
        assert found["received"] == found["sent"]
        assert found["round"] == number
    echoes(page, inside, 1024 * 1024)
    with MeshClient(stack=stack) as mesh:
        record = mesh.get(f"/v1/sessions/{session_id}")
        assert (record["state"], record["mode"], record["round"]) == ("connected", "trickle", 3)
        run(page, "() => session.close()")
        closed = mesh.get(f"/v1/sessions/{session_id}")
        assert (closed["state"], closed["close_reason"]) == ("closed", "requested")


def test_it_is_told_that_the_session_was_closed(
    page: Page, stack: RunningStack, inside: Inside
) -> None:
    session_id = opened(page, inside, "trickle")
    run(
        page,
        """async port => {
            window.stream = session.connect(port);
            window.ending = new Promise(resolve => {
                session.addEventListener("close", ({ detail }) => resolve(detail.reason));
            });
            await stream.ready;
        }""",
        inside.echo,
    )
    with MeshClient(stack=stack) as mesh:
        assert mesh.http.delete(f"/v1/sessions/{session_id}").status_code == 200
    assert run(page, "() => ending") in {"requested", "peer_closed"}
    assert run(page, "() => stream.closed.catch(error => error.name)") == "StreamReset"
