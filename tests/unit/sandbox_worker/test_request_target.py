"""What a proxy request asks for, and what is no request for a proxy."""

from __future__ import annotations

import pytest

from sandbox_worker.network.request_target import (
    Fields,
    TargetInvalid,
    read_target,
    without_hop_fields,
)


@pytest.mark.parametrize(
    ("method", "target", "fields", "host", "port", "path"),
    [
        (b"CONNECT", b"A.test:443", [(b"host", b"a.test:443")], "a.test", 443, ""),
        (b"CONNECT", b"a.test:443", [(b"host", b"a.test")], "a.test", 443, ""),
        (b"CONNECT", b"a.test.:22", [], "a.test", 22, ""),
        (b"CONNECT", b"[2606::1]:443", [(b"host", b"[2606::1]:443")], "2606::1", 443, ""),
        (b"GET", b"http://a.test/x?y=1", [(b"host", b"a.test")], "a.test", 80, "/x?y=1"),
        (b"GET", b"http://a.test", [(b"host", b"A.test:80")], "a.test", 80, "/"),
        (b"GET", b"HTTP://a.test?q=/", [], "a.test", 80, "/?q=/"),
        (b"POST", b"http://a.test:8080/", [(b"host", b"a.test:8080")], "a.test", 8080, "/"),
        (b"GET", b"http://1.2.3.4/", [(b"host", b"1.2.3.4")], "1.2.3.4", 80, "/"),
        (b"GET", b"http://[2606::1]/", [(b"host", b"[2606::1]")], "2606::1", 80, "/"),
    ],
)
def test_targets(
    method: bytes, target: bytes, fields: Fields, host: str, port: int, path: str
) -> None:
    found = read_target(method, target, fields)
    assert (str(found.host), found.port, found.path) == (host, port, path)
    assert found.is_tunnel is (method == b"CONNECT")


@pytest.mark.parametrize(
    ("method", "target", "fields"),
    [
        (b"CONNECT", b"a.test", []),
        (b"CONNECT", b"a.test:", []),
        (b"CONNECT", b"a.test:0", []),
        (b"CONNECT", b":443", []),
        (b"CONNECT", b"http://a.test:443", []),
        (b"CONNECT", b"user@a.test:443", []),
        (b"CONNECT", b"a.test:443", [(b"host", b"b.test:443")]),
        (b"CONNECT", b"a.test:443", [(b"host", b"a.test:80")]),
        (b"CONNECT", b"a.test:443", [(b"host", b"a.test"), (b"host", b"b.test")]),
        (b"CONNECT", b"127.1:443", []),
        (b"CONNECT", b"0x7f.0.0.1:443", []),
        (b"CONNECT", b"[fe80::1%25eth0]:443", []),
        (b"CONNECT", b"2606::1:443", []),
        (b"GET", b"/", [(b"host", b"a.test")]),
        (b"OPTIONS", b"*", [(b"host", b"a.test")]),
        (b"GET", b"https://a.test/", [(b"host", b"a.test")]),
        (b"GET", b"ftp://a.test/", [(b"host", b"a.test")]),
        (b"GET", b"http://a.test/", [(b"host", b"b.test")]),
        (b"GET", b"http://a.test/", [(b"host", b"a.test:81")]),
        (b"GET", b"http://a.test/", [(b"host", b"")]),
        (b"GET", b"http://user:pass@a.test/", [(b"host", b"a.test")]),
        (b"GET", b"http://a.test/#fragment", [(b"host", b"a.test")]),
        (b"GET", b"http:///x", [(b"host", b"a.test")]),
        (b"GET", b"http://a.test\\@b.test/", [(b"host", b"a.test")]),
        (b"GET", "http://grüße.test/".encode(), [(b"host", b"a.test")]),
    ],
)
def test_what_a_proxy_and_an_origin_could_read_differently_is_refused(
    method: bytes, target: bytes, fields: Fields
) -> None:
    with pytest.raises(TargetInvalid):
        read_target(method, target, fields)


def test_fields_of_one_connection_stay_behind() -> None:
    fields = [
        (b"host", b"a.test"),
        (b"connection", b"x-own, Content-Length, keep-alive"),
        (b"x-own", b"1"),
        (b"keep-alive", b"timeout=5"),
        (b"proxy-authorization", b"Basic x"),
        (b"upgrade", b"h2c"),
        (b"te", b"trailers"),
        (b"content-length", b"3"),
        (b"accept", b"*/*"),
    ]
    kept = [(b"host", b"a.test"), (b"content-length", b"3"), (b"accept", b"*/*")]
    assert without_hop_fields(fields) == kept
