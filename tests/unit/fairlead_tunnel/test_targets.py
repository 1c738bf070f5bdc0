"""Labels of data channels, and what they lead to."""

from __future__ import annotations

import pytest

from fairlead_tunnel.targets import Target, target_of


@pytest.mark.parametrize(
    ("label", "target"),
    [
        ("tcp:1", Target(1)),
        ("tcp:65535", Target(65535)),
        ("tcp:8080", Target(8080)),
        ("tcp:db.internal:5432", Target(5432, "db.internal")),
        ("tcp:10.0.0.7:22", Target(22, "10.0.0.7")),
        ("tcp:[2001:db8::1]:443", Target(443, "[2001:db8::1]")),
        ("tcp:80:443", Target(443, "80")),
        ("terminal:exe_" + "a2" * 13, Target(execution_id="exe_" + "a2" * 13)),
    ],
)
def test_labels(label: str, target: Target) -> None:
    assert target_of(label) == target
    assert target.label == label


@pytest.mark.parametrize(
    "label",
    [
        "",
        "tcp:",
        "tcp:0",
        "tcp:65536",
        "tcp:08080",
        "tcp:-1",
        "udp:53",
        "tcp:80 ",
        "tcp:\u0663",
        "tcp::80",
        "tcp:a.test:0",
        "tcp:a.test:",
        "tcp:a test:80",
        "tcp:a.test:80\n",
        "tcp:2001:db8::1:443",
        "tcp:[fe80::1%eth0]:443",
        "tcp:[]:443",
        "tcp:b\u00fccher.test:443",
        "tcp:" + "a" * 254 + ":80",
        "tcp:" + "a" * 249 + ":80",
        "terminal:",
        "terminal:exe_short",
        "terminal:sbx_" + "a" * 26,
        "terminal:exe_" + "a" * 27,
    ],
)
def test_what_is_no_label(label: str) -> None:
    assert target_of(label) is None
