"""Tests of programs whose heap lies in a store (KVM-1, KVM-2, KVM-3, KVM-5)."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel_tests.heaps import (
    HEAP_TESTS,
    PROGRAMS,
    RAM_MIN_BYTES,
    TRANSLATIONS,
    ciel_cc,
    plain,
    run,
    translated,
    why_no_compiler,
)
from ciel_tests.kv_daemons import KvDaemon

if reason := why_no_compiler():
    pytest.skip(reason, allow_module_level=True)

CHECKS = HEAP_TESTS / "checks"
RAM = f"{RAM_MIN_BYTES >> 10}KiB"
HEAP_MIB = {
    "sorts": 2.8, "qsort_structs": 2.1, "matrices": 4.2, "hash_tables": 3.0, "text_buffers": 2.3,
    "file_buffers": 6.0, "recursion": 2.5, "ring_buffer": 2.2, "atomics": 2.2, "values": 2.3,
    "numbers": 2.1, "globals": 2.3, "bytecode_vm": 2.2, "sparse_life": 5.0, "treap": 2.4,
    "containers": 3.2, "expressions": 2.2, "streams": 3.4, "threads": 3.2, "lz_codec": 3.7,
}  # fmt: skip
"""The bytes that each program allocates at its peak; of `sparse_life`, those that it touches."""


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module", params=TRANSLATIONS)
def edges(request: pytest.FixtureRequest, where: Path) -> Path:
    return translated(CHECKS / "edges.c", where, request.param)


def a_tenth(source: Path) -> str:
    size_bytes = max(RAM_MIN_BYTES, int(HEAP_MIB[source.stem] * (1 << 20) / 10))
    return f"{size_bytes >> 10}KiB"


# --- programs run as plain ones do ----------------------------------------------------------------


@pytest.mark.requirement("KVM-1", "KVM-2")
@pytest.mark.parametrize("translation", TRANSLATIONS)
def test_a_program_prints_the_same_with_its_heap_in_a_directory(
    where: Path, tmp_path: Path, translation: str
) -> None:
    source = HEAP_TESTS / "programs" / "text_buffers.c"
    expected = run(plain(source, where))
    program = translated(source, where, translation)
    assert run(program) == expected
    assert run(program, heap=f"lmdb:{tmp_path / 'base'}", ram=a_tenth(source)) == expected
    assert not (tmp_path / "base" / "data.mdb").exists()


@pytest.mark.requirement("KVM-2", "KVM-5")
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("translation", TRANSLATIONS)
@pytest.mark.parametrize("source", PROGRAMS, ids=lambda source: source.stem)
def test_each_program_prints_the_same_with_a_tenth_of_its_heap_in_memory(
    source: Path, where: Path, tmp_path: Path, translation: str
) -> None:
    expected = run(plain(source, where))
    program = translated(source, where, translation)
    assert run(program) == expected
    heap, ram = f"lmdb:{tmp_path / 'base'}", a_tenth(source)
    assert run(program, heap=heap, ram=ram, timeout_s=200) == expected


@pytest.mark.requirement("KVM-3")
@pytest.mark.slow
@pytest.mark.parametrize("allocator", ["first-fit", "bump"])
@pytest.mark.parametrize("threads", ["1", "4"])
@pytest.mark.parametrize("translation", TRANSLATIONS)
def test_blocks_are_whole_under_random_use(
    where: Path, tmp_path: Path, translation: str, threads: str, allocator: str
) -> None:
    program = translated(CHECKS / "allocate.c", where, translation)
    chosen = {"CIEL_HEAP_ALLOCATOR": allocator}
    result = run(program, threads, heap=f"lmdb:{tmp_path / 'base'}", ram=RAM, variables=chosen)
    assert (result.status, result.out, result.err) == (0, "right\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("translation", TRANSLATIONS)
def test_a_program_may_define_names_of_the_run_time(
    where: Path, tmp_path: Path, translation: str
) -> None:
    program = translated(CHECKS / "names.cpp", where, translation)
    result = run(program, heap=f"lmdb:{tmp_path / 'base'}", ram=RAM)
    assert (result.status, result.err) == (0, "")
    assert result.out == f"{'z' * 40}\n2 3 4 1 2\n"


# --- what a program may do beside using memory ----------------------------------------------------


@pytest.mark.requirement("KVM-2")
@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    ["handler", "masks", "timers", "cancels", "waits", "counts", "frees", "exec", "deep", "stat"],
)
def test_programs_may(edges: Path, tmp_path: Path, case: str) -> None:
    result = run(edges, case, heap=f"lmdb:{tmp_path / 'base'}", ram=RAM)
    assert (result.status, result.err) == (0, "")
    assert result.out == ("started\n" if case == "exec" else "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "case, status, text",
    [
        ("fork", 74, "ciel-heap: a child of fork() used memory that is in its parent's store"),
        ("freed", 134, "ciel-heap: free() of 0x200000000"),
        ("null", -signal.SIGSEGV, ""),
    ],
)
def test_programs_must_not(edges: Path, tmp_path: Path, case: str, status: int, text: str) -> None:
    result = run(edges, case, heap=f"lmdb:{tmp_path / 'base'}", ram=RAM)
    assert result.status == status
    assert result.err.startswith(text)


@pytest.mark.parametrize(
    "variables, text",
    [
        ({"CIEL_HEAP_RAM": "64MiB"}, "CIEL_HEAP_RAM is set, but not CIEL_HEAP"),
        ({"CIEL_HEAP": "lmdb:{}", "CIEL_HEAP_RAM": "much"}, "CIEL_HEAP_RAM=much must be a size"),
        ({"CIEL_HEAP": "lmdb:{}", "CIEL_HEAP_RAM": "1KiB"}, "of at least 256KiB"),
        ({"CIEL_HEAP": "disk"}, "CIEL_HEAP=disk: it is none of kv:NAME, memory:VOLUME"),
        ({"CIEL_HEAP": "lmdb:{}/missing/base"}, "could not be opened: No such file"),
        ({"CIEL_HEAP": "kv:scores"}, "CIEL_HEAP=kv:scores: "),
        ({"CIEL_HEAP": "kv:"}, "a name is missing"),
        ({"CIEL_HEAP_ALLOCATOR": "best"}, "CIEL_HEAP_ALLOCATOR=best must be first-fit or bump"),
    ],
)
def test_wrong_settings_are_named(
    where: Path, tmp_path: Path, variables: dict[str, str], text: str
) -> None:
    program = where / "nothing"
    if not program.exists():
        (where / "nothing.c").write_text("int main(void) { return 0; }\n")
        assert ciel_cc(where / "nothing.c", "-o", program).returncode == 0
    given = {name: value.format(tmp_path) for name, value in variables.items()}
    result = run(program, variables={"CIEL_KV": "", **given})
    assert result.status == 78
    assert result.err.startswith("ciel-heap: ")
    assert text in result.err


def test_a_directory_serves_one_program_at_a_time(where: Path, tmp_path: Path) -> None:
    source = where / "waits.c"
    source.write_text(
        "#include <stdio.h>\n#include <stdlib.h>\n"
        'int main(void) { puts(malloc(9) ? "there" : 0); fflush(stdout); getchar(); }\n'
    )
    program = where / "waits"
    assert ciel_cc("-O0", source, "-o", program).returncode == 0
    heap = f"lmdb:{tmp_path / 'base'}"
    with subprocess.Popen(
        [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"CIEL_HEAP": heap}
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"there\n"
        second = run(program, heap=heap)
        first.communicate(b"\n")
    assert second.status == 78
    assert "another program uses the directory" in second.err
    assert first.returncode == 0


# --- code that cannot be translated ---------------------------------------------------------------


@pytest.mark.requirement("KVM-2")
@pytest.mark.parametrize(
    "code, translation, text",
    [
        ('void f(void) { __asm__("syscall"); }', "heap", "assembler code calls the kernel"),
        ("int f(int __attribute__((address_space(257))) *p) { return *p; }", "heap",
         "another address space"),
        ("int clone(int (*)(void *), void *, int, void *);\n"
         "int f(void *p) { return clone(0, p, 0, p); }", "heap", "a process by clone()"),
        ("int swapcontext(void *, void *);\nint f(void *p) { return swapcontext(p, p); }", "full",
         "swapcontext() changes stacks"),
    ],
)  # fmt: skip
def test_code_that_cannot_be_translated_is_refused_with_its_line(
    tmp_path: Path, code: str, translation: str, text: str
) -> None:
    source = tmp_path / "code.c"
    source.write_text(f"\n\n{code}\n")
    done = ciel_cc(f"--memory={translation}", "-O1", "-c", source, "-o", tmp_path / "code.o")
    assert done.returncode != 0
    line = 3 + code.count("\n")
    assert f"{source}:{line}:" in done.stderr
    assert text in done.stderr


@pytest.mark.parametrize(
    "options, text",
    [
        (["--memory=disk", "x.c"], "--memory=disk must be heap or full"),
        (["-static", "x.c"], "-static does not work"),
    ],
)
def test_options_that_cannot_work_are_refused(options: list[str], text: str) -> None:
    done = ciel_cc(*options)
    assert done.returncode == 2
    assert done.stderr.startswith("ciel-cc: ")
    assert text in done.stderr


# --- heaps that survive their program -------------------------------------------------------------


@pytest.fixture(params=["lmdb", "kv"])
def durable_store(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[str, dict[str, str]]]:
    if request.param == "lmdb":
        yield f"lmdb:{tmp_path / 'heap'}", {}
        return
    with KvDaemon(tmp_path / "base") as daemon:
        key_file = tmp_path / "base" / "password"
        url = f"ciel-kv://127.0.0.1:{daemon.port}"
        yield "kv:counts", {"CIEL_KV": url, "CIEL_KV_KEY_FILE": str(key_file)}


@pytest.mark.slow
def test_a_heap_that_was_used_and_freed_is_replaced(where: Path, tmp_path: Path) -> None:
    program = translated(CHECKS / "durable.c", where, "heap")
    heap = f"lmdb:{tmp_path / 'heap'}"
    assert run(program, "3", heap=heap, ram=RAM).out == "from 0\n1\n2\n3\n"
    assert run(program, "4", "used", heap=heap, ram=RAM).out == "from 3\n4\n"
    kept = run(program, "5", "kept", heap=heap, ram=RAM)
    assert (kept.status, kept.err) == (1, "ciel_heap_restore: Device or resource busy\n")
    assert run(program, "5").err == "ciel_heap_restore: Operation not supported\n"


@pytest.mark.requirement("KVM-1")
@pytest.mark.slow
def test_a_killed_program_finds_the_heap_of_its_last_sync(
    where: Path, tmp_path: Path, durable_store: tuple[str, dict[str, str]]
) -> None:
    heap, variables = durable_store
    program = translated(CHECKS / "durable.c", where, "heap")
    environment = {"CIEL_HEAP": heap, "CIEL_HEAP_RAM": "512KiB", **variables}
    chance = random.Random(26)
    done = 0
    for _ in range(12):
        with subprocess.Popen(
            [program, "1000000"], env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            time.sleep(chance.uniform(0.05, 0.5))
            process.kill()
            out, _ = process.communicate()
        counts = [line for line in out.splitlines(keepends=True) if line.endswith("\n")]
        if not counts:
            continue  # it was killed before it had found its heap
        first = int(counts[0].removeprefix("from "))
        assert done <= first <= done + 1  # a sync may have ended that was not printed
        done = max(done, first, *(int(line) for line in counts[1:]))
    assert done > 0
    last = run(program, str(done + 1), heap=heap, ram="512KiB", variables=variables)
    assert last.status == 0
    assert last.out.startswith("from ")
