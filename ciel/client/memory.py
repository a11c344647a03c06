"""Opens volumes of remote memory: asks the master where they are (KVB-1)."""

from __future__ import annotations

import os
import pwd
from typing import Any

from ciel.memory.master import Master, VolumeOwner
from ciel.memory.space import TIMEOUT_S, Space, SpaceError


def user_name() -> str:
    """Return the name of the user of this process; its number if it has none."""
    user = os.geteuid()
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def find_volume(master: Master, name: str) -> dict[str, Any]:
    """Return the master's description of a volume; raises SpaceError."""
    volumes: list[dict[str, Any]] = master.ask("memory")["volumes"]
    found = next((volume for volume in volumes if volume["name"] == name), None)
    if found is None:
        raise SpaceError(f"there is no volume {name!r}; `ciel memory create` makes one")
    return found


def open_space(
    master: Master, name: str, timeout_s: float = TIMEOUT_S, cache_bytes: int = 0
) -> Space:
    """Open the address space of a volume; raises SpaceError."""
    volume = find_volume(master, name)
    owner = VolumeOwner(master, name)
    number, extents, compress = volume["number"], volume["extents"], volume["compress"]
    return Space(owner, number, extents, volume["replicas"], timeout_s, compress, cache_bytes)
