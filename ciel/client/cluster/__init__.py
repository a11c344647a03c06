"""A cluster on this host that ends with this process: its daemons, supervisor and files."""

from ciel.client.cluster.local import LocalCluster

__all__ = ["LocalCluster"]
