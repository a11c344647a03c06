"""Installs a package of the tests as pip does: its modules and its metadata, in a directory."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

LIB: Final = Path(__file__).parents[2]


def install(package: str, site: Path) -> None:
    """Install a package of `tests/lib` into a directory, for processes that have it in PYTHONPATH.

    The entry points come from its `pyproject.toml`. The modules are a link.
    """
    about = tomllib.loads((LIB / package / "pyproject.toml").read_text())["project"]
    metadata = site / f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    metadata.mkdir(parents=True)
    head = f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n"
    (metadata / "METADATA").write_text(head)
    lines = []
    for group, points in about["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {place}" for name, place in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join([*lines, ""]))
    (site / package).symlink_to(LIB / package)
