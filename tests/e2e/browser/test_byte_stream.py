"""The browser's side of `fairlead.bytes.v1`, row by row of the table in docs/protocol.md, on a
data channel that only notes what is sent.
"""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.e2e.browser.in_page import outcome

pytestmark = pytest.mark.chromium

_SCRIPT = """async ([messages, written]) => {
    const sent = [];
    const channel = {
        readyState: "open", bufferedAmount: 0, isClosed: false,
        send(message) { sent.push(typeof message === "string" ? message : message.byteLength) },
        close() { this.isClosed = true },
    };
    const stream = new ByteStream(channel);
    const writer = stream.writable.getWriter();
    const writing = written.map(size => size ? writer.write(new Uint8Array(size)) : writer.close());
    for (const promise of writing) promise.catch(() => {});
    await new Promise(resolve => setTimeout(resolve));
    for (const message of messages) {
        if (message === "closed") channel.onclose();
        else channel.onmessage({
            data: typeof message === "string" ? message : new ArrayBuffer(message)
        });
    }
    const read = stream.readable.getReader();
    const sizes = [];
    let reason = "";
    try {
        for (let next = await soon(read.read()); next && !next.done; next = await soon(read.read()))
            sizes.push(next.value.byteLength);
        await soon(stream.closed);
    } catch (error) {
        reason = error.reason;
    }
    return { sent, sizes, reason, complete: stream.isComplete, closed: channel.isClosed };

    function soon(promise) {
        return Promise.race([promise, new Promise(resolve => setTimeout(resolve))]);
    }
}"""
"""Writes, hears what the peer says, reads what there is, and tells what came of it; a written size
of 0 is the end.
"""

KIB64 = 65536
MIB = 1024 * 1024
P = "protocol_error"
RESET = 'reset {"reason": "port_refused", "message": "No."}'


def heard(page: Page, *messages: str | int, written: tuple[int, ...] = ()) -> dict[str, object]:
    return outcome(page, _SCRIPT, [list(messages), list(written)])


ENDINGS: list[tuple[tuple[str | int, ...], str]] = [
    ((1,), P),
    (("eof",), P),
    (("ready", "ready"), P),
    (("ready", 0), P),
    (("ready", KIB64 + 1), P),
    (("ready", *[KIB64] * 17), P),
    (("ready", "eof", 1), P),
    (("ready", "eof", "eof"), P),
    (("ready", "eof", "ready"), P),
    (("credit 15728641",), P),
    (("credit 0",), P),
    (("credit 1000000000",), P),
    (("ready", "hello"), P),
    (("reset", "closed"), P),
    (("reset {}",), P),
    (("reset null",), P),
    (("reset {",), P),
    ((RESET,), "port_refused"),
    (("ready", "eof", RESET), "port_refused"),
    (("closed",), "channel_lost"),
    (("ready", "eof", "closed"), "channel_lost"),
    ((RESET, "hello", "closed"), "port_refused"),
]


def test_what_ends_it(page: Page) -> None:
    for messages, reason in ENDINGS:
        found = heard(page, *messages)
        row = (found["reason"], found["closed"], found["complete"])
        assert row == (reason, True, False), messages
        sent = found["sent"]
        assert isinstance(sent, list)
        resets = [text for text in sent if str(text).startswith("reset ")]
        assert len(resets) == (reason == P), messages


def test_what_is_allowed(page: Page) -> None:
    found = heard(
        page, "credit 15728640", "ready", 1, KIB64, "eof", "credit 5", "closed", written=(7, 0)
    )
    assert found == {
        "sent": [7, "eof"],
        "sizes": [1, KIB64],
        "reason": "",
        "complete": True,
        "closed": True,
    }


def test_credit_bounds_what_is_sent_and_reading_grants_it(page: Page) -> None:
    found = heard(page, "ready", *[KIB64] * 16, "credit 100", written=(2 * MIB,))
    assert found["sizes"] == [KIB64] * 16
    sent = found["sent"]
    assert isinstance(sent, list)
    assert sum(size for size in sent if isinstance(size, int)) == MIB + 100
    assert [text for text in sent if isinstance(text, str)] == [f"credit {MIB // 4}"] * 4
