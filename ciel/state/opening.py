"""Opens the rows of a name in a key-value base."""

from __future__ import annotations

from ciel.access.keys import Key
from ciel.state.finding import open_base
from ciel.state.keyvalues import KeyValues
from ciel.state.names import Names
from ciel.state.values import Values


def open_kv(
    url: str, name: str = "", key: Key | None = None, cluster_id: str = "", job_id: str = ""
) -> KeyValues:
    """Open the rows of a name in the base at a URL, all rows without a name; raises KvError.

    `key`: the key of a cluster, without which values that JSON cannot represent are refused.
    `job_id`: the rows belong to this job of the cluster, and are removed with it.
    """
    return KeyValues(open_base(url, key), Names(name, cluster_id, job_id), Values(key))
