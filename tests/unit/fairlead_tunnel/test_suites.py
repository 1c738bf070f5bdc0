"""Which AEAD a machine prefers, by what Linux says of its processors."""

from __future__ import annotations

import pytest

from fairlead_tunnel.records import Suite
from fairlead_tunnel.suites import suite_for


@pytest.mark.parametrize(
    ("described", "suite"),
    [
        ("flags\t\t: fpu aes avx\nflags\t\t: fpu aes avx\n", Suite.AES_256_GCM),
        ("flags\t\t: fpu avx\n", Suite.CHACHA20_POLY1305),
        ("Features\t: fp asimd aes pmull\n", Suite.AES_256_GCM),
        ("Features\t: fp asimd\n", Suite.CHACHA20_POLY1305),
        ("isa\t: rv64imafdc\n", Suite.AES_256_GCM),
        ("", Suite.AES_256_GCM),
    ],
)
def test_aes_where_the_processor_has_it(described: str, suite: Suite) -> None:
    assert suite_for(described) is suite
