"""Describes the C sources to cffi, which compiles them to Python modules.

setup.py builds the modules of `ciel.scc` from these descriptions.

The declarations for cffi are derived from the public headers, so that there is only one copy of
them. The headers are therefore restricted to plain C: no inline functions, no attributes, no macros
with arguments.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from cffi import FFI

SCC = Path(__file__).parent  # relative, as setup.py runs this file by a relative path
# The C sources of each part, which becomes one module in each build.
PARTS = {
    "shmfs": (
        "port", "superblock", "lock", "log", "fat", "inode", "directory", "file", "client", "copy",
        "check", "shmfs",
    ),
    "mpb": ("port", "mpb", "mpb_pieces", "rcce"),
    "ring": ("port", "ring"),
    "device": ("port", "device"),
}  # fmt: skip
# The C sources that each build adds to those of a part. `coherent`: the hardware keeps caches
# coherent. `flushing`: the code writes back and drops cache lines, for memory that several hosts
# map. `strict`: for tests; it simulates a core with an incoherent cache.
BUILDS = {"coherent": (), "flushing": ("flushing",), "strict": ("strict",)}
WITHOUT = {"ring": ("flushing", "strict"), "device": ("strict",)}
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden"]


def _without_comments(header: str) -> str:
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", header, flags=re.DOTALL)


def declarations(header: str) -> str:
    """Reduce a header to the text that cffi reads: no comments, only `#define`s of numbers."""
    text = _without_comments(header)
    text = re.sub(r"^#ifdef __cplusplus\n.*?^#endif\n", "", text, flags=re.DOTALL | re.MULTILINE)
    # Skip include guards, which have no value, and macros with arguments, which are not numbers.
    numbers = re.findall(r"^# *define +(\w+) +[-+(\w]", text, flags=re.MULTILINE)
    text = re.sub(r"^#(?:[^\n]*\\\n)*[^\n]*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[ *[A-Z][^\]]*\](?=[^;{]*\))", "[]", text)  # a parameter has no size
    text = re.sub(r"\[ *[A-Z][^\]]*\]", "[...]", text)  # the compiler knows a member's size
    return "".join(f"#define {name} ...\n" for name in numbers) + text


def explicit_declarations(part: str, compile_program: Callable[[Path, Path], object]) -> str:
    """Return the declarations of a part, with the value of each `#define`.

    cffi needs the values to load a shared library: no compiler then replaces the `...` of
    `declarations`. To find the values, this function writes a C program that prints them, and runs
    it; `compile_program(source, program)` compiles it.
    """
    text = declarations((SCC / "include" / f"{part}.h").read_text())
    names = re.findall(r"^#define (\w+) \.\.\.$", text, flags=re.MULTILINE)
    prints = "".join(f'printf("#define {name} %lld\\n", (long long)({name}));' for name in names)
    source = f'#include <stdio.h>\n#include "{part}.h"\nint main(void) {{ {prints} return 0; }}\n'
    with tempfile.TemporaryDirectory() as place:
        path, program = Path(place, "numbers.c"), Path(place, "numbers")
        path.write_text(source)
        compile_program(path, program)
        numbers = subprocess.run([program], stdout=subprocess.PIPE, text=True, check=True).stdout
    return numbers + re.sub(r"^#define .*\n", "", text, flags=re.MULTILINE)


def sources(part: str, build: str) -> list[Path]:
    """Return the source files of a part in a build."""
    return [SCC / "src" / f"{name}.c" for name in (*PARTS[part], *BUILDS[build])]


def module(name: str, part: str, build: str) -> FFI:
    """Describe the module `ciel.scc.<name>` to cffi."""
    header = SCC / "include" / f"{part}.h"
    ffi = FFI()
    ffi.cdef(declarations(header.read_text()))
    ffi.set_source(
        f"ciel.scc.{name}",
        f'#include "{header.name}"',
        sources=[str(path) for path in sources(part, build)],
        depends=[str(path) for path in sorted([*SCC.glob("include/*.h"), *SCC.glob("src/*.h")])],
        include_dirs=[str(SCC / "include"), str(SCC / "src")],
        define_macros=[("_GNU_SOURCE", None)]
        + ([] if build == "coherent" else [(f"PORT_{build.upper()}", None)]),
        extra_compile_args=FLAGS,
    )
    return ffi


def builds_by_name() -> dict[str, tuple[str, str]]:
    """Return the part and the build of each module, by its name."""
    found = {}
    for part in PARTS:
        for build in (build for build in BUILDS if build not in WITHOUT.get(part, ())):
            found[f"_{part}" if build == "coherent" else f"_{part}_{build}"] = (part, build)
    return found


BUILDS_BY_NAME = builds_by_name()
MODULES = {name: partial(module, name, *which) for name, which in BUILDS_BY_NAME.items()}
globals().update(MODULES)  # cffi looks up `build_ffi.py:NAME`
