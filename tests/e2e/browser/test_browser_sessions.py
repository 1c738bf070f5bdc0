"""A browser reaches ports of a sandbox: REST, WebRTC and `fairlead.bytes.v1`, on a whole stack."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.e2e.browser.in_page import failure_of, run
from tests.e2e.browser.inside import Inside, echoes, opened
from tests.e2e.mesh_client import MeshClient
from tests.e2e.running_stack import RunningStack, eventually

pytestmark = pytest.mark.chromium


def test_megabytes_come_back_unharmed(page: Page, stack: RunningStack, inside: Inside) -> None:
    session_id = opened(page, inside)
    echoes(page, inside, 4 * 1024 * 1024)
    with MeshClient(stack=stack) as mesh:
        assert mesh.get(f"/v1/sessions/{session_id}")["state"] == "connected"
        run(page, "() => session.close()")
        closed = mesh.get(f"/v1/sessions/{session_id}")
        assert (closed["state"], closed["close_reason"]) == ("closed", "requested")


def test_a_connection_that_is_not_read_stalls_only_itself(page: Page, inside: Inside) -> None:
    opened(page, inside)
    run(
        page,
        """async port => {
            window.flood = session.connect(port);
            await flood.ready;
        }""",
        inside.flood,
    )
    echoes(page, inside, 1024 * 1024)
    received = run(
        page,
        """async () => {
            const reader = flood.readable.getReader();
            let received = 0;
            while (received < 4 * 1024 * 1024) received += (await reader.read()).value.byteLength;
            await reader.cancel();
            return received;
        }""",
    )
    assert isinstance(received, int)
    assert 4 * 1024 * 1024 <= received < 5 * 1024 * 1024
    echoes(page, inside, 1000)


def test_many_connections_at_once_and_one_after_the_other(page: Page, inside: Inside) -> None:
    opened(page, inside)
    whole = run(
        page,
        """async port => {
            let whole = 0;
            const one = async size => {
                const bytes = content(size);
                const echoed = await echo(session, port, bytes);
                whole += await digest(echoed) === await digest(bytes);
            };
            await Promise.all(Array.from({ length: 20 }, (_, at) => one(60000 + at)));
            for (let at = 0; at < 40; at++) await one(at);
            show(`${whole} connections`);
            return whole;
        }""",
        inside.echo,
    )
    assert whole == 60


def test_a_refusal_says_why(page: Page, inside: Inside) -> None:
    opened(page, inside)
    reached = failure_of(page, "port => session.connect(port).ready", 1)
    assert reached == ("StreamReset", "port_refused")
    unknown = failure_of(page, "() => Session.open({ door, target: 'sbx_unknown' })")
    assert unknown == ("Refused", "sandbox_not_found")
    keyless = failure_of(
        page, "() => new FrontDoor(location.origin, 'no').call('GET', '/v1/hosts')"
    )
    assert keyless == ("Refused", "key_invalid")


def test_a_page_that_goes_away_leaves_no_session(
    page: Page, stack: RunningStack, inside: Inside
) -> None:
    session_id = opened(page, inside)
    run(page, "async port => { await session.connect(port).ready }", inside.echo)
    page.goto("about:blank")
    with MeshClient(stack=stack) as mesh:

        def close_reason() -> object:
            return mesh.get(f"/v1/sessions/{session_id}")["close_reason"]

        assert eventually(lambda: close_reason() == "peer_closed"), close_reason()
