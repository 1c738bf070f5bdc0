"""The browser's side of trickle and restart: Chromium's own peer connections on both ends, and a
front door in the page that can be late, lost or in between.
"""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.e2e.browser.in_page import failure_of, outcome, run

pytestmark = pytest.mark.chromium

_OPEN = """async () => {
    window.mesh = new FakeMesh();
    window.session = await Session.open({ door: mesh, target: "lch_fake", mode: "trickle" });
}"""
_CARRIES = """async () => {
    const bytes = content(300000);
    const echoed = await echo(session, 80, bytes);
    return await digest(echoed) === await digest(bytes);
}"""


def sent(page: Page) -> list[dict[str, object]]:
    """The messages of candidates, in order."""
    order = run(page, "() => mesh.order")
    assert isinstance(order, list)
    return [step for step in order if isinstance(step, dict)]


def test_the_offer_waits_for_the_watch_and_the_candidates_for_the_answer(page: Page) -> None:
    found = outcome(
        page,
        """async () => {
            window.mesh = new FakeMesh();
            let go;
            mesh.hold = new Promise(resolve => { go = resolve });
            const gathered = new Promise(resolve => {
                const wrapped = CandidateOutbox.prototype.end;
                CandidateOutbox.prototype.end = function() { wrapped.call(this); resolve() };
            });
            const opening = Session.open({ door: mesh, target: "lch_fake", mode: "trickle" });
            await gathered;
            const before = mesh.order.map(step => step.candidates ? "candidates" : step);
            go();
            window.session = await opening;
            return { before, round: session.round };
        }""",
    )
    assert found == {"before": ["POST", "watch", "subscribed", "offer"], "round": 1}
    (message,) = sent(page)
    assert message["candidates"]
    assert (message["round"], message["end_of_candidates"]) == (1, True)
    assert run(page, _CARRIES)


def test_a_restart_goes_on_with_what_is_open(page: Page) -> None:
    run(page, _OPEN)
    found = outcome(
        page,
        """async () => {
            const stream = session.connect(80);
            const writer = stream.writable.getWriter();
            const reader = stream.readable.getReader();
            const say = async text => {
                await writer.write(new TextEncoder().encode(text));
                return new TextDecoder().decode((await reader.read()).value);
            };
            const said = [await say("before")];
            const restarting = [session.restart(), session.restart()];
            said.push(await say("during"));
            await Promise.all(restarting);
            said.push(await say("after"));
            return { said, round: session.round, state: session.state };
        }""",
    )
    assert found == {"said": ["before", "during", "after"], "round": 2, "state": "connected"}
    rounds = [int(str(message["round"])) for message in sent(page)]
    assert rounds == sorted(rounds)
    assert rounds[-1] == 2
    run(page, "() => session.restart()")
    assert run(page, "() => session.round") == 3
    assert run(page, _CARRIES)


def test_a_restart_asks_for_fresh_servers_where_there_were_any(page: Page) -> None:
    order = run(
        page,
        """async () => {
            window.mesh = new FakeMesh();
            mesh.servers = [{ urls: ["stun:127.0.0.1:9"] }];
            window.session = await Session.open({ door: mesh, target: "lch_x", mode: "trickle" });
            await session.restart();
            return mesh.order.filter(step => step === "restart" || step === "servers");
        }""",
    )
    assert order == ["servers", "restart"]
    assert run(page, _CARRIES)


def test_the_gateway_asks_for_a_restart(page: Page) -> None:
    run(page, _OPEN)
    asked = """round => new Promise(resolve => {
        mesh.tell("restart_wanted", { round });
        const look = () => session.round > round ? resolve(session.round) : setTimeout(look, 10);
        look();
    })"""
    assert run(page, asked, 1) == 2
    run(page, "() => session.restart()")
    begun = run(page, "() => mesh.order.filter(step => step === 'restart').length")
    # That round is over: nothing begins.
    run(page, "() => mesh.tell('restart_wanted', { round: 1 })")
    assert run(page, _CARRIES)
    assert run(page, "() => mesh.order.filter(step => step === 'restart').length") == begun


