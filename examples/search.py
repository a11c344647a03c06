"""Count a word in the Python standard library: many ordinary `grep`s at once, joined by one `awk`.

    python examples/search.py [WORD]

Starts a cluster of two workers of its own unless one is up (`ciel up`). The files are read where
they lie, so that all workers must be on this computer.
"""

import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import ciel

TASKS = 40


def sources() -> list[str]:
    """Return the paths of the standard library's own modules."""
    root = Path(sysconfig.get_paths()["stdlib"])
    return sorted(str(path) for path in root.rglob("*.py") if "site-packages" not in path.parts)


def count_here(word: str, paths: list[str]) -> int:
    """Count with plain grep, for comparison; as many paths at once as a command line takes."""
    found = 0
    for start in range(0, len(paths), 1000):
        command = ["grep", "-ow", "-e", word, "--", *paths[start : start + 1000]]
        found += subprocess.run(command, capture_output=True, check=False).stdout.count(b"\n")
    return found


def count_on_cluster(client: ciel.Client, word: str, paths: list[str]) -> int:
    """Count with one task for each chunk of the files, and a last one that adds up."""
    with client.job(f"search for {word}") as job:
        # grep's own exit status says whether it found anything, the pipe's is that of wc.
        script = 'word=$1; shift; grep -ow -e "$word" -- "$@" | wc -l'
        counts = [
            job.run(["sh", "-c", script, "sh", word, *paths[number::TASKS]])
            for number in range(min(TASKS, len(paths)))
        ]
        total = job.run(["awk", "{sum += $1} END {print sum}"], inputs=counts)
        job.want([total])
        for done, _ in enumerate(job.results(counts), start=1):
            if sys.stdout.isatty() or done == len(counts):
                end = "\n" if done == len(counts) else "\r"
                print(f"{done} of {len(counts)} greps done", end=end, flush=True)
        return int(job.read(total))


def main() -> int:
    """Count on the cluster and by plain grep; return the exit status."""
    word = sys.argv[1] if len(sys.argv) > 1 else "yield"
    paths = sources()
    print(f"counting {word!r} in {len(paths)} files of the Python standard library")
    with ciel.Client(name="search", cluster_options={"workers": 2}) as client:
        start_s = time.monotonic()
        found = count_on_cluster(client, word, paths)
        print(f"{found} found by {TASKS} tasks in {time.monotonic() - start_s:.2f} s")
        logs = client.cluster.directory if client.cluster else None
    expected = count_here(word, paths)
    print(f"{expected} found by plain grep")
    if logs:
        print(f"logs: {logs}")
    if found != expected:
        print("the two differ", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
