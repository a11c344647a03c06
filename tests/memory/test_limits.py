"""Limits of volumes, of a cluster and of each user."""

from __future__ import annotations

import pytest

from ciel.master.memory_limits import NO_LIMITS, Limits, check_user
from ciel.memory.volumes import Volume, VolumeError, Volumes

MIB = 1 << 20


def volumes(*owners: str) -> list[Volume]:
    """Return volumes of 2 MiB with two copies."""
    found = Volumes()
    for server in ("a", "b"):
        found.join(server, f"{server}:1", 100, {}, 0.0)
    return [found.create(f"v{n}", 2, 2, 0.0, owner) for n, owner in enumerate(owners)]


def test_a_cluster_has_so_many_volumes() -> None:
    limits = Limits(2, 0)
    limits.check(volumes("ann"), "ann", 1, 1)
    with pytest.raises(VolumeError, match=r"there are 2 volumes, .*--memory-volumes-max"):
        limits.check(volumes("ann", "bob"), "ann", 1, 1)


def test_the_volumes_of_a_user_have_so_many_bytes_with_their_copies() -> None:
    limits = Limits(0, 8 * MIB)
    present = volumes("ann", "bob")
    limits.check(present, "ann", 2, 2)
    limits.check(present, "ann", 4, 1)
    with pytest.raises(
        VolumeError,
        match="needs 6 MiB with its copies; other volumes of user 'ann' have 4 MiB, and a user may "
        "have 8 MiB",
    ):
        limits.check(present, "ann", 3, 2)


def test_without_limits_everything_is_permitted() -> None:
    NO_LIMITS.check(volumes("ann"), "ann", 1 << 40, 4)


@pytest.mark.parametrize("name", [None, 1, "a\nb", "x" * 1000])
def test_a_user_has_a_short_printable_name(name: object) -> None:
    with pytest.raises(VolumeError, match="printable characters"):
        check_user(name)
    assert check_user("ann") == "ann"
