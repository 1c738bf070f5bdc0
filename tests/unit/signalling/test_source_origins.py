"""What a source may say of origins: addresses without credentials, and no changes of another
commit.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from chassis.errors import InvalidArgument
from signalling.snapshot import Changes, Source, Tip, Upstream
from signalling.snapshot_messages import from_source, to_source
from signalling.source_bodies import SourceBody
from signalling.source_rules import check_source

PLAIN = Source(project="p", commit="a" * 40)
ADDRESSES = [
    "https://git.example.com/a.git",
    "https://git.example.com:8443/a@b.git",
    "ssh://git@git.example.com:2222/~/a.git",
]
REFUSED = [
    "http://h/a",
    "file:///etc",
    "git@h:a",
    "https://token@h/a",
    "https://user:word@h/a",
    "ssh://user:word@h/a",
    "https://h/" + "a" * 3000,
    "https://h/a\0",
]


def upstream(url: str) -> Source:
    return replace(PLAIN, upstream=Upstream(url, "main"))


@pytest.mark.parametrize("url", ADDRESSES)
def test_addresses_of_origins(url: str) -> None:
    check_source(upstream(url))
    check_source(replace(PLAIN, submodules=True, origin=url))


@pytest.mark.parametrize("url", REFUSED)
def test_addresses_that_no_request_may_hold(url: str) -> None:
    for source in (upstream(url), replace(PLAIN, origin=url)):
        with pytest.raises(InvalidArgument) as raised:
            check_source(source)
        assert raised.value.reason == "origin_invalid"
        assert "word" not in raised.value.message


def test_changes_do_not_go_with_an_upstream() -> None:
    source = replace(upstream(ADDRESSES[0]), changes=Changes("b" * 40))
    with pytest.raises(InvalidArgument) as raised:
        check_source(source)
    assert raised.value.reason == "upstream_with_changes"


@pytest.mark.parametrize("age", [None, timedelta(), timedelta(seconds=90)])
def test_all_of_it_travels_to_the_host(age: timedelta | None) -> None:
    source = replace(
        PLAIN,
        upstream=Upstream(ADDRESSES[0], "main", age),
        submodules=True,
        origin=ADDRESSES[2],
        tags=(Tip("refs/tags/v1", "d" * 40),),
    )
    assert from_source(to_source(source)) == source


def test_all_of_it_comes_over_rest() -> None:
    body = SourceBody.model_validate(
        {
            "project": "p",
            "commit": "a" * 40,
            "upstream": {"url": ADDRESSES[0], "branch": "main", "max_age": 0.0},
            "submodules": True,
            "origin": ADDRESSES[2],
        }
    )
    assert body.value() == replace(
        PLAIN,
        upstream=Upstream(ADDRESSES[0], "main", timedelta()),
        submodules=True,
        origin=ADDRESSES[2],
    )
