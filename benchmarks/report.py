"""`make bench-report`: the recorded figures as a table and a plot in `benchmarks/README.md`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.aims import AIMS, Aim

HERE = Path(__file__).resolve().parent
PREAMBLE = """# Benchmarks

`make bench NAME=launch` measures on this machine and writes `out/launch.json`; `QUICK=1` takes
seconds, writes below `out/quick` and is for function, not for figures: the tests run it so. What
stands below is drawn from `recorded/` by `make bench-report`: the runs that we stand by, each on
the commit that it names. Peers ran in the same run, interleaved; `make bench-peers` installs those
that a machine may lack. Timings are from a small shared machine: read the ratios first.
"""
WIDTH = 40


def bars(figures: dict[str, float | None]) -> list[str]:
    """Draw the millisecond figures as bars of at most `WIDTH` characters, longest first."""
    drawn = {name: value for name, value in figures.items() if "_ms" in name and value}
    longest = max(drawn.values(), default=1.0)
    return [
        f"{name:<36} {'█' * max(1, round(WIDTH * value / longest))} {value:g}"
        for name, value in sorted(drawn.items(), key=lambda item: -item[1])
    ]


def table(
    figures: Mapping[str, float | None], *, peers: Mapping[str, object], aims: Mapping[str, Aim]
) -> Iterator[str]:
    """Draw all figures, with their aims where there are some; an aim without a figure is shown."""
    yield "| figure | value | aim | |" if aims else "| figure | value |"
    yield "|---|---|---|---|" if aims else "|---|---|"
    unmeasured = dict.fromkeys(name for name in aims if name not in figures)
    for name, value in (dict(figures) | unmeasured).items():
        peer = " (peer)" if name in peers else ""
        row = f"| `{name}`{peer} | {'not measured' if value is None else f'{value:g}'} |"
        if name in aims:
            verdict = aims[name].verdict(value)
            row += f" {aims[name]} | {verdict} |" if verdict else f" {aims[name]} | |"
        elif aims:
            row += " | |"
        yield row


def section(path: Path) -> str:
    """Return one benchmark's part of the page."""
    recorded = json.loads(path.read_text())
    machine = recorded["machine"]
    lines = [
        f"## {recorded['name']}",
        "",
        f"Commit `{recorded['commit']}`, {recorded['when'][:10]}, {machine['cores']} cores"
        f" ({machine['cpu']}), Linux {machine['kernel']}, Python {machine['python']};"
        f" load {recorded['load_before']} before and {recorded['load_after']} after;"
        f" {recorded['runs']} runs.",
        "",
    ]
    figures: dict[str, float | None] = recorded["metrics"] | recorded["peers"]
    aims = AIMS.get(recorded["name"], {})
    lines += table(figures, peers=recorded["peers"], aims=aims)
    drawn = bars(figures)
    lines += ["", *(["```", *drawn, "```", ""] if drawn else [])]
    lines += [f"- {note}" for note in recorded["notes"]]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    sections = [section(path) for path in sorted((HERE / "recorded").glob("*.json"))]
    (HERE / "README.md").write_text("\n".join([PREAMBLE, *sections]))


if __name__ == "__main__":
    main()
