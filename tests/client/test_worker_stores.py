"""Tests the stores of a local cluster's workers, with kinds of stores of another package."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from ciel import plugins
from ciel.client.cluster.worker_stores import WorkerStores
from ciel.client.errors import ClusterOptionError
from ciel.storage.files import open_disk
from ciel.storage.specs import Left, OwnInstances, StoreKind, WorkerOptions

pytestmark = pytest.mark.requirement("CIB-54")


class Kind(StoreKind):
    """A kind whose stores leave these directories, for the name of each worker."""

    def __init__(self, leave: Callable[[str], Left]) -> None:
        super().__init__(open_disk)
        self._leave = leave

    def of_workers(self, options: Mapping[str, str], workers: int) -> WorkerOptions:
        return Leaving(options, self._leave)


class Leaving(WorkerOptions):
    def __init__(self, given: Mapping[str, str], leave: Callable[[str], Left]) -> None:
        super().__init__(given)
        self._leave = leave

    def left(self, number: int, names: Sequence[str]) -> Iterator[Left]:
        yield self._leave(names[number])


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Return a function that makes an object the only installed store."""
    return lambda kind: monkeypatch.setattr(plugins, "load", lambda group, name: kind)


def test_a_function_that_opens_a_store_is_a_kind(install: Callable[[object], None]) -> None:
    install(open_disk)
    stores = WorkerStores("plain:capacity=1MiB,sync=yes", 2)
    assert stores.add() + stores.add() == []
    assert [stores.spec_of(number) for number in (0, 1)] == ["plain:capacity=1MiB,sync=yes"] * 2
    assert stores.refusal() == ""


def test_a_store_leaves_directories_that_only_its_cluster_names(
    install: Callable[[object], None],
) -> None:
    install(Kind(lambda name: Left(f"/place/ciel-x-{name}")))
    stores = WorkerStores("any", 1)
    assert stores.add() == [Left(f"/place/ciel-x-{stores.names[0]}")]


@pytest.mark.parametrize(
    "leave, said",
    [
        (lambda name: Left("/srv/data"), "does not start with ciel-"),
        (lambda name: Left("/srv/data", is_leased=True), "does not start with ciel-"),
        (lambda name: Left(f"/place/ciel-{name}/.."), "is not an absolute path"),
        (lambda name: Left(f"/place/../ciel-{name}"), "is not an absolute path"),
        (lambda name: Left(f"place/ciel-{name}"), "is not an absolute path"),
        (lambda name: Left(f"/place/\n/ciel-{name}"), "is not an absolute path"),
        (lambda name: Left("/place/ciel-x"), "does not contain the name of the worker"),
    ],
)
def test_a_store_cannot_have_other_directories_removed(
    install: Callable[[object], None], leave: Callable[[str], Left], said: str
) -> None:
    install(Kind(leave))
    with pytest.raises(ClusterOptionError, match=f"the store any is faulty: .*{said}"):
        WorkerStores("any", 1).add()


def test_instances_of_workers_have_the_given_name_and_a_number() -> None:
    options = OwnInstances(
        {"instance": "a", "size": "3"}, lambda name: [Path("/p", name)], {"size": "1", "more": "2"}
    )
    assert dict(options.of(0, ["x", "y"])) == {"instance": "a", "size": "3", "more": "2"}
    assert options.of(1, ["x", "y"])["instance"] == "a-2"
    assert [*options.left(1, ["x", "y"])] == [Left("/p/a-2", is_leased=True)]


def test_instances_without_a_given_name_have_the_names_of_their_workers() -> None:
    options = OwnInstances({}, lambda name: [Path("/p", name)], {})
    assert [dict(options.of(number, ["x", "y"])) for number in (0, 1)] == [
        {"instance": "x"}, {"instance": "y"},
    ]  # fmt: skip
    assert [*options.left(1, ["x", "y"])] == [Left("/p/y")]
