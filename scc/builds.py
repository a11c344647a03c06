"""Loads the compiled modules that `build_ffi` describes, by name.

Each part has up to three builds: `coherent`, for ordinary machines; `flushing`, which writes back
and drops cache lines; `strict`, where each core works on a private cache, so that a missing flush
makes a test fail on any machine (`src/port.h`).
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args

from cffi import FFI

Build = Literal["coherent", "flushing", "strict"]
BUILDS: tuple[Build, ...] = get_args(Build)
HOME = Path(__file__).parent


@cache
def load(part: str, build: Build = "coherent") -> Any:
    """Return the module of `part` (`shmfs`, `mpb`, `ring`), with its `ffi` and `lib`.

    If ciel was installed without the headers of Python, cffi loads a shared library instead of an
    extension module, and calls take longer.
    """
    name = f"_{part}" if build == "coherent" else f"_{part}_{build}"
    declared = HOME / f"_{part}.declarations"
    if not declared.exists() or (HOME / f"{name}{EXTENSION_SUFFIXES[0]}").exists():
        return importlib.import_module(f"ciel.scc.{name}")
    ffi = FFI()
    ffi.cdef(declared.read_text())
    library = HOME / f"{name}.so"
    return SimpleNamespace(ffi=ffi, lib=ffi.dlopen(str(library)), __file__=str(library))
