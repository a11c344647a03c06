"""Compiles Lua's interpreter, from Debian's source package, with `ciel-cc`: `make check-heap`.

It has 30,000 lines, and uses its heap, longjmp and function pointers much. Both translations must
print what the plain interpreter prints, also with a tenth of the heap in memory. Shows KVM-2.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "lib"))  # as for pytest

from ciel.executors.sdk.heap.building import toolchain
from ciel_tests.heaps import HEAP_TESTS, TRANSLATIONS, ciel_cc, run

PACKAGE = "lua5.4"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
OPTIONS = ["-std=gnu11", "-O2", "-DLUA_USE_POSIX", "-Dluai_makeseed(L)=0x5eed5eedu", "-lm"]
"""The seed is fixed: otherwise the order of keys depends on addresses and the time."""
RAM = "1600KiB"
"""A tenth of the heap, which has 16 MiB."""


def fetch(where: Path) -> list[Path]:
    """Fetch the source package with a list of packages of its own; return the files in C."""
    lists, sources = where / "lists", where / "sources"
    lists.mkdir()
    version = subprocess.run(
        ["sh", "-c", ". /etc/os-release; echo $VERSION_CODENAME"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    sources.write_text(f"deb-src [signed-by={KEYS}] http://deb.debian.org/debian {version} main\n")
    apt = [
        "apt-get", "-q", "-o", f"Dir::Etc::sourcelist={sources}",
        "-o", "Dir::Etc::sourceparts=/dev/null", "-o", f"Dir::State::lists={lists}",
    ]  # fmt: skip
    subprocess.run([*apt, "update"], cwd=where, check=True, timeout=300)
    download = [*apt, "source", "--download-only", PACKAGE]
    subprocess.run(download, cwd=where, check=True, timeout=300)
    (archive,) = where.glob("*.orig.tar.*z")
    subprocess.run(["tar", "xf", archive], cwd=where, check=True)
    (directory,) = (path.parent for path in where.glob("*/src/lua.c"))
    return [path for path in sorted(directory.glob("*.c")) if path.stem != "luac"]


def main() -> int:
    """Compare the interpreters; return 1 if one prints anything else."""
    script = str(HEAP_TESTS / "work.lua")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="ciel-check-heap-") as scratch:
        where = Path(scratch)
        sources = [str(path) for path in fetch(where)]
        plain = where / "lua"
        subprocess.run([toolchain().clang, *sources, *OPTIONS, "-o", plain], check=True)
        start = time.perf_counter()
        expected = run(plain, script)
        print(expected.out, f"plain: {time.perf_counter() - start:.1f} s", sep="", flush=True)
        assert expected.status == 0, expected.err
        for translation in TRANSLATIONS:
            program = where / f"lua-{translation}"
            done = ciel_cc(f"--memory={translation}", *sources, *OPTIONS, "-o", program)
            assert done.returncode == 0, done.stderr
            for heap, ram in ((None, None), (f"lmdb:{where / translation}", RAM)):
                start = time.perf_counter()
                result = run(program, script, heap=heap, ram=ram, timeout_s=1800)
                took = f"{time.perf_counter() - start:.1f} s"
                is_same = result == expected
                failed += not is_same
                what = "the same" if is_same else f"WRONG: {result}"
                print(
                    f"--memory={translation}, {ram or 'all'} in memory: {what}, {took}", flush=True
                )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
