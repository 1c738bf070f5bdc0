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
    use += ['made_scheduler().enter(1.0, 1, print, ("late",))', "made_scheduler().missing()"]
    (tmp_path / "use.py").write_text("\n".join(use) + "\n")
    checked = run("-m", "mypy", "--strict", "--cache-dir", "cache", "use.py", cwd=tmp_path)
    assert checked.stdout.count("error:") == 1, checked.stdout
    assert '"scheduler" has no attribute "missing"' in checked.stdout


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
