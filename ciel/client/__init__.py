"""The Python API, with blocking sockets and threads, without Twisted.

A `Client` connects to a master, or starts a cluster. A `Job` takes tasks, and returns their
results. A `LocalCluster` is a master and workers that end with this process; its module is loaded
when it is first used.
"""

from typing import TYPE_CHECKING, Any

from ciel.client.client import Client
from ciel.client.errors import ClientError
from ciel.client.jobs.job import Job

if TYPE_CHECKING:
    from ciel.client.cluster.local import LocalCluster

__all__ = ["Client", "ClientError", "Job", "LocalCluster"]


def __getattr__(name: str) -> Any:
    if name == "LocalCluster":
        from ciel.client.cluster.local import LocalCluster

        return LocalCluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
