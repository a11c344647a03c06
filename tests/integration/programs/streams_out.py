"""Runs a program that writes more than fits into a small memory while a second one reads it; prints
why the first one failed.
"""

import sys

from ciel import Client
from ciel.client import LocalCluster
from ciel.client.errors import TaskFailedError

WRITE = "head -c 40M /dev/zero 2>/dev/null; exit 0"

with (
    LocalCluster(workers=1, slots=2, store=sys.argv[1]) as cluster, Client(cluster) as client,
    client.job("streams out") as job,
):  # fmt: skip
    arguments = {"args": {"command_line": ["sh", "-c", WRITE], "stream_output": True}}
    (made,) = job.add("stdinout", arguments)
    read = job.run(["wc", "-c"], inputs=[made])
    for ref in (made, read):
        try:
            print(len(job.read(ref, timeout_s=20)))
        except TaskFailedError as error:
            print(error.failure.reason)
