"""The compiled parts of this room, by name: what `build_ffi` has made of the sources in C.

Each part comes in up to three builds: `coherent`, for ordinary machines; `flushing`, which writes
back and drops cache lines; `strict`, where every core works on a private cache, so that a missing
flush fails on any machine (`src/port.h`).
"""

from __future__ import annotations

import importlib
from typing import Any, Literal, get_args

Build = Literal["coherent", "flushing", "strict"]
BUILDS: tuple[Build, ...] = get_args(Build)


def load(part: str, build: Build = "coherent") -> Any:
    """Return the module of `part` (`shmfs`, `mpb`, `ring`): its `ffi` and its `lib`."""
    suffix = "" if build == "coherent" else f"_{build}"
    return importlib.import_module(f"ciel.scc._{part}{suffix}")
