"""`make bench`: prints each result with its goal; each benchmark runs in a separate process.

A result that misses its goal is marked, but the command does not fail: benchmarks check speed,
timed unit tests never do. A benchmark that cannot run here, such as `fuse` without libfuse, does
not fail the command either. `make bench ONLY=graph` runs one benchmark; benchmarks that take
minutes run only in this way. `RECORD="2026-11-22 streams"` writes the results into the
documentation (`record.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.record import keys, record

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Figure:
    """A row of the table: the source of its value, and its goal."""

    text: str
    benchmark: str
    key: str
    unit: str
    goal: float
    at_most: bool
    digits: int = 1

    def is_met(self, value: float) -> bool:
        return value <= self.goal if self.at_most else value >= self.goal

    def cells(self, value: float) -> list[str]:
        """Return the cells of the row: goal, value, and whether the value meets the goal."""
        goal = f"{'≤' if self.at_most else '≥'} {self.goal:,g} {self.unit}".rstrip()
        here = f"{value:,.{self.digits}f} {self.unit}".rstrip()
        return [goal, here, "met" if self.is_met(value) else "missed"]


FIGURES = (
    Figure("graph: CPU per task at 10^6 tasks", "graph", "us_per_task_1e6", "us", 10, True),
    Figure("graph: 10^6 tasks against 10^5", "graph", "ratio_1e6_to_1e5", "x", 1.3, True, 2),
    Figure("state machine: 200 workers against 4", "crowd", "many_to_few", "x", 0.8, False, 2),
    Figure("memory per waiting task", "graph", "bytes_per_waiting_task", "B", 1024, True, 0),
    Figure("control plane: no-op tasks", "control", "tasks_per_s", "/s", 30_000, False, 0),
    Figure("control plane: CPU per task, all processes", "control", "cpu_us_total", "us", 50, True),
    Figure("launcher against xargs -P2, /bin/true", "launcher", "ratio", "x", 1.3, False, 2),
    Figure("ciel submit -- true, cold", "cold", "median_s", "s", 0.8, True, 2),
    Figure("2,000 programs: submit against xargs -P2", "programs", "ratio", "x", 0.7, False, 2),
    Figure(
        "100,000 programs: rate against 2,000 programs", "many", "many_to_few", "x", 0.85, False, 2
    ),
    Figure("memory growth over the last 50,000 programs", "many", "grown_mib", "MiB", 4, True),
    Figure("ciel job list, 10,000 jobs", "many", "list_s", "s", 0.3, True, 2),
    Figure("start of a command", "many", "start_s", "s", 0.1, True, 2),
    Figure("longest pause of a daemon with these jobs", "many", "pause_s", "s", 0.05, True, 3),
    Figure(
        "- minus the longest pause of an idle process", "many", "own_pause_s", "s", 0.05, True, 3
    ),
    Figure(
        "queries over 10^6 tasks: wait of other requests",
        "looking",
        "longest_wait_s",
        "s",
        0.05,
        True,
        4,
    ),
    Figure("- minus the wait without queries", "looking", "own_wait_s", "s", 0.05, True, 3),
    Figure(
        "10^6 tasks cancelled: wait of other requests",
        "bulk",
        "own_cancel_wait_s",
        "s",
        0.05,
        True,
        3,
    ),
    Figure("- and removed", "bulk", "own_remove_wait_s", "s", 0.05, True, 3),
    Figure("- 300,000 tasks fail with their input", "bulk", "own_fail_wait_s", "s", 0.05, True, 3),
    Figure(
        "memory per finished task after its release",
        "released",
        "released_bytes",
        "B",
        300,
        True,
        0,
    ),
    Figure("- per task of a removed job", "released", "removed_bytes", "B", 300, True, 0),
    Figure("no-op tasks in warm programs", "talkers", "tasks_per_s", "/s", 12_000, False, 0),
    Figure("- CPU per task, all processes", "talkers", "cpu_us_total", "us", 90, True),
    Figure(
        "chain of 1,000 such tasks: time per hop, delegated",
        "talkers",
        "hop_us_on",
        "us",
        120,
        True,
        0,
    ),
    Figure("- not delegated", "talkers", "hop_us_off", "us", 250, True, 0),
    Figure(
        "first byte of a stream, fraction of its duration",
        "talkers",
        "first_byte",
        "",
        0.2,
        True,
        3,
    ),
    Figure("rings against sockets: no-op tasks", "ring", "rate_ratio_polling", "x", 1, False, 2),
    Figure(
        "- time per hop through the master, with polling",
        "ring",
        "hop_ratio_polling",
        "x",
        0.8,
        True,
        2,
    ),
    Figure("1 GiB by HTTP against plain Twisted, pycurl", "transfer", "ratio", "x", 0.75, False, 2),
    Figure("- into a store in memory", "transfer", "shm_gb_per_s", "GB/s", 1.5, False),
    Figure("query after the master was killed", "master_restart", "median_s", "s", 1, True, 2),
    Figure(
        "5,501 tasks: time with killed workers, against none killed",
        "losses",
        "killed_to_clean",
        "x",
        1.3,
        True,
        2,
    ),
    Figure(
        "- with killed workers and deleted objects", "losses", "wiped_to_clean", "x", 1.6, True, 2
    ),
    Figure(
        "- with workers stopped for 6 s of 15 s", "losses", "stopped_to_clean", "x", 1.25, True, 2
    ),
    Figure(
        "- programs that ran twice with stopped workers",
        "losses",
        "stopped_ran_twice",
        "",
        0,
        True,
        0,
    ),
    Figure("- with the master killed every 5 s", "losses", "master_to_clean", "x", 1.3, True, 2),
    Figure(
        "- tasks that ran again after a kill of the master",
        "losses",
        "master_ran_twice",
        "",
        0,
        True,
        0,
    ),
    Figure(
        "script: fib(15), a task for every call",
        "scripts",
        "fib_tasks_per_s",
        "/s",
        3_000,
        False,
        0,
    ),
    Figure("script: time per dereference, of 1,000", "scripts", "deref_us", "us", 400, True, 0),
    Figure(
        "- of 10,000: the last 1,000 against the first 1,000",
        "scripts",
        "deref_last_to_first",
        "x",
        1.3,
        True,
        2,
    ),
    Figure("sw-job hello.sw on a running cluster", "scripts", "hello_s", "s", 0.25, True, 2),
    Figure(
        "modelled disk: many loads without a limit",
        "disk_jobs",
        "unlimited_to_alone",
        "x",
        0.65,
        True,
        2,
    ),
    Figure("- one load at a time, worst case", "disk_jobs", "one_to_alone", "x", 0.95, False, 2),
    Figure(
        "tasks at a disk and tasks that compute: without io against with",
        "io_bound",
        "plain_to_io",
        "x",
        1.5,
        False,
        2,
    ),
    Figure("shmfs create + commit against tmpfs", "shmfs", "create_to_tmpfs_1", "x", 5, False),
    Figure("- two processes each", "shmfs", "create_to_tmpfs_2", "x", 5, False),
    Figure("shmfs lookup against tmpfs open + close", "shmfs", "lookup_to_tmpfs_1", "x", 4, False),
    Figure("- two processes each", "shmfs", "lookup_to_tmpfs_2", "x", 4, False),
    Figure("- two processes against one", "shmfs", "lookup_2_to_1", "x", 1, False, 2),
    Figure("shmfs: store of 1 GiB against memcpy", "shmfs", "store_to_memcpy", "x", 0.85, False, 2),
    Figure("- load of 1 GiB against memcpy", "shmfs", "load_to_memcpy", "x", 0.85, False, 2),
    Figure("shmfs as a directory: open + close", "fuse", "opens_per_s", "/s", 12_000, False, 0),
    Figure("- cached read", "fuse", "cached_read_gb_per_s", "GB/s", 8, False),
    Figure(
        "1 GiB written in place in used memory, against memset",
        "stores",
        "in_place_ratio",
        "x",
        0.4,
        False,
        2,
    ),
    Figure("open an object of the same host", "stores", "open_us", "us", 40, True),
    Figure("- in C, by libshmdc, beyond open(2)", "shmdc", "beyond_open_us", "us", 5, True, 2),
    Figure(
        "request between two daemons, messages against a socket",
        "shmd_messages",
        "messages_to_socket",
        "x",
        1.2,
        True,
        2,
    ),
    Figure("message between two cores, round trip", "mpb", "trip_us", "us", 5, True, 2),
    Figure("- messages of 1 MiB", "mpb", "one_way_gb_per_s", "GB/s", 1, False, 2),
    Figure(
        "Python: rate of 10,000 no-ops, against a process pool",
        "python",
        "no_ops_to_pool",
        "x",
        1,
        False,
        2,
    ),
    Figure("- against dask at its best", "python", "no_ops_to_dask", "x", 5, False, 1),
    Figure("- against ray", "python", "no_ops_to_ray", "x", 8, False, 1),
    Figure("- CPU per task, all processes", "python", "cpu_us", "us", 60, True),
    Figure("- map of 100,000, automatic chunks", "python", "map_per_s", "/s", 100_000, False, 0),
    Figure("- chain of 1,000 futures: time per hop", "python", "hop_us", "us", 150, True, 0),
    Figure("- fan-in of 1,000 tasks to 1", "python", "fan_in_s", "s", 0.08, True, 3),
    Figure("- fib that waits in tasks", "python", "fib_per_s", "/s", 8_000, False, 0),
    Figure("- fib that delegates", "python", "delegated_fib_per_s", "/s", 8_000, False, 0),
    Figure("- 10,000 results of 1 KiB", "python", "kibibytes_per_s", "/s", 12_000, False, 0),
    Figure(
        "- 256 MiB for four readers of 0.1 s, against two C processes",
        "python",
        "one_by_one_array_to_floor",
        "x",
        1.15,
        True,
        2,
    ),
    Figure(
        "- the same, readers as fast as memory",
        "python",
        "array_to_floor",
        "x",
        1.15,
        True,
        2,
    ),
    Figure(
        "- functions that capture a dictionary, against others: no-ops",
        "python",
        "captured_no_ops_to_free",
        "x",
        0.9,
        False,
        2,
    ),
    Figure("- - time per hop", "python", "captured_hops_to_free", "x", 0.9, False, 2),
    Figure("- - round trip of one call", "python", "captured_calls_to_free", "x", 0.9, False, 2),
    Figure("- first result of a map, 10,000 x 50 ms", "flow", "first_s", "s", 0.15, True, 2),
    Figure("- map of 400 x 50 ms, against the ideal", "flow", "map_to_ideal", "x", 1.02, True, 2),
    Figure(
        "- first call while another client has 100 x 0.5 s", "flow", "other_s", "s", 0.6, True, 2
    ),
    Figure("- import ciel", "python", "import_s", "s", 0.15, True, 2),
    Figure("- Client() that starts a cluster", "python", "client_s", "s", 0.7, True, 2),
    Figure(
        "- arguments of 1 MiB, against 0 bytes", "python", "large_to_empty", "x", 0.85, False, 2
    ),
    Figure("Arrow: descriptor of 3 columns written", "arrow", "write_us", "us", 15, True),
    Figure("- read", "arrow", "read_us", "us", 15, True),
    Figure("- table of 1.6 GiB, from task to task", "arrow", "table_ms", "ms", 1, True, 2),
    Figure("- - growth of the reader's own memory", "arrow", "private_mib", "MiB", 16, True),
    Figure("- allocation in the store", "arrow", "allocation_us", "us", 3, True, 2),
    Figure("- in the memory of another worker", "arrow", "lent_allocation_us", "us", 120, True, 2),
    Figure("- barrier of two tasks on one host", "arrow", "barrier_us", "us", 100, True),
    Figure("- 10,000 batches of 64 tasks as one table", "arrow", "concat_ms", "ms", 50, True),
    Figure(
        "- 1 GiB of Parquet decoded and summed, against ray",
        "arrow",
        "parquet_to_ray",
        "x",
        1.5,
        False,
        2,
    ),
    Figure(
        "- - against two plain processes",
        "arrow",
        "parquet_to_plain",
        "x",
        1.05,
        True,
        2,
    ),
    Figure("- copied on scc, in each build", "arrow_copies", "scc_copied_bytes", "B", 0, True, 0),
    Figure(
        "- one column of 20 from another host, bytes sent to its size",
        "arrow_copies",
        "wire_to_column",
        "x",
        1.02,
        True,
        3,
    ),
    Figure("- 100,000 changed tables: crashes", "arrow_copies", "mutants_crashed", "", 0, True, 0),
    Figure(
        "state: gets of LMDB in a process", "state", "embedded_gets_per_s", "/s", 300_000, False, 0
    ),
    Figure("state: puts of LMDB, unsynced", "state", "embedded_puts_per_s", "/s", 50_000, False, 0),
    Figure(
        "ciel-kv against redis-server: gets, in turn", "state", "get_ratio_1", "x", 0.5, False, 2
    ),
    Figure("- puts, in turn", "state", "set_ratio_1", "x", 0.5, False, 2),
    Figure("- gets of 16 clients", "state", "get_ratio_16", "x", 0.4, False, 2),
    Figure("- puts of 16 clients", "state", "set_ratio_16", "x", 0.4, False, 2),
    Figure(
        "eight writers beside scans of one moment",
        "state",
        "writes_beside_scans",
        "x",
        0.8,
        False,
        2,
    ),
    Figure(
        "YCSB A, 16 clients: ciel-kv against redis-server",
        "ycsb",
        "cielkv_interval_a_ratio",
        "x",
        0.4,
        False,
        2,
    ),
    Figure("- workload F", "ycsb", "cielkv_interval_f_ratio", "x", 0.4, False, 2),
    Figure(
        "ciel-cc: quicksort, no store, against clang", "heap", "sort_heap_ratio", "x", 3, True, 2
    ),
    Figure("- full translation", "heap", "sort_full_ratio", "x", 3, True, 2),
    Figure("- lmdb:, all fits", "heap", "sort_heap_lmdb_fits_ratio", "x", 3, True, 2),
    Figure(
        "- full translation, lmdb:, all fits", "heap", "sort_full_lmdb_fits_ratio", "x", 3, True, 2
    ),
    Figure("- lmdb:, a quarter fits", "heap", "sort_heap_lmdb_ratio", "x", 40, True, 2),
    Figure("- kv:, a quarter fits", "heap", "sort_heap_kv_ratio", "x", 40, True, 2),
    Figure("- memory:, a quarter fits", "heap", "sort_heap_memory_ratio", "x", 40, True, 2),
    Figure("- lmdb:, memory above the limit", "heap", "sort_heap_lmdb_over_mib", "MiB", 0, True),
    Figure("- kv:, memory above the limit", "heap", "sort_heap_kv_over_mib", "MiB", 0, True),
    Figure(
        "- memory:, memory above the limit", "heap", "sort_heap_memory_over_mib", "MiB", 0, True
    ),
    Figure("script: 10^6 additions against Python", "language", "loop_ratio", "x", 8, True),
    Figure("script: 100,000 lines read and resolved", "language", "parse_s", "s", 4, True),
)
PARTS = (
    ("control", "cpu_us_client"),
    ("control", "cpu_us_master"),
    ("control", "cpu_us_workers"),
    ("launcher", "launcher_per_s"),
    ("launcher", "xargs_per_s"),
    ("graph", "us_per_task_1e5"),
    ("programs", "ciel_per_s"),
    ("programs", "xargs_per_s"),
    ("programs", "cpu_us_client"),
    ("programs", "cpu_us_daemons"),
    ("transfer", "bare_gb_per_s"),
    ("transfer", "cpu_s_ours"),
    ("transfer", "cpu_s_bare"),
    ("many", "many_per_s"),
    ("many", "list_all_s"),
    ("many", "idle_pause_s"),
    ("many", "bare_s"),
    ("looking", "idle_wait_s"),
    ("looking", "metrics_s"),
    ("looking", "filled_per_s"),
    ("looking", "filled_pause_s"),
    ("released", "ended_bytes"),
    ("released", "removed_job_bytes"),
    ("released", "left_mib"),
    ("ring", "program_hop_ratio_polling"),
    ("talkers", "cpu_us_worker"),
    ("talkers", "cpu_us_master"),
    ("talkers", "cpu_us_programs"),
    ("transfer", "ours_gb_per_s"),
    ("losses", "clean_s"),
    ("losses", "master_kills"),
    ("fuse", "creates_per_s"),
    ("fuse", "write_gb_per_s"),
    ("fuse", "read_ratio"),
    ("fuse", "tmpfs_read_gb_per_s"),
    ("scripts", "fib_tasks"),
    ("scripts", "fib_tasks_per_s_off"),
    ("scripts", "deref_us_off"),
    ("scripts", "hello_first_s"),
    ("language", "iteration_us"),
    ("mpb", "bare_trip_us"),
    ("mpb", "trip_ratio"),
    ("mpb", "both_ways_gb_per_s"),
    ("mpb", "memcpy_gb_per_s"),
    ("mpb", "trip_8_us"),
    ("mpb", "one_way_8_gb_per_s"),
    ("ring", "hop_us_socket"),
    *(("transports", f"agrees_{name}") for name in ("idle", "busy", "link", "copy", "http")),
    ("ring", "program_hop_us_socket"),
    ("ring", "hop_ratio_ring"),
    ("ring", "program_hop_ratio_ring"),
    ("ring", "rate_ratio_ring"),
    ("stores", "in_place_gb_per_s"),
    ("stores", "memset_gb_per_s"),
    ("stores", "fresh_gb_per_s"),
    ("stores", "down_gb_per_s"),
    ("stores", "sendfile_gb_per_s"),
    ("shmd_messages", "socket_us"),
    ("shmd_messages", "messages_us"),
    ("shmdc", "open_us"),
    ("shmdc", "read_us"),
    ("shmdc", "load_us"),
    ("shmdc", "request_us"),
    ("disk_jobs", "alone_mb_per_s"),
    ("disk_jobs", "two_to_alone"),
    ("disk_jobs", "adaptive_to_alone"),
    ("disk_jobs", "adaptive_48_to_alone"),
    ("combinations", "network_s"),
    ("combinations", "full_to_network"),
    ("large_loads", "modelled_alone_mb_per_s"),
    ("large_loads", "modelled_off_mb_per_s"),
    ("large_loads", "modelled_1_mb_per_s"),
    ("large_loads", "modelled_2_mb_per_s"),
    ("large_loads", "real_1_to_off"),
    ("io_bound", "plain_s"),
    ("io_bound", "with_io_s"),
    ("io_bound", "alternating_to_whole"),
    ("shmfs", "shmfs_1_1_create_per_s"),
    ("shmfs", "shmfs_2_1_create_per_s"),
    ("shmfs", "shmfs_2_64_create_per_s"),
    ("shmfs", "shmfs_1_1_lookup_per_s"),
    ("shmfs", "tmpfs_1_create_per_s"),
    ("shmfs", "tmpfs_1_lookup_per_s"),
    ("shmfs", "memcpy_gb_per_s"),
    ("locks", "create_fine_to_coarse_1"),
    ("locks", "create_fine_to_coarse_2"),
    ("locks", "unlink_fine_to_coarse_2"),
    ("locks", "coarse_create_2_to_1"),
    ("locks", "fine_create_2_to_1"),
    ("locks", "coarse_create_2_per_s"),
    ("locks", "engine_share"),
    ("python", "no_ops_per_s"),
    ("python", "pool_no_ops_per_s"),
    ("python", "pool_cpu_us"),
    ("python", "pool_map_per_s"),
    ("python", "joblib_map_per_s"),
    ("python", "pool_hop_us"),
    ("python", "pool_fan_in_s"),
    ("python", "pool_kibibytes_per_s"),
    ("python", "kibibytes_to_pool"),
    ("python", "fan_in_to_pool"),
    ("python", "hops_to_pool"),
    ("python", "dask_hop_us"),
    ("python", "dask_fan_in_s"),
    ("python", "dask_kibibytes_per_s"),
    ("python", "dask_array_s"),
    ("python", "ray_hop_us"),
    ("python", "ray_fan_in_s"),
    ("python", "ray_kibibytes_per_s"),
    ("python", "ray_array_s"),
    ("python", "array_s"),
    ("python", "cold_array_s"),
    ("python", "small_pages_array_to_floor"),
    ("python", "small_pages_array_s"),
    ("python", "floor_s"),
    ("python", "one_by_one_array_s"),
    ("python", "one_by_one_floor_s"),
    ("python", "first_result_s"),
    ("python", "large_to_inline"),
    ("arrow", "pyarrow_allocation_us"),
    ("arrow", "lent_memory_us"),
    ("arrow", "first_table_ms"),
    ("arrow", "parquet_s"),
    ("arrow_copies", "mutants_s"),
    ("state", "writes_per_s"),
    ("state", "atomic_scan_s"),
    ("ycsb", "redis_everysec_a_per_s"),
    ("ycsb", "cielkv_interval_a_per_s"),
    ("ycsb", "redis_everysec_f_per_s"),
    ("ycsb", "cielkv_interval_f_per_s"),
    ("ycsb", "etcd_off_a_per_s"),
    ("state_clients", "lmdb_reads_16_per_s"),
    ("state_clients", "cielkv_reads_16_per_s"),
    ("state_clients", "redis_reads_16_per_s"),
    ("state_clients", "etcd_reads_16_per_s"),
    ("state_clients", "lmdb_updates_16_per_s"),
    ("state_clients", "cielkv_updates_16_per_s"),
    ("state_clients", "redis_updates_16_per_s"),
    ("state_clients", "etcd_updates_16_per_s"),
    ("heap", "sort_plain_s"),
    ("heap", "sort_heap_redis_ratio"),
    ("heap", "sort_full_lmdb_ratio"),
    ("heap", "heap_full-O2_memory_us"),
    ("heap", "allocator_glibc_B_10_us"),
    ("heap", "allocator_first-fit_B_10_us"),
    ("heap", "allocator_bump_B_10_us"),
    ("master", "master_us"),
    ("master", "saturates_at_tasks_per_s"),
    ("master", "machine_us_1"),
    ("master", "machine_us_100"),
    ("master", "two_by_cpu"),
    ("master", "two_with_locks_by_clock"),
)
ON_REQUEST = frozenset(
    ("heap", "large_loads", "ycsb", "state_clients")
)  # benchmarks that take minutes
PROGRAM = """
import dataclasses, json, importlib, sys
result = importlib.import_module(sys.argv[1]).measure()
print(json.dumps(dataclasses.asdict(result) if dataclasses.is_dataclass(result) else result))
"""


def module_of(benchmark: str) -> str:
    """Return the name by which a benchmark is imported; raises SystemExit if there is none."""
    for path in HERE.glob(f"*/{benchmark}.py"):
        if path.parent.name != "chaos":
            return f"benchmarks.{path.parent.name}.{benchmark}"
    raise SystemExit(f"there is no benchmark {benchmark!r}")


def run(benchmark: str) -> dict[str, float] | None:
    """Run one benchmark in a new interpreter, which prints the reason if it fails.

    Return None after a failure.
    """
    print(f"measuring: {benchmark}", file=sys.stderr)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, module_of(benchmark)], stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        return None
    values: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return values


def table(results: dict[str, dict[str, float]], show: Callable[[str], object]) -> None:
    """Print the results as a Markdown table, misses first, and below it parts of some results."""
    show("| figure | goal | here | |")
    show("|---|---|---|---|")
    rows = []
    for (parent, text), figure in zip(keys(each.text for each in FIGURES), FIGURES, strict=True):
        if figure.key in results.get(figure.benchmark, {}):  # a peer may not be installed
            value = results[figure.benchmark][figure.key]
            name = text if text == parent else f"{parent.partition(':')[0]}: {text.strip('- ')}"
            rows.append((figure.is_met(value), [name, *figure.cells(value)]))
    for _, cells in sorted(rows, key=lambda row: row[0]):
        show(f"| {' | '.join(cells)} |")
    parts = [
        f"{key} {results[name][key]:,.4g}" for name, key in PARTS if key in results.get(name, {})
    ]
    show(f"\nParts: {', '.join(parts)}.")
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    show(f"On {cores} cores, Python {sys.version.split()[0]}, load before {load:.1f}.")


def main() -> None:
    """Run the benchmarks that ONLY names, or all."""
    known = {figure.benchmark for figure in FIGURES} | {name for name, _ in PARTS}
    wanted = os.environ.get("ONLY", "").split() or sorted(known - ON_REQUEST)
    found = {name: run(name) for name in wanted}
    results = {name: values for name, values in found.items() if values is not None}
    table(results, print)
    if column := os.environ.get("RECORD", ""):
        order = keys(figure.text for figure in FIGURES)
        rows = {
            key: figure.cells(results[figure.benchmark][figure.key])
            for key, figure in zip(order, FIGURES, strict=True)
            if figure.key in results.get(figure.benchmark, {})
        }
        record(order, rows, column)
    if missing := [name for name, values in found.items() if values is None]:
        print(f"Not measured: {', '.join(missing)}.")


if __name__ == "__main__":
    main()
