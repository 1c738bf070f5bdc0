"""Ids: their form, and that derived ones depend on every part and on the key."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chassis.ids import derived_id, is_id, random_id


def test_random_ids_differ_and_have_the_form() -> None:
    made = {random_id("lch") for _ in range(100)}
    assert len(made) == 100
    assert all(is_id("lch", one) for one in made)


def test_the_same_parts_give_the_same_id() -> None:
    assert derived_id("lch", "t", "launch", "k", key=b"s") == derived_id(
        "lch", "t", "launch", "k", key=b"s"
    )
    assert is_id("lch", derived_id("lch", "t", key=b"s"))


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_different_parts_give_different_ids(one: list[str], other: list[str]) -> None:
    same = derived_id("lch", *one, key=b"s") == derived_id("lch", *other, key=b"s")
    assert same == (one == other)


def test_another_key_gives_another_id() -> None:
    assert derived_id("lch", "t", key=b"a") != derived_id("lch", "t", key=b"b")


@given(st.text())
def test_what_is_not_an_id_is_refused(text: str) -> None:
    assert not is_id("lch", text)
    assert not is_id("lch", random_id("ses"))
    assert not is_id("lch", random_id("lch") + "\n")
    assert not is_id("lch", "../" + random_id("lch"))
