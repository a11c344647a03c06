"""Tells which host this is, to programs and to people, and names workers after it."""

from __future__ import annotations

import os
import re
import secrets
import socket
from hashlib import blake2b

_LABEL_MAX_LENGTH = 40


def host_identity() -> str:
    """Return a text that two processes share only if they share kernel, network and mounts."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "mnt")]
    return blake2b("\n".join([boot, *spaces]).encode(), digest_size=16).hexdigest()


def host_name() -> str:
    """Return the name that people know this host by, as `hostname` prints it."""
    return socket.gethostname()


def new_worker_id() -> str:
    """Return an id for a worker that starts now: the first label of its host's name, then random
    digits, so that people see everywhere where something ran.
    """
    label = re.sub(r"[^A-Za-z0-9_-]+", "_", host_name().partition(".")[0]).lstrip("-")
    return f"{label[:_LABEL_MAX_LENGTH] or 'host'}-{secrets.token_hex(5)}"
