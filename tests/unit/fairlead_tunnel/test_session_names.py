"""Both spellings of a session's name lead to one; whatever else is refused."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_tunnel.base64url import base64url, from_base64url
from fairlead_tunnel.session_names import (
    LONGEST,
    SHORTEST,
    SessionNameInvalid,
    is_session_id,
    session_name,
)

ID = "ses_" + "abcdefghijklmnopqrstuvwxyz"
NAMES = st.binary(min_size=SHORTEST, max_size=LONGEST)


@settings(deadline=None)
@given(NAMES)
def test_every_spelling_of_a_name_is_the_same_name(raw: bytes) -> None:
    url_safe, standard = base64.urlsafe_b64encode(raw).decode(), base64.b64encode(raw).decode()
    spellings = {url_safe, standard, url_safe.rstrip("="), standard.rstrip("=")}
    assert {session_name(spelling) for spelling in spellings} == {base64url(raw)}


@settings(deadline=None)
@given(NAMES, NAMES)
def test_two_names_stay_two(one: bytes, other: bytes) -> None:
    same = session_name(base64url(one)) == session_name(base64.b64encode(other).decode())
    assert same is (one == other)


@settings(deadline=None)
@given(st.one_of(st.text(), st.text(alphabet="AZaz09+/-_=", max_size=90)))
def test_the_one_spelling_is_its_own(text: str) -> None:
    try:
        name = session_name(text)
    except SessionNameInvalid:
        return
    assert session_name(name) == name
    assert name.replace("-", "").replace("_", "").isalnum()


@pytest.mark.parametrize("text", [ID, ID.replace("_", "/"), ID + "==", ID.replace("_", "/") + "=="])
def test_an_id_of_signalling_stays_what_it_is(text: str) -> None:
    assert session_name(text) == ID
    assert is_session_id(ID)


@settings(deadline=None)
@given(NAMES)
def test_a_name_is_hardly_ever_an_id(raw: bytes) -> None:
    assert not is_session_id(base64url(raw))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "=",
        "====",
        "A" * 21,
        "A" * 25,
        "A" * 87,
        "A" * 21 + "B",
        "A" * 22 + "=",
        "A" * 22 + "===",
        "A" * 24 + "==",
        "A" * 20 + "+_",
        "A" * 20 + "-/",
        "A" * 20 + " A",
        "A" * 20 + "=A",
        "A" * 21 + "A\n",
        "A" * 21 + "é",
        ID.upper(),
        ID[:-1],
    ],
)
def test_what_names_no_session(text: str) -> None:
    with pytest.raises(SessionNameInvalid):
        session_name(text)


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_bytes_come_back_from_base64url(raw: bytes) -> None:
    assert from_base64url(base64url(raw)) == raw


@pytest.mark.parametrize("text", ["A", "AB", "AA==", "A+", "A A", "AA\n", "ÄÄ"])
def test_base64url_has_one_text_for_each_value(text: str) -> None:
    with pytest.raises(ValueError, match="base64url"):
        from_base64url(text)
