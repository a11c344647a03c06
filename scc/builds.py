"""Loads the compiled modules that `build_ffi` describes, by name.

Each part has up to three builds: `coherent`, for ordinary machines; `flushing`, which writes back
and drops cache lines; `strict`, where each core works on a private cache, so that a missing flush
makes a test fail on any machine (`src/port.h`).
"""

from __future__ import annotations

import importlib
from typing import Any, Literal, get_args

Build = Literal["coherent", "flushing", "strict"]
BUILDS: tuple[Build, ...] = get_args(Build)


def load(part: str, build: Build = "coherent") -> Any:
    """Return the module of `part` (`shmfs`, `mpb`, `ring`), with its `ffi` and `lib`."""
    suffix = "" if build == "coherent" else f"_{build}"
    return importlib.import_module(f"ciel.scc._{part}{suffix}")
