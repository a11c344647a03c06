"""Tests how the master places tasks while some workers do not reach each other."""

from __future__ import annotations

from ciel.core.events import InputsLost, NotCopied, ObjectsStored, WorkersUnreached
from ciel.core.ids import ObjectId
from ciel.core.refs import Failure
from ciel.core.tasks import TaskSpec, TaskState
from ciel.master.state.placement.reach import (
    APART_MAX_S,
    APART_RETRY_S,
    UNREACHED_FIRST_S,
    UNREACHED_MAX_S,
)
from ciel.master.state.workers import WorkerFacts
from ciel.testing.builders import a_task, a_worker, place_of, stored
from ciel_tests.scenes.master import Cluster

CHECK_EVERY_S = 0.5
A, B = a_task("a"), a_task("b", ordinal=1)
READER = a_task("c", inputs=["b", "a"], ordinal=2)


def apart(*others: WorkerFacts) -> Cluster:
    """Two workers, each with an input of a reader, which runs on the second one."""
    cluster = Cluster(a_worker("w1"), a_worker("w2"), *others)
    cluster.job(A, B, READER, want=["c"])
    cluster.done("w1", A, stored("a", place_of("w1"), size_bytes=5000))
    cluster.done("w2", B, stored("b", place_of("w2"), size_bytes=50_000))
    cluster.said("w1: run a", "w2: run b", "w2: run c")
    return cluster


def misses(
    cluster: Cluster, worker: str, object_id: str, holder: str, spec: TaskSpec = READER,
    attempt: int = 1,
) -> None:  # fmt: skip
    """An attempt at a task ends: another worker, which has an input, has not answered."""
    place = place_of(holder)
    lost = InputsLost(spec.id, attempt, ((ObjectId(object_id), place),), "no answer")
    cluster.worker_says(worker, WorkersUnreached((place,)), lost)


def neither_reaches(cluster: Cluster) -> None:
    """The reader is tried on both workers."""
    misses(cluster, "w2", "a", "w1")
    cluster.said("w1: run c again (2)")
    misses(cluster, "w1", "b", "w2", attempt=2)


def test_a_reader_moves_to_the_holder_that_it_did_not_reach() -> None:
    cluster = apart()
    misses(cluster, "w2", "a", "w1")
    cluster.said("w1: run c again (2)")
    assert cluster.state(A) is TaskState.DONE
    assert not any(worker.suspicion for worker in cluster.machine.workers.values())


def test_later_tasks_are_placed_on_a_worker_that_reaches_their_inputs() -> None:
    cluster = apart()
    misses(cluster, "w2", "a", "w1")
    cluster.done("w1", READER, attempt=2)
    cluster.lines()
    later = a_task("later", inputs=["up", "big"], job="job2")
    known = (stored("up", place_of("w1")), stored("big", place_of("w2"), size_bytes=10**9))
    cluster.job(later, want=["later"], job="job2", known=known)
    cluster.said("w1: run later")


def test_a_worker_tries_again_after_a_while_and_then_less_often() -> None:
    cluster = apart()
    unreached = cluster.machine.context.table.unreached
    lengths = []
    for _ in range(7):
        cluster.worker_says("w2", WorkersUnreached((place_of("w1"),)))
        ((until_s,),) = [netlocs.values() for netlocs in unreached.values()]
        lengths.append(until_s - cluster.now_s)
        cluster.passes(lengths[-1] - 1.0)
        assert unreached
        cluster.passes(1.0)
        assert not unreached
    assert lengths[:3] == [UNREACHED_FIRST_S, 2 * UNREACHED_FIRST_S, 4 * UNREACHED_FIRST_S]
    assert lengths[-1] == UNREACHED_MAX_S
    cluster.passes(2 * UNREACHED_MAX_S)
    cluster.worker_says("w2", WorkersUnreached((place_of("w1"),)))
    ((until_s,),) = [netlocs.values() for netlocs in unreached.values()]
    assert until_s - cluster.now_s == UNREACHED_FIRST_S


