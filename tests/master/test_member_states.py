"""Tests how the master passes the states of the members of groups on between hosts."""

from __future__ import annotations

import pytest

from ciel.core.events import StateChanged, StateSet
from ciel.core.ids import JobId
from ciel.core.jobs import JobState
from ciel.core.states import FAILED, GROUPS_MAX, JOINED, MEMBERS_MAX
from ciel.core.tasks import TaskSpec
from ciel.testing.builders import JOB, a_task, a_worker
from ciel_tests.scenes.master import Cluster

A, B = a_task("a"), a_task("b")


class Scene(Cluster):
    """Two workers on the host `here`, one on `there`; the tasks A and B run."""

    def __init__(self) -> None:
        hosts = {"w1": "here", "w2": "here", "w3": "there"}
        super().__init__(*[a_worker(name, host=host) for name, host in hosts.items()])
        self.job(A, B, want=["a", "b"], open=True, detached=True)
        self.end_turn()
        self.machine.outbox.clear()

    def sets(
        self, worker: str, member: int, word: int, task: TaskSpec = A, *, group: str = "g",
        size: int = 2, attempt: int = 1,
    ) -> None:  # fmt: skip
        message = StateSet(JobId(JOB), group, size, member, task.id, attempt, JOINED | word)
        self.worker_says(worker, message)

    def told(self) -> list[tuple[str, int, int]]:
        """Return the receivers of states, each with the member and its word."""
        outbox = self.machine.take_outbox()
        return [(to, m.member, m.word) for to, m in outbox if isinstance(m, StateChanged)]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_host_does_not_hear_of_its_own_members(scene: Scene) -> None:
    scene.sets("w1", 0, 0)
    scene.sets("w2", 1, 1, B)
    assert scene.told() == []


def test_one_worker_of_each_other_host_hears_of_a_change(scene: Scene) -> None:
    scene.sets("w1", 0, 0)
    scene.sets("w2", 0, 0)
    scene.sets("w3", 1, 0, B)
    assert scene.told() == [("w3", 0, JOINED), ("w1", 1, JOINED)]
    scene.sets("w3", 1, 5, B)
    scene.sets("w1", 0, 3)
    assert scene.told() == [("w1", 1, JOINED | 5), ("w3", 0, JOINED | 3)]


def test_a_host_that_joins_later_hears_of_all_members(scene: Scene) -> None:
    scene.sets("w1", 0, 7)
    scene.sets("w3", 1, 0, B)
    assert ("w3", 0, JOINED | 7) in scene.told()


def test_another_worker_of_a_host_takes_over(scene: Scene) -> None:
    scene.sets("w1", 0, 0)
    scene.sets("w2", 0, 0, attempt=2)
    scene.sets("w3", 1, 4, B)
    scene.told()
    scene.loses("w1")
    assert ("w2", 1, JOINED | 4) in scene.told()
    scene.sets("w3", 1, 5, B)
    assert scene.told() == [("w2", 1, JOINED | 5)]


def test_a_member_that_runs_again_elsewhere_starts_with_zeros(scene: Scene) -> None:
    scene.sets("w1", 0, 7)
    scene.sets("w3", 1, 0, B)
    scene.told()
    scene.sets("w3", 0, 0, attempt=2)
    assert scene.told() == [("w1", 0, JOINED)]
    scene.sets("w1", 0, 1)  # the replaced attempt
    assert scene.told() == []


def test_a_member_whose_task_has_failed_is_reported_to_all_hosts(scene: Scene) -> None:
    scene.sets("w1", 0, 0)
    scene.sets("w3", 1, 0, B)
    scene.told()
    scene.failed("w1", A)
    assert sorted(scene.told()) == [("w1", 0, JOINED | FAILED), ("w3", 0, JOINED | FAILED)]
    assert scene.told() == []


def test_a_group_has_one_size_and_a_member_is_one_task(scene: Scene) -> None:
    scene.sets("w1", 0, 0)
    scene.sets("w3", 1, 0, B, size=3)
    scene.sets("w3", 0, 0, B)
    assert scene.told() == [("w3", 1, FAILED), ("w3", 0, FAILED)]


@pytest.mark.parametrize("member, size", [(2, 2), (0, 0), (0, MEMBERS_MAX + 1)])
def test_a_group_has_a_number_of_members(scene: Scene, member: int, size: int) -> None:
    scene.sets("w1", member, 0, size=size)
    assert scene.told() == [("w1", member, FAILED)]
    assert not scene.machine.member_states


def test_a_job_has_a_number_of_groups(scene: Scene) -> None:
    for number in range(GROUPS_MAX):
        scene.sets("w1", 0, 0, group=f"g{number}")
    assert scene.told() == []
    scene.sets("w1", 0, 0, group="one more")
    assert scene.told() == [("w1", 0, FAILED)]


def test_groups_end_with_their_job(scene: Scene) -> None:
    scene.sets("w1", 0, 0)
    assert scene.machine.member_states
    scene.machine.cancel_job(scene.job_of(), "no more", scene.now_s)
    scene.end_turn()
    scene.failed("w1", A, reason="CANCELLED")
    scene.failed("w2", B, reason="CANCELLED")
    assert scene.job_of().state is JobState.CANCELLED
    scene.end_turn()
    assert not scene.machine.member_states
