"""Which host this is: boot, network namespace and mount namespace together."""

from __future__ import annotations

import os
from hashlib import blake2b


def host_identity() -> str:
    """Return a text that two processes share only if they share kernel, network and mounts."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "mnt")]
    return blake2b("\n".join([boot, *spaces]).encode(), digest_size=16).hexdigest()
