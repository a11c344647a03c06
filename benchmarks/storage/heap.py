"""Measures programs that `ciel-cc` compiles, beside plain ones of the same compiler (KVM-4).

A quicksort whose array fits into memory, or of which a quarter does; the three test functions of
the source document, with the number of their instructions; and its tests A to D of allocators. The
benchmark rewrites the tables of docs/measured/heap.md.

Expected: while all pages are in memory, an access costs a check of three instructions, so a program
takes less than three times as long. A quicksort goes through its array in order, once for each
level of the recursion whose parts do not fit: a store moves each page a few times only.

    python -m benchmarks.storage.heap [sort] [functions] [instructions] [allocators]
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.plots import table, write_down
from ciel.executors.sdk.heap.building import HERE as RUNTIME
from ciel.executors.sdk.heap.building import missing, toolchain
from ciel.testing.homes import Home
from ciel.testing.memory.cluster import MemoryCluster

sys.path.append(str(Path(__file__).parents[2] / "tests" / "lib"))  # as for pytest

from ciel_tests.heaps import ciel_cc
from ciel_tests.kv_daemons import KvDaemon
from ciel_tests.redis_server import REDIS, redis_server

SOURCES: Final = Path(__file__).with_name("heap")
TRANSLATIONS: Final = ("plain", "heap", "full")
OPTIMISATIONS: Final = ("-O2", "-O0")
SORTED_MIB: Final = 100
ROUNDS: Final = 3
CALLS: Final = 100
"""How often each function and each test of an allocator runs, as in the source document."""
SMALL_RAM: Final = "256KiB"
SWEEP_KIB: Final = 1024
"""Enough other memory to make all other pages leave, if so much may be in memory."""
FUNCTION_ROUNDS: Final = 9
ALLOCATOR_TESTS: Final = {
    "A": "A: 50 of 1 kB",
    "B": "B: 50 of 1 to 50 kB",
    "C": "C: 10 times 5 of 512 B",
    "c": "C, different sizes",
    "D": "D: half of 50 freed, 50 more",
    "d": "D, different sizes",
}
THREADS: Final = (1, 2, 10)
ALLOCATORS: Final = {"glibc": "plain", "first-fit": "heap", "bump": "heap"}
"""The allocators, and the translation of the program that uses each."""
RUN_S: Final = 900

Values = Mapping[str, float]
Variables = Mapping[str, str]


class Place(NamedTuple):
    """A place for the heap of a program: the variables that choose it, and its name in results."""

    name: str
    variables: Variables


IN_MEMORY: Final = Place("memory", {})


# --- programs -------------------------------------------------------------------------------------


def compiled(name: str, translation: str, where: Path, *options: str) -> Path:
    """Compile a program of this benchmark."""
    source, program = SOURCES / f"{name}.c", where / f"{name}-{translation}{''.join(options)}"
    flags = [*(options or ("-O2",)), "-pthread", str(source), "-o", str(program)]
    if translation == "plain":
        subprocess.run([toolchain().clang, f"-I{RUNTIME}", *flags], check=True)
    elif (done := ciel_cc(f"--memory={translation}", *flags)).returncode:
        raise SystemExit(f"ciel-cc failed: {done.stderr}")
    return program


def run(program: Path, *arguments: object, place: Place = IN_MEMORY) -> Values:
    """Run a program, and return the values that it prints."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("CIEL_")
    }
    done = subprocess.run(
        [str(program), *map(str, arguments)], env={**environment, **place.variables},
        capture_output=True, text=True, timeout=RUN_S,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{program.name} with {place.name} failed: {done.stdout}{done.stderr}")
    return {name: float(value) for name, value in map(str.split, done.stdout.splitlines())}


def in_turns(runs: Mapping[str, Callable[[], Values]], rounds: int) -> dict[str, Values]:
    """Carry out all runs in each round; return the medians of their values."""
    found: dict[str, list[Values]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, once in runs.items():
            found[name].append(once())
    return {
        name: {key: statistics.median(each[key] for each in values) for key in values[0]}
        for name, values in found.items()
    }


# --- quicksort ------------------------------------------------------------------------------------


@contextmanager
def stores(where: Path, mib: int) -> Iterator[dict[str, Variables]]:
    """Run a server of each kind; yield the variables that put a heap into each."""
    with ExitStack() as stack:
        found: dict[str, Variables] = {"lmdb": {"CIEL_HEAP": f"lmdb:{where / 'lmdb'}"}}
        daemon = stack.enter_context(KvDaemon(where / "ciel-kv", "--sync", "interval"))
        found["kv"] = {
            "CIEL_HEAP": "kv:sorted",
            "CIEL_KV": f"ciel-kv://127.0.0.1:{daemon.port}",
            "CIEL_KV_KEY_FILE": str(where / "ciel-kv" / "password"),
        }
        if REDIS is not None:
            port = stack.enter_context(redis_server(where))
            found["redis"] = {"CIEL_HEAP": "kv:sorted", "CIEL_KV": f"redis://127.0.0.1:{port}"}
        (where / "home").mkdir()
        home = Home(where / "home")
        cluster = MemoryCluster(home, stack, f"{mib}MiB")
        cluster.create("sorted", 3 * mib // 2, 1)
        found["memory"] = {**home.environ, "CIEL_HEAP": "memory:sorted"}
        yield found


def sort(where: Path, mib: int = SORTED_MIB, rounds: int = ROUNDS) -> dict[str, Values]:
    """Sort an array of ints; return the values of each program and place.

    `base` is the same program with a store and an array of one page.
    """
    programs = {each: compiled("quicksort", each, where) for each in TRANSLATIONS}
    with stores(where, mib) as found:
        quarter = {"CIEL_HEAP_RAM": f"{mib // 4}MiB"}
        runs: dict[str, Callable[[], Values]] = {}

        def add(name: str, translation: str, place: Place, size_mib: float = mib) -> None:
            runs[name] = lambda: run(programs[translation], size_mib, place=place)

        for each in TRANSLATIONS:
            add(each, each, IN_MEMORY)
        fits = Place("lmdb", {**found["lmdb"], "CIEL_HEAP_RAM": f"{2 * mib}MiB"})
        add("heap_lmdb_fits", "heap", fits)
        add("full_lmdb_fits", "full", fits)
        for name, variables in found.items():
            add(f"heap_{name}", "heap", Place(name, {**variables, **quarter}))
            small = Place(name, {**variables, "CIEL_HEAP_RAM": SMALL_RAM})
            add(f"base_{name}", "heap", small, 1 / 64)
        add("full_lmdb", "full", Place("lmdb", {**found["lmdb"], **quarter}))
        return in_turns(runs, rounds)


def sort_figures(runs: Mapping[str, Values], mib: int = SORTED_MIB) -> dict[str, float]:
    """Return the durations, their ratios to plain, and the memory above the limit."""
    plain_s = runs["plain"]["sort_s"]
    found = {"sort_plain_s": plain_s}
    for name, values in runs.items():
        if name.startswith(("heap", "full")):
            found[f"sort_{name}_ratio"] = values["sort_s"] / plain_s
        if f"base_{name.partition('_')[2]}" in runs and name.startswith("heap_"):
            found[f"sort_{name}_over_mib"] = _over_mib(runs, name, mib)
    return found


def _over_mib(runs: Mapping[str, Values], name: str, mib: int) -> float:
    """Return the peak of memory minus the limit, and minus what the program without a heap has."""
    base = runs[f"base_{name.partition('_')[2]}"]["peak_kib"]
    return (runs[name]["peak_kib"] - base) / 1024 - mib // 4


SORT_ROWS: Final = {
    "plain": "plain",
    "heap": "`heap`, no store",
    "full": "`full`, no store",
    "heap_lmdb_fits": "`heap`, `lmdb:`, all fits",
    "full_lmdb_fits": "`full`, `lmdb:`, all fits",
    "heap_lmdb": "`heap`, `lmdb:`, a quarter fits",
    "full_lmdb": "`full`, `lmdb:`, a quarter fits",
    "heap_kv": "`heap`, `kv:` in `ciel-kv --sync interval`, a quarter fits",
    "heap_redis": "`heap`, `kv:` in redis-server, a quarter fits",
    "heap_memory": "`heap`, `memory:`, a quarter fits",
}


def sort_table(runs: Mapping[str, Values]) -> str:
    """Return a row for each program and place."""
    plain = runs["plain"]
    head = ["", "fill", "sort", "to plain", "CPU of sort", "whole, to plain", "VmHWM", "read",
            "written", "faults"]  # fmt: skip
    rows = []
    for name, title in SORT_ROWS.items():
        if (values := runs.get(name)) is None:
            continue
        rows.append([
            title, f"{values['fill_s']:.2f} s", f"{values['sort_s']:.2f} s",
            f"{values['sort_s'] / plain['sort_s']:.2f} x", f"{values['cpu_s']:.2f} s",
            f"{_whole_s(values) / _whole_s(plain):.2f} x",
            f"{values['peak_kib'] / 1024:.1f} MiB", f"{values['read_pages']:,.0f}",
            f"{values['written_pages']:,.0f}", f"{values['faults']:,.0f}",
        ])  # fmt: skip
    return table(head, rows)


def _whole_s(values: Values) -> float:
    return values["fill_s"] + values["sort_s"] + values["check_s"]


# --- functions ------------------------------------------------------------------------------------


FUNCTIONS: Final = {
    "stack_us": "stack fill",
    "heap_us": "heap fill",
    "threads_us": "producer and consumer",
}
PLACES: Final = ("memory", "lmdb", "absent")
"""Without a store; with one; with one, to which all pages have gone before each call."""


def functions(where: Path, rounds: int = FUNCTION_ROUNDS) -> dict[str, Values]:
    """Call the three functions; return the values of each translation, optimisation and place."""
    small = {"CIEL_HEAP": f"lmdb:{where / 'lmdb'}", "CIEL_HEAP_RAM": SMALL_RAM}
    runs: dict[str, Callable[[], Values]] = {}

    def add(name: str, program: Path, place: Place, sweep_kib: int) -> None:
        runs[name] = lambda: run(program, CALLS, sweep_kib, place=place)

    for translation in TRANSLATIONS:
        for option in OPTIMISATIONS:
            program, name = compiled("functions", translation, where, option), translation + option
            add(f"{name}_memory", program, IN_MEMORY, 0)
            if translation != "plain":
                add(f"{name}_lmdb", program, Place("lmdb", small), 0)
                add(f"{name}_absent", program, Place("lmdb", small), SWEEP_KIB)
    return in_turns(runs, rounds)


def function_figures(runs: Mapping[str, Values]) -> dict[str, float]:
    """Return the times of all functions in us."""
    return {f"{key.removesuffix('_us')}_{name}_us": values[key]
            for name, values in runs.items() for key in FUNCTIONS}  # fmt: skip


def function_table(runs: Mapping[str, Values]) -> str:
    """Return a row for each function and optimisation."""
    columns = [("plain", "memory"), *((t, p) for t in TRANSLATIONS[1:] for p in PLACES)]
    titles = {"memory": "no store", "lmdb": "`lmdb:`", "absent": "`lmdb:`, absent"}
    head = ["us", "plain", *(f"`{each}`, {titles[place]}" for each, place in columns[1:])]
    rows = [
        [f"{title}, `{option}`",
         *(_short(runs[f"{each}{option}_{place}"][key]) for each, place in columns)]
        for option in OPTIMISATIONS
        for key, title in FUNCTIONS.items()
    ]  # fmt: skip
    return table(head, rows)


def _short(us: float) -> str:
    return f"{us:,.0f}" if us >= 100 else f"{us:.1f}" if us >= 10 else f"{us:.3f}"


# --- instructions ---------------------------------------------------------------------------------


COUNTED: Final = {
    "fill_stack": "stack fill",
    "fill_heap": "heap fill",
    "produce": "producer",
    "consume": "consumer",
    "hand_over": "their start and end",
    "check": "check of a matrix",
    "": "all functions",
}


def instructions(where: Path) -> dict[str, dict[str, int]]:
    """Count the instructions of LLVM of each function, by translation and optimisation."""
    found = {}
    for translation in TRANSLATIONS:
        for option in OPTIMISATIONS:
            text = compiled("functions", translation, where, option, "-S", "-emit-llvm").read_text()
            found[translation + option] = counts_of(text)
    return found


def counts_of(text: str) -> dict[str, int]:
    """Count the instructions of each function in the text of a module; "" is their sum."""
    found: dict[str, int] = {}
    for name, body in re.findall(r"^define .*?@([\w.$]+)\(.*?\{\n(.*?)^\}", text, re.M | re.S):
        found[name] = len(re.findall(r"^  [^\s#\];]", body, re.MULTILINE))
    return {**found, "": sum(found.values())}


def instruction_figures(counts: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    """Return how many times as many instructions a translation has."""
    return {
        f"instructions_{translation}{option}_ratio": counts[translation + option][""]
        / counts[f"plain{option}"][""]
        for translation in TRANSLATIONS[1:]
        for option in OPTIMISATIONS
    }


def instruction_table(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Return a row for each function."""
    columns = [(each, option) for option in OPTIMISATIONS for each in TRANSLATIONS]
    head = ["instructions", *(f"{_code(each)}, `{option}`" for each, option in columns)]
    rows = [[title, *(str(counts[each + option].get(name, "-")) for each, option in columns)]
            for name, title in COUNTED.items()]  # fmt: skip
    return table(head, rows)


def _code(translation: str) -> str:
    return translation if translation == "plain" else f"`{translation}`"


# --- allocators -----------------------------------------------------------------------------------


def allocators(where: Path, rounds: int = FUNCTION_ROUNDS) -> dict[str, Values]:
    """Run the tests of allocators without a store; return the values of each, by threads."""
    programs = {each: compiled("allocators", each, where) for each in set(ALLOCATORS.values())}
    runs: dict[str, Callable[[], Values]] = {}

    def add(name: str, test: str, threads: int, allocator: str) -> None:
        variables = {} if allocator == "glibc" else {"CIEL_HEAP_ALLOCATOR": allocator}
        program = programs[ALLOCATORS[allocator]]
        runs[name] = lambda: run(program, test, threads, CALLS, place=Place(allocator, variables))

    for test in ALLOCATOR_TESTS:
        for threads in THREADS:
            for allocator in ALLOCATORS:
                add(f"{allocator}_{test}_{threads}", test, threads, allocator)
    return in_turns(runs, rounds)


def allocator_figures(runs: Mapping[str, Values]) -> dict[str, float]:
    """Return the time of a run of each test in us."""
    return {f"allocator_{name}_us": values["run_us"] for name, values in runs.items()}


def allocator_table(runs: Mapping[str, Values]) -> str:
    """Return a row for each test and number of threads."""
    head = ["us of a run", "threads", *ALLOCATORS]
    rows = [
        [title, str(threads),
         *(_short(runs[f"{each}_{test}_{threads}"]["run_us"]) for each in ALLOCATORS)]
        for test, title in ALLOCATOR_TESTS.items()
        for threads in THREADS
    ]  # fmt: skip
    return table(head, rows)


# --- all ------------------------------------------------------------------------------------------


def _part(name: str, where: Path) -> tuple[dict[str, float], str]:
    """Measure a part; return its figures and its table."""
    where.mkdir()
    match name:
        case "sort":
            runs = sort(where)
            return sort_figures(runs), sort_table(runs)
        case "functions":
            runs = functions(where)
            return function_figures(runs), function_table(runs)
        case "instructions":
            counts = instructions(where)
            return instruction_figures(counts), instruction_table(counts)
        case _:
            runs = allocators(where)
            return allocator_figures(runs), allocator_table(runs)


PARTS: Final = ("sort", "functions", "instructions", "allocators")


def measure(parts: Sequence[str] = PARTS) -> dict[str, float]:
    """Measure, write the page, and return ratios, times in us, and memory in MiB."""
    if why := missing():
        raise SystemExit(f"ciel-cc cannot run: {why}")
    found: dict[str, float] = {}
    where = Path(tempfile.mkdtemp(prefix="ciel-bench-heap-"))
    try:
        for name in parts:
            figures, text = _part(name, where / name)
            found |= figures
            print(f"{text}\n", file=sys.stderr)
            write_down("heap", name, text, {})
        return found
    finally:
        shutil.rmtree(where, ignore_errors=True)


if __name__ == "__main__":
    for key, value in measure(sys.argv[1:] or PARTS).items():
        print(f"{key:34} {value:12,.3f}")
