"""Identifies this host for programs and for people, and names workers after it."""

from __future__ import annotations

import os
import re
import secrets
import socket
from hashlib import blake2b

_LABEL_MAX_LENGTH = 40


def host_identity() -> str:
    """Return an id that two processes share only if they share kernel, network and mounts."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "mnt")]
    return blake2b("\n".join([boot, *spaces]).encode(), digest_size=16).hexdigest()


def host_name() -> str:
    """Return the name of this host, as `hostname` prints it."""
    return socket.gethostname()


def new_worker_id() -> str:
    """Return an id for a new worker: the first label of the host's name, and random digits.

    So each worker id shows on which host a task ran.
    """
    label = re.sub(r"[^A-Za-z0-9_-]+", "_", host_name().partition(".")[0]).lstrip("-")
    return f"{label[:_LABEL_MAX_LENGTH] or 'host'}-{secrets.token_hex(5)}"