def test_a_lost_watch_goes_on_after_the_last_event(page: Page) -> None:
    run(page, _OPEN)
    found = run(
        page,
        """() => new Promise(resolve => {
            const tell = () => mesh.tell("state", { state: "connected" });
            tell();
            session.addEventListener("event", ({ detail }) => {
                resolve([detail.type, mesh.sockets.at(-1).url]);
            });
            mesh.drop();
            const look = () => mesh.sockets.length > 1 ? tell() : setTimeout(look, 10);
            look();
        })""",
    )
    assert isinstance(found, list)
    kind, url = found
    assert kind == "state"
    assert str(url).startswith("/v1/sessions/ses_fake/watch?cursor=")
    assert run(page, _CARRIES)


def test_a_watch_that_is_refused(page: Page) -> None:
    script = """async problem => {
        window.mesh = new FakeMesh();
        const told = mesh.tell;
        mesh.tell = (type, members) => {
            if (type === "subscribed" && mesh.sockets.length === 1) {
                told.call(mesh, "problem", { problem });
                mesh.drop();
            } else told.call(mesh, type, members);
        };
        await Session.open({ door: mesh, target: "lch_fake", mode: "trickle" });
    }"""
    gone = {"status": 404, "reason": "session_not_found", "detail": "It is not there."}
    assert failure_of(page, script, gone) == ("Refused", "session_not_found")
    for status, reason in ((410, "cursor_gone"), (400, "cursor_invalid")):
        run(page, script, {"status": status, "reason": reason, "detail": "They are gone."})
        assert run(page, "() => mesh.sockets.length") == 2


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ("mesh.tell('closed', { reason: 'expired', message: 'It took too long.' })", "expired"),
        ("mesh.leave()", "peer_closed"),
        ("session.close()", "requested"),
    ],
)
def test_an_end_is_told_once_and_ends_its_streams(page: Page, ending: str, reason: str) -> None:
    run(page, _OPEN)
    found = outcome(
        page,
        f"""async () => {{
            const ends = [];
            const closed = new Promise(resolve => {{
                session.addEventListener("close", ({{ detail }}) => {{
                    ends.push(detail.reason);
                    resolve();
                }});
            }});
            const stream = session.connect(80);
            await stream.ready;
            {ending};
            await closed;
            const lost = await stream.closed.catch(error => error.reason);
            await session.close();
            return {{ ends, lost, left: mesh.order.includes("left") }};
        }}""",
    )
    assert found == {"ends": [reason], "lost": "channel_lost", "left": True}


def test_what_is_found_while_a_message_is_under_way_leaves_in_the_next(page: Page) -> None:
    found = run(
        page,
        """async () => {
            const sent = [];
            let arrived;
            const outbox = new CandidateOutbox(async (candidates, ended) => {
                sent.push([candidates, ended]);
                if (sent.length === 1) {
                    outbox.add("c");
                    outbox.add("d");
                }
                await new Promise(resolve => setTimeout(resolve));
                if (sent.length === 2) outbox.end();
                if (ended) arrived();
            });
            const all = new Promise(resolve => { arrived = resolve });
            outbox.add("a");
            outbox.add("b");
            outbox.open();
            await all;
            outbox.end();
            outbox.add("late");
            return sent;
        }""",
    )
    assert found == [[["a", "b"], False], [["c", "d"], False], [[], True]]


def test_an_answer_that_was_lost_is_asked_for_again_as_the_same_call(page: Page) -> None:
    found = outcome(
        page,
        """async () => {
            const keys = [];
            const real = window.fetch;
            window.fetch = async (url, request) => {
                keys.push(request.headers["Idempotency-Key"]);
                if (keys.length === 1) throw new TypeError("Failed to fetch");
                if (keys.length === 2) {
                    return new Response('{"reason": "gateway_unavailable"}', { status: 503 });
                }
                return real(url, request);
            };
            const found = await door.call("GET", "/v1/hosts");
            return { calls: keys.length, different: new Set(keys).size, whole: "hosts" in found };
        }""",
    )
    assert found == {"calls": 3, "different": 1, "whole": True}
