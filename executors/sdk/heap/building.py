"""Builds the pass and the run-time of `ciel-cc`, when they are first needed.

They lie in the user's cache, by the version of LLVM and what they are made from, so each version of
ciel and of LLVM has its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ciel.memory import __file__ as memory_package

HERE: Final = Path(__file__).parent.resolve()
C_SDK: Final = HERE.parent / "c"
MEMORY: Final = Path(memory_package).parent
VERSIONS: Final = ("19", "16")
"""The versions of LLVM that the pass is written for, the preferred one first."""
OF_MEMORY: Final = ("ciel_memory.c", "page_client.c", "page_cache.c", "codecs.c", "checksum.c")
RUNTIME_FLAGS: Final = ("-std=gnu11", "-O2", "-g", "-fPIC", "-fno-builtin", "-D_GNU_SOURCE")
OWN_NAMES: Final = (
    "fail", "pager_*", "allocator_*", "calls_start", "signals_*", "store_*", "page_*", "checksum*",
    "codec*", "pack*", "unpack*",
)  # fmt: skip
"""Names that the parts of the run-time share."""
PASS_FLAGS: Final = ("-O1", "-std=c++17", "-fPIC", "-shared", "-fno-rtti", "-fvisibility=hidden")


class NotBuiltError(Exception):
    """`ciel-cc` cannot work here: LLVM is missing, or the run-time could not be compiled."""


@dataclass(frozen=True)
class Toolchain:
    """Programs of one version of LLVM."""

    version: str
    clang: str
    clangxx: str
    llvm_config: str


@dataclass(frozen=True)
class Parts:
    """What a program is compiled and linked with."""

    pass_library: Path
    runtime: Path
    """One object file, which must be linked as a whole."""


def missing() -> str:
    """Return what must be installed before `ciel-cc` works; "" if nothing."""
    try:
        toolchain()
    except NotBuiltError as error:
        return str(error)
    return ""


def toolchain() -> Toolchain:
    """Return the version of LLVM to use: that of CIEL_LLVM, or the first of VERSIONS that is here.

    Raises NotBuiltError.
    """
    asked = os.environ.get("CIEL_LLVM")
    for version in (asked,) if asked else VERSIONS:
        names = (f"clang-{version}", f"clang++-{version}", f"llvm-config-{version}")
        paths = [path for name in names if (path := shutil.which(name))]
        if len(paths) == len(names) and _has_headers(paths[2]):
            return Toolchain(version, *paths)
    wanted = asked or VERSIONS[-1]
    raise NotBuiltError(
        f"LLVM {asked or ' or '.join(reversed(VERSIONS))} is missing"
        f" (Debian: clang-{wanted} llvm-{wanted}-dev)"
    )


def _has_headers(llvm_config: str) -> bool:
    asked = [llvm_config, "--includedir"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return Path(found, "llvm/Passes/PassPlugin.h").exists()


def parts() -> Parts:
    """Return the pass and the run-time; build them if they are not in the cache.

    Raises NotBuiltError.
    """
    tools = toolchain()
    directory = _cache() / f"heap-{tools.version}-{_fingerprint()}"
    if not directory.exists():
        _build(tools, directory)
    return Parts(directory / "pass.so", directory / "runtime.o")


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "ciel"


def _sources() -> list[Path]:
    own = sorted(HERE.glob("*.c"))
    return [*own, *(MEMORY / name for name in OF_MEMORY), C_SDK / "ciel_kv.c"]


def _fingerprint() -> str:
    digest = hashlib.sha256(repr((RUNTIME_FLAGS, PASS_FLAGS, OWN_NAMES)).encode())
    headers = [*HERE.glob("*.h"), *MEMORY.glob("*.h"), *C_SDK.glob("ciel_kv*.h")]
    for path in [*_sources(), HERE / "pass.cpp", *sorted(headers)]:
        digest.update(path.read_bytes())
    digest.update(str(_has_lmdb()).encode())
    return digest.hexdigest()[:16]


def _has_lmdb() -> bool:
    return any(Path(place, "lmdb.h").exists() for place in ("/usr/include", "/usr/local/include"))


def _build(tools: Toolchain, directory: Path) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    with Path(directory.parent, "building").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # until it is closed: one process builds, others wait
        if not directory.exists():
            _build_now(tools, directory)


def _build_now(tools: Toolchain, directory: Path) -> None:
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix="building-") as scratch:
        made = Path(scratch, "made")
        made.mkdir(mode=0o755)
        asked = [tools.llvm_config, "--cxxflags"]
        flags = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
        library = str(made / "pass.so")
        _run([tools.clangxx, *flags, *PASS_FLAGS, str(HERE / "pass.cpp"), "-o", library])
        objects = []
        for source in _sources():
            objects.append(str(Path(scratch, source.stem + ".o")))
            include = [f"-I{place}" for place in (HERE, MEMORY, C_SDK)]
            _run([tools.clang, *RUNTIME_FLAGS, *include, "-c", str(source), "-o", objects[-1]])
        _run([tools.clang, "-r", "-nostdlib", *objects, "-o", str(made / "runtime.o")])
        _hide_names(tools, made / "runtime.o")
        made.rename(directory)


def _hide_names(tools: Toolchain, runtime: Path) -> None:
    """Let a program define any names of the run-time itself: functions of its own, and replacements
    of functions of libc.
    """
    asked = [tools.llvm_config, "--bindir"]
    directory = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    hidden = [f"--localize-symbol={name}" for name in OWN_NAMES]
    _run([f"{directory}/llvm-objcopy", "--wildcard", *hidden, "--weaken", str(runtime)])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotBuiltError(f"{' '.join(command)}\n{done.stderr.strip()}")


def link_flags() -> list[str]:
    """Return the options that the run-time needs when a program is linked."""
    libraries = ["-llmdb"] if _has_lmdb() else []
    return ["-pthread", "-Wl,--push-state,--as-needed", *libraries, "-ldl", "-Wl,--pop-state"]
