"""The settings table of the operating page is what the code says."""

from __future__ import annotations

from scripts import limits_table, settings_table


def test_the_table_is_the_one_that_the_code_makes() -> None:
    text = settings_table.PAGE.read_text()
    assert settings_table.page(text) == text, "run `make settings`"
    assert "FAIRLEAD_SIGNALLING_HTTP_BIND" in text


def test_the_table_of_limits_is_that_of_the_code() -> None:
    text = limits_table.PAGE.read_text()
    assert limits_table.page(text) == text, "run `make settings`"
