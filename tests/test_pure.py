"""Checks when a checkout runs Python sources in place of their compiled modules."""

from __future__ import annotations

import os
from pathlib import Path

from ciel.pure import changed_since_compiled


def test_a_source_that_is_newer_than_its_compiled_module_runs(tmp_path: Path) -> None:
    package = tmp_path / "ciel"
    for room in ("core", "master/state"):
        (package / room).mkdir(parents=True)
        for name in ("graph.py", "graph.cpython-311-x86_64-linux-gnu.so", "errors.py"):
            (package / room / name).touch()
            os.utime(package / room / name, (1000, 1000))
    assert not changed_since_compiled(str(package))  # no module is compiled
    (package / "compiled_below.so").touch()
    os.utime(package / "compiled_below.so", (2000, 2000))
    os.utime(package / "core/errors.py", (3000, 3000))
    (tmp_path / "pyproject.toml").touch()
    assert not changed_since_compiled(str(package))  # the changed module is not compiled
    os.utime(package / "master/state/graph.py", (3000, 3000))
    assert changed_since_compiled(str(package))
    (tmp_path / "pyproject.toml").unlink()
    assert not changed_since_compiled(str(package))  # an installed package, not a checkout
