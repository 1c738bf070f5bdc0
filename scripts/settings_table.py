"""Write the settings table of `docs/operating.md`; run by `make settings`, compared by a test."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from chassis.settings import RoomSettings, settings_of

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operating.md"
START, END = "<!-- settings: generated -->", "<!-- end of settings -->"
ROOMS = ("signalling", "relay_gateway", "workspace_provisioner", "sandbox_worker")


def cell(text: str) -> str:
    """Return `text` as a table cell, with this user's home written as `~`."""
    return text.replace(str(Path.home()), "~").replace("|", "\\|")


def rows(settings_class: type[RoomSettings], leave_out: frozenset[str] = frozenset()) -> list[str]:
    """Return a room's settings as a table, without those named in `leave_out`."""
    lines = ["", "| variable | default | meaning |", "|---|---|---|"]
    for row in settings_of(settings_class):
        if row.name not in leave_out:
            default = f"`{cell(row.default)}`" if row.default else ""
            lines.append(f"| `{row.name}` | {default} | {cell(row.description)} |")
    return lines


def table() -> str:
    """Return the tables of all rooms; what all rooms share stands once, in front."""
    shared = frozenset(row.name for row in settings_of(RoomSettings))
    parts = ["", "### Every room", *rows(RoomSettings)]
    for room in ROOMS:
        settings_class = import_module(f"{room}.settings").Settings
        parts += ["", f"### {room.replace('_', '-')}", *rows(settings_class, shared)]
    return "\n".join([*parts, "", ""])


def page(text: str) -> str:
    """Return the page with its table made anew."""
    head, _, rest = text.partition(START)
    _, _, tail = rest.partition(END)
    return f"{head}{START}{table()}{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
