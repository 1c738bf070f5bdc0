"""A session is found by its id and by its client's name, in every spelling of both."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chassis.ids import is_id
from signalling.session_name import SessionNameRefused, session_id_of

KEY = b"stack"
ID = "ses_abcdefghijklmnopqrstuvwxyz"
NAMES = st.binary(min_size=16, max_size=64)


def found(text: str, tenant: str = "acme") -> str:
    return session_id_of(text, tenant=tenant, key=KEY)


@settings(deadline=None)
@given(NAMES)
def test_both_spellings_lead_to_one_session(raw: bytes) -> None:
    standard, url_safe = base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode()
    texts = {standard, url_safe, standard.rstrip("="), url_safe.rstrip("=")}
    (only,) = {found(text) for text in texts}
    assert is_id("ses", only)


@settings(deadline=None)
@given(NAMES, NAMES)
def test_other_names_and_other_tenants_are_other_sessions(one: bytes, other: bytes) -> None:
    first, second = base64.b64encode(one).decode(), base64.b64encode(other).decode()
    assert (found(first) == found(second)) is (one == other)
    assert found(first) != found(first, tenant="globex")


@pytest.mark.parametrize("text", [ID, ID.replace("_", "/"), ID.replace("_", "/") + "=="])
def test_an_id_is_itself_for_everybody(text: str) -> None:
    assert found(text) == found(text, tenant="globex") == ID


@pytest.mark.parametrize("text", ["", "x", "ses_", "A" * 21, "A" * 20 + "+_", "a b" * 10, "é" * 22])
def test_what_names_nothing(text: str) -> None:
    with pytest.raises(SessionNameRefused):
        found(text)
