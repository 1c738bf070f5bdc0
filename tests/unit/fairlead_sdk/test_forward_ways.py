"""What `fairlead forward` takes: a port of the sandbox or of a host, and the one here."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead_sdk.cli.ways import Way, parse_way
from fairlead_sdk.errors import InvalidArgument
from fairlead_tunnel.targets import Target, target_of


@pytest.mark.parametrize(
    ("text", "way"),
    [
        ("8080", Way(None, "", 8080)),
        ("9000:8080", Way(9000, "", 8080)),
        ("0:8080", Way(0, "", 8080)),
        ("db.internal:5432", Way(None, "db.internal", 5432)),
        ("5433:db.internal:5432", Way(5433, "db.internal", 5432)),
        ("10.0.0.7:22", Way(None, "10.0.0.7", 22)),
        ("[2001:db8::1]:443", Way(None, "[2001:db8::1]", 443)),
        ("9000:[::1]:80", Way(9000, "[::1]", 80)),
        ("9to5.test:80", Way(None, "9to5.test", 80)),
        ("/run/db.sock:5432", Way(None, "", 5432, Path("/run/db.sock"))),
        ("./db.sock:db.internal:5432", Way(None, "db.internal", 5432, Path.cwd() / "db.sock")),
    ],
)
def test_ways(text: str, way: Way) -> None:
    assert parse_way(text) == way
    target = Target(way.port, way.host)
    assert target_of(target.label) == target


@pytest.mark.parametrize(
    "text",
    ["", "0", "65536", "99999:80", "db:", ":80", "/run/db.sock", "/run/db.sock:", "a/b:c/d:1"],
)
def test_what_is_no_way_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_way(text)
    assert refused.value.reason == "port_invalid"
