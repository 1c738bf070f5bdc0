"""Stubs of real classes are what a type checker takes, and their modules stay with a child."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TARGETS = ("collections:Counter", "fractions:Fraction", "asyncio.queues:Queue", "sched:scheduler")


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_a_type_checker_takes_the_stubs_of_real_classes(tmp_path: Path) -> None:
    use = ["from membrane import isolate"]
    for target in TARGETS:
        name = target.partition(":")[2]
        ended = run("-m", "membrane.stubs", target, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        (tmp_path / f"shown_{name}.py").write_text(ended.stdout)
        use.append(f"from shown_{name} import {name}")
        use.append(f"made_{name}: type[{name}] = isolate({target!r})")
        use.append(f"made_{name}.close()")
    use += [
        'made_scheduler().enter(1.0, 1, print, ("late",))',
        "outcomes = made_scheduler().enter.batch([((1.0, 1, print), {})], on_error='stop')",
        "first: bool = outcomes[0].ok",
        "made_scheduler().cancel.with_options(deadline=1.0, returns='value')(None)",
        "elements = made_Counter().elements.with_options(policy='reference')",
        "elements.batch([((), {})]).values()",
    ]
    wrong = [
        "made_scheduler().missing()",
        "made_scheduler().enter.with_options(deadline='soon')",
        "made_scheduler().enter.with_options(deadline=1.0)(1.0)",
        "made_Counter().elements(1)",
    ]
    first = len(use) + 1
    (tmp_path / "use.py").write_text("\n".join([*use, *wrong]) + "\n")
    checked = run("-m", "mypy", "--strict", "--cache-dir", "cache", "use.py", cwd=tmp_path)
    found = [line for line in checked.stdout.splitlines() if "error:" in line]
    assert [line.split(":")[:2] for line in found] == [
        ["use.py", str(first + number)] for number in range(len(wrong))
    ], checked.stdout
    assert '"scheduler" has no attribute "missing"' in found[0]


def test_a_target_that_is_none_is_a_usage_error(tmp_path: Path) -> None:
    ended = run("-m", "membrane.stubs", "sched", cwd=tmp_path)
    assert ended.returncode == 2
    assert "pkg.module:Class" in ended.stderr


def test_the_module_is_imported_by_a_child_only(tmp_path: Path) -> None:
    asked = (
        "import sys; from membrane.stubs import main; main(['sched:scheduler']);"
        " print({'sched', 'membrane.signatures'} & sys.modules.keys())"
    )
    ended = run("-c", asked, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "set()"
