"""Opens the key-value base of a cluster: asks the master where it is (KVB-2)."""

from __future__ import annotations

from ciel.access.keys import Role
from ciel.client.jobs.client import JobClient
from ciel.state.errors import NoBaseError
from ciel.state.keyvalues import KeyValues
from ciel.state.opening import open_kv as open_at


def base_url(client: JobClient) -> str:
    """Return the URL of the base; raises NoBaseError."""
    url = str(client.ask("kv")["url"])
    if not url:
        raise NoBaseError("its cluster has none: ciel up --kv, or ciel-master --kv URL")
    return url


def open_kv(client: JobClient, name: str, job_id: str = "") -> KeyValues:
    """Open the rows of a name, of all names without one; raises KvError."""
    where = client.location
    key = where.key.derive(Role.KV) or where.key
    return open_at(base_url(client), name, key, where.cluster_id, job_id)
