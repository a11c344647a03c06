"""Runs a task with a random output on each of two workers, and reads the outputs several times.

`python -m benchmarks.chaos.twice ACCESS NOTES` prints a line when it has read the outputs, waits
for a line of input, reads them again, and prints how many of them had the same content each time.
Each program adds a line to the file NOTES.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from ciel.client.client import Client

SCRIPT: Final = "echo $0 >>{notes}; sleep 1; head -c 70000 /dev/urandom"
TASKS: Final = 2
READERS: Final = 4


def main(access: str, notes: str) -> None:
    """Run the tasks with the cluster of an access file."""
    path = Path(notes).resolve()
    with Client(access=access) as client, client.job("twice", keep=True) as job:
        script = SCRIPT.format(notes=path)
        made = [job.run(["sh", "-c", script, str(number)]) for number in range(TASKS)]
        job.want(made)
        before = [job.read(ref) for ref in made]
        print("read", flush=True)
        sys.stdin.readline()
        same = 0
        for ref, content in zip(made, before, strict=True):
            readers = [job.run(["cat"], inputs=[ref]) for _ in range(READERS)]
            same += {content} == {job.read(reader) for reader in readers}
        print(same, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