def test_a_holder_that_does_not_answer_the_master_either_is_only_suspected() -> None:
    cluster = apart()
    cluster.machine.worker_cut_off("w1", "a cable", cluster.now_s)
    misses(cluster, "w2", "a", "w1")
    cluster.said()
    assert not cluster.machine.context.table.unreached
    assert "only silent workers have a" in cluster.machine.graph.tasks[READER.id].reason


def test_what_no_common_worker_reaches_is_recomputed_beside_the_other_input() -> None:
    cluster = apart()
    neither_reaches(cluster)
    cluster.said("w2: drop b", "w1: run b again (2)")
    assert cluster.state(A) is TaskState.DONE
    cluster.done("w1", B, stored("b", place_of("w1"), size_bytes=50_000), attempt=2)
    cluster.said("w1: run c again (3)")
    cluster.done("w1", READER, attempt=3)
    assert cluster.lines()[-1] == "client: completed"
    assert not cluster.machine.retry_states


def test_a_third_worker_copies_what_only_it_reaches() -> None:
    cluster = apart(a_worker("w3", executors=["other"]))
    neither_reaches(cluster)
    cluster.said("w3: copy b")
    cluster.passes(CHECK_EVERY_S)
    cluster.said()
    cluster.worker_says("w3", ObjectsStored((stored("b", place_of("w3"), size_bytes=50_000),)))
    cluster.passes(CHECK_EVERY_S)
    cluster.said("w1: run c again (3)")
    assert cluster.state(B) is TaskState.DONE


def test_a_copy_that_fails_is_ordered_again_or_in_the_other_direction() -> None:
    cluster = apart(a_worker("w3", executors=["other"]))
    neither_reaches(cluster)
    cluster.said("w3: copy b")
    cluster.worker_says("w3", NotCopied(ObjectId("b"), (), "it is full", True))
    cluster.passes(CHECK_EVERY_S)
    cluster.said("w3: copy b")
    place = place_of("w2")
    failed = NotCopied(ObjectId("b"), (), "no answer", False)
    cluster.worker_says("w3", WorkersUnreached((place,)), failed)
    cluster.passes(CHECK_EVERY_S)
    cluster.said("w3: copy a")


def uploads_apart() -> Cluster:
    """The inputs of a reader are uploads: no task can recompute them."""
    cluster = Cluster(a_worker("w1"), a_worker("w2"))
    known = (stored("a", place_of("w1")), stored("b", place_of("w2"), size_bytes=50_000))
    cluster.job(READER, want=["c"], known=known)
    cluster.said("w2: run c")
    neither_reaches(cluster)
    cluster.said()
    return cluster


def test_a_reader_of_uploads_that_are_apart_waits_until_the_network_may_be_whole() -> None:
    cluster = uploads_apart()
    reason = cluster.machine.graph.tasks[READER.id].reason
    assert reason == (
        "no worker can fetch all its inputs: worker w1 cannot reach w2:8001, which has b; "
        "worker w2 cannot reach w1:8001, which has a"
    )
    cluster.passes(APART_RETRY_S - CHECK_EVERY_S)
    cluster.said()
    cluster.passes(2 * CHECK_EVERY_S)
    cluster.said("w2: run c again (3)")


def test_a_reader_of_uploads_that_stay_apart_fails() -> None:
    cluster = uploads_apart()
    for is_over in (False, False, True):  # other tasks find that the network is as before
        cluster.now_s += 0.4 * APART_MAX_S
        cluster.machine.context.now_s = cluster.now_s
        for one, other in (("w1", "w2"), ("w2", "w1")):
            cluster.worker_says(one, WorkersUnreached((place_of(other),)))
        cluster.passes(CHECK_EVERY_S)
        assert (cluster.state(READER) is TaskState.FAILED) is is_over
    failure = cluster.machine.graph.objects.reference(READER.outputs[0])
    assert isinstance(failure, Failure)
    assert failure.reason == "MISSING_INPUT"
    assert "mend the network between the hosts" in str(failure.details)


def test_the_end_of_a_worker_ends_what_is_known_about_it() -> None:
    cluster = apart()
    misses(cluster, "w2", "a", "w1")
    cluster.said("w1: run c again (2)")
    cluster.loses("w1")
    assert not any(cluster.machine.context.table.unreached.values())
    cluster.said("w2: run a again (2)")
