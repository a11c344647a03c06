"""Limits the volumes of a cluster, and of each of its users."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from ciel.core.ids import ID_MAX_LENGTH
from ciel.memory.page_server import EXTENT_BYTES
from ciel.memory.volumes import Volume, VolumeError

VOLUMES_MAX: Final = 1_000
"""The default for `--memory-volumes-max`: a program that creates more has probably a fault."""

WORKER: Final = "worker "
"""The owner of a worker's volumes begins like this, then comes its id."""
_MIB: Final = EXTENT_BYTES >> 20


class Limits(NamedTuple):
    """The limits of volumes; 0 means no limit.

    `bytes_max_per_user`: of all volumes that one user has created, each copy counted. Clients say
    who their user is, so these limits stop mistakes, and no attack.
    """

    volumes_max: int
    bytes_max_per_user: int

    def check(
        self, volumes: Iterable[Volume], user: str, extents: int, replicas: int
    ) -> None:  # fmt: skip
        """Raise VolumeError if a user may not create another volume."""
        present = list(volumes)
        if self.volumes_max and len(present) >= self.volumes_max:
            raise VolumeError(
                f"there are {len(present):,} volumes, and a cluster may not have more "
                "(--memory-volumes-max of the master): remove one (ciel memory remove), or start "
                "the master with a higher limit"
            )
        own = sum(len(v.extents) * v.replicas for v in present if v.owner == user)
        wanted, most = extents * replicas, self.bytes_max_per_user // EXTENT_BYTES
        if self.bytes_max_per_user and own + wanted > most:
            raise VolumeError(
                f"the volume needs {wanted * _MIB:,} MiB with its copies; other volumes of user "
                f"{user!r} have {own * _MIB:,} MiB, and a user may have {most * _MIB:,} MiB "
                "(--memory-max-per-user of the master): ask for less, remove a volume (ciel memory "
                "remove), or start the master with a higher limit"
            )


NO_LIMITS: Final = Limits(0, 0)


def check_user(name: Any) -> str:
    """Return the name of a user, as a client says it; raises VolumeError."""
    if not isinstance(name, str) or not name.isprintable() or len(name) > ID_MAX_LENGTH:
        raise VolumeError(f"the user must be at most {ID_MAX_LENGTH} printable characters")
    if name.startswith(WORKER):
        raise VolumeError(f"the name of a user must not begin with {WORKER!r}")
    return name
