"""Finds the files and functions in which a word is most frequent, in two stages of tasks.

    python examples/search.py [WORD [DIRECTORY]]

Many greps count a word in the sources of the Python standard library, and one `awk` adds the
counts. A Python task, `search_again.py`, reads the same counts while the job runs: it spawns a
second search of the files with the highest counts, and delegates its output to the task that joins
their results.

Starts its own cluster of two workers, unless a cluster runs (`ciel up`). Tasks read the files in
place, so all workers must see them under the same names.
"""

import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import ciel

TASKS = 40
AGAIN = Path(__file__).with_name("search_again.py")
# grep exits with 1 if it finds nothing, which is not a failure here.
COUNT = 'word=$1; shift; grep -cw -e "$word" -- /dev/null "$@" || test $? = 1'


def sources(directory: str = "") -> list[str]:
    """Return the paths of a directory's Python files; by default the standard library's."""
    root = Path(directory or sysconfig.get_paths()["stdlib"]).absolute()
    return sorted(str(path) for path in root.rglob("*.py") if "site-packages" not in path.parts)


def count_here(word: str, paths: list[str]) -> int:
    """Count with plain grep, for comparison, with 1,000 paths per command."""
    found = 0
    for start in range(0, len(paths), 1000):
        command = ["grep", "-w", "-e", word, "--", "/dev/null", *paths[start : start + 1000]]
        found += subprocess.run(command, capture_output=True, check=False).stdout.count(b"\n")
    return found


def search_on_cluster(client: ciel.Client, word: str, paths: list[str]) -> tuple[int, str]:
    """Return the number of lines with the word, and the result of the second stage."""
    with client.job(f"search for {word}") as job:
        counts = [
            job.run(["sh", "-c", COUNT, "sh", word, *paths[number::TASKS]], name=f"count {number}")
            for number in range(min(TASKS, len(paths)))
        ]
        total = job.run(["awk", "-F:", "{n += $NF} END {print n}"], inputs=counts, name="total")
        command = [sys.executable, str(AGAIN)]
        arguments = {"command": command, "proc_pargs": [word, counts], "proc_kwargs": {}}
        (again,) = job.add("proc", arguments, name="choose")
        job.want([total, again])
        for done, _ in enumerate(job.results(counts), start=1):
            if sys.stdout.isatty() or done == len(counts):
                end = "\n" if done == len(counts) else "\r"
                print(f"{done} of {len(counts)} greps done", end=end, flush=True)
        return int(job.read(total)), job.read(again).decode(errors="replace")


def main() -> int:
    """Search on the cluster, and count by plain grep; return the exit status."""
    word = sys.argv[1] if len(sys.argv) > 1 else "yield"
    paths = sources(*sys.argv[2:3])
    print(f"searching for {word!r} in {len(paths)} files")
    with ciel.Client(name="search", cluster_options={"workers": 2}) as client:
        start_s = time.monotonic()
        found, places = search_on_cluster(client, word, paths)
        elapsed_s = time.monotonic() - start_s
        logs = client.cluster.directory if client.cluster else None
    print(f"the functions with most such lines, in the files with most of them:\n{places}", end="")
    print(f"{found} lines found by two stages of tasks in {elapsed_s:.2f} s")
    expected = count_here(word, paths)
    print(f"{expected} found by plain grep")
    if logs:
        print(f"logs: {logs}")
    if found != expected:
        print("the two numbers of lines differ", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
