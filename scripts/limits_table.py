"""Write the table of limits of `docs/limits.md`; run by `make settings`, compared by a test."""

from __future__ import annotations

from pathlib import Path

from fairlead_limits.table import ROWS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "limits.md"
START, END = "<!-- limits: generated -->", "<!-- end of limits -->"


def table() -> str:
    """Return the table."""
    lines = ["", "| field | what | limit | reason |", "|---|---|---|---|"]
    for row in ROWS:
        cells = (f"`{row.field}`", row.what.rstrip(","), row.rule, f"`{row.reason}`")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def page(text: str) -> str:
    """Return the page with its table made anew."""
    head, _, rest = text.partition(START)
    _, _, tail = rest.partition(END)
    return f"{head}{START}\n{table()}\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
