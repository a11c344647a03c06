"""The Python API: blocking sockets and one thread, no Twisted.

A `Client` finds a master (or starts a cluster of its own), a `Job` takes tasks and hands back their
results, a `LocalCluster` is a master and workers that end with this process.
"""

from ciel.client.client import Client
from ciel.client.cluster import LocalCluster
from ciel.client.errors import ClientError
from ciel.client.jobs import Job

__all__ = ["Client", "ClientError", "Job", "LocalCluster"]
