"""The Python API: blocking sockets and one thread, no Twisted.

A `Client` finds a master (or starts a cluster of its own), a `Job` takes tasks and hands back their
results, a `LocalCluster` is a master and workers that end with this process; it is loaded when
first named.
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
