"""Fills three quarters of a small memory. Then it runs the named program, which writes half of the
memory's size, so that some writes fail; prints the length of the output, or the reason of failure.
"""

import sys

from ciel import Client
from ciel.client import LocalCluster
from ciel.client.errors import TaskFailedError
from ciel.core.tasks import Needs

MIB = 1 << 20
store, program, says_so, spawns, retries = sys.argv[1:]

with (
    LocalCluster(workers=1, slots=1, store=store) as cluster, Client(cluster) as client,
    client.job("fills", keep=True) as job,
):  # fmt: skip
    job.read(job.run(["sh", "-c", f"head -c {12 * MIB} /dev/zero"]))
    pargs = [8 * MIB, says_so == "yes", spawns == "yes"]
    arguments = {"command": program, "proc_pargs": pargs, "proc_kwargs": {}}
    needs = Needs(retries=int(retries), retry_on=("NO_SPACE",), retry_delay_s=0.3)
    (made,) = job.add("proc", arguments, needs=needs)
    try:
        content = job.read(made)
        print(len(content), content == b"a" * len(content))
    except TaskFailedError as error:
        print(error.failure.reason, error)
