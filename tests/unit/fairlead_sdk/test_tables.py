"""Tables as a terminal and as a program get them."""

from __future__ import annotations

from fairlead_sdk.cli.tables import Row, table

TITLES = ("ID", "COMMAND")


def test_a_program_gets_every_cell_whole() -> None:
    drawn = table(TITLES, [Row(("x" * 200, "y" * 200))], columns=None, coloured=False)
    assert drawn.splitlines()[1] == f"{'x' * 200}  {'y' * 200}"


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    rows = [Row(("a", "one")), Row(("long", "")), Row(("\u6f22", "two"))]
    drawn = table(TITLES, rows, columns=None, coloured=False)
    assert drawn.splitlines() == ["ID    COMMAND", "a     one", "long", "\u6f22    two"]


def test_a_terminal_gets_the_last_cell_cut_and_no_other() -> None:
    drawn = table(TITLES, [Row(("identity", "command " * 9))], columns=20, coloured=False)
    assert drawn.splitlines()[1] == "identity  command c…"
    narrow = table(TITLES, [Row(("identity", "command"))], columns=5, coloured=False)
    assert narrow.splitlines()[1].startswith("identity")


def test_what_would_move_the_cursor_is_written_out() -> None:
    drawn = table(TITLES, [Row(("a\nb", "\x1b[2J"))], columns=None, coloured=False)
    assert drawn.splitlines()[1:] == ["a\\nb  \\x1b[2J"]


def test_what_is_over_is_dim_where_there_are_colours() -> None:
    rows = [Row(("a", "b")), Row(("c", "d"), is_dim=True)]
    _, live, over = table(TITLES, rows, columns=None, coloured=True).splitlines()
    assert (live, over) == ("a   b", "\x1b[2mc   d\x1b[0m")
