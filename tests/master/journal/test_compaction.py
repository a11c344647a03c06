"""Tests which records of a journal a restored master still needs."""

from __future__ import annotations

from typing import Any

from ciel.core.events import (
    AddTask,
    CancelJob,
    CloseJob,
    ExtentPlaced,
    ExtentsPlaced,
    MemoryServerLeft,
    MemoryServerSeen,
    Message,
    ObjectsStored,
    ReleaseObjects,
    StoreListed,
    SubmitJob,
    TaskReported,
    VolumeCreated,
    VolumeRecord,
    VolumeRemoved,
    WantObjects,
)
from ciel.core.ids import JobId, ObjectId
from ciel.core.jobs import JobState
from ciel.core.refs import Concrete
from ciel.core.tasks import DONE
from ciel.core.volume_table import EXTENTS_PER_RECORD, VolumeTable
from ciel.master.state.compaction import compact
from ciel.master.state.queries import topics
from ciel.master.state.restoring import Restoration
from ciel.testing.builders import JOB, a_job_spec, a_task, a_worker, inline, place_of, stored
from ciel.testing.simulator.restored import differences
from ciel_tests.scenes.master import Cluster, two

UPLOAD = ObjectId("upload:1")


def records_of(cluster: Cluster) -> list[Message]:
    """Compact the journal of a cluster, and check that it restores the same state."""
    machine, now_s = cluster.machine, cluster.now_s
    batch = (now_s, list(machine.journal))
    needed = [record for _, records in compact(lambda: [batch]) for record in records]
    assert list(differences(machine, machine.journal, now_s)) == []
    assert list(differences(machine, needed, now_s)) == []
    again = [r for _, records in compact(lambda: [(now_s, needed)]) for r in records]
    assert list(differences(machine, again, now_s)) == []
    assert len(again) == len(needed)
    return needed


def restored(cluster: Cluster) -> Cluster:
    """Return a cluster whose master has read the compacted journal of another one."""
    after = Cluster()
    after.now_s = cluster.now_s
    restoration = Restoration(after.machine)
    for record in records_of(cluster):
        restoration.apply(record, cluster.now_s)
    assert restoration.skipped == []
    restoration.finish(after.now_s)
    after.end_turn()
    return after


def change(cluster: Cluster, topic: str, **argument: Any) -> None:
    topics.change(cluster.machine, topic, argument, cluster.now_s)
    cluster.end_turn()


def names(records: list[Message]) -> list[str]:
    """Return the outputs of the tasks in records."""
    return [r.spec.outputs[0] for r in records if isinstance(r, AddTask)]


def test_results_that_a_client_has_taken_over_need_no_record_but_count() -> None:
    cluster = two()
    tasks = [a_task(f"t{n}") for n in range(100)]
    cluster.job(*tasks, want=[task.outputs[0] for task in tasks], open=True)
    for task in tasks[:98]:
        worker = cluster.machine.graph.tasks[task.id].worker
        assert worker is not None
        cluster.done(worker, task)
        cluster.says(ReleaseObjects(task.job, task.outputs, for_good=True))
    needed = records_of(cluster)
    assert names(needed) == ["t98", "t99"]
    assert len(needed) < 12
    before, after = cluster.job_of(), restored(cluster).job_of()
    assert after.counts[DONE] == before.counts[DONE] == 98
    assert after.handed_over == before.handed_over == 98


def test_a_job_has_completed_if_the_task_that_was_retried_is_forgotten() -> None:
    cluster = two()
    task = a_task("a")
    cluster.job(task, want=["a"], detached=True)
    cluster.failed("w1", task)
    assert cluster.job_of().state is JobState.FAILED
    change(cluster, "retry", job=JOB)
    worker, attempt = (node := cluster.machine.graph.tasks[task.id]).worker, node.attempt
    assert worker is not None
    cluster.done(worker, task, attempt=attempt)
    cluster.says(ReleaseObjects(task.job, task.outputs, for_good=True))
    assert restored(cluster).job_of().state is JobState.COMPLETED


def test_an_object_that_stores_have_again_needs_one_record() -> None:
    cluster = two()
    task = a_task("a")
    cluster.job(task, want=["a"], detached=True)
    cluster.loses("w1")
    for _ in range(3):
        cluster.joins(a_worker("w1"))
        found = stored("a", place_of("w1")), stored("unknown", place_of("w1"))
        cluster.worker_says("w1", ObjectsStored(found, kept=True), StoreListed())
        cluster.loses("w1")
    assert sum(isinstance(record, ObjectsStored) for record in cluster.machine.journal) == 3
    needed = [record for record in records_of(cluster) if isinstance(record, ObjectsStored)]
    assert [ref.id for record in needed for ref in record.refs] == ["a"]


def test_a_cancelled_job_whose_end_is_in_a_later_file_keeps_its_number() -> None:
    cluster = two()
    for number in range(2):
        task = a_task(f"a{number}", job=f"job-{number}")
        cluster.job(task, want=[task.outputs[0]], job=f"job-{number}")
    first = a_task("a0", job="job-0")
    worker = cluster.machine.graph.tasks[first.id].worker
    assert worker is not None
    cluster.done(worker, first)
    change(cluster, "remove", job="job-0")
    cluster.says(CancelJob(JobId("job-1"), "no"))  # its task is still being stopped
    assert [job.number for job in restored(cluster).machine.jobs.values()] == [2]


def test_a_removed_job_needs_no_record_and_numbers_go_on() -> None:
    cluster = two()
    for number in range(3):
        task = a_task(f"a{number}", job=f"job-{number}")
        cluster.job(task, want=[task.outputs[0]], job=f"job-{number}")
        worker = cluster.machine.graph.tasks[task.id].worker
        assert worker is not None
        cluster.done(worker, task)
    change(cluster, "remove", job="job-0")
    change(cluster, "remove", job="job-2")
    assert names(records_of(cluster)) == ["a1"]
    after = restored(cluster)
    assert [job.number for job in after.machine.jobs.values()] == [2]
    after.job(a_task("b", job="new"), job="new")
    assert after.job_of("new").number == 4


def test_an_id_may_name_a_job_again_after_its_removal() -> None:
    cluster = two()
    for name in ("first", "second"):
        task = a_task(name)
        cluster.job(task, want=[task.outputs[0]])
        worker = cluster.machine.graph.tasks[task.id].worker
        assert worker is not None
        cluster.done(worker, task)
        if name == "first":
            change(cluster, "remove", job=task.job)
    assert names(records_of(cluster)) == ["second"]


def test_an_object_that_another_job_reads_outlives_its_job_with_the_job_s_records() -> None:
    cluster = two()
    made, reads = a_task("made", job="one"), a_task("read", job="two", inputs=["made"])
    cluster.job(made, want=["made"], job="one")
    cluster.done("w1", made, stored("made", place_of("w1")))
    cluster.job(reads, want=["read"], job="two")
    change(cluster, "remove", job="one")
    assert names(records_of(cluster)) == ["made", "read"]
    node = restored(cluster).machine.graph.objects.nodes[ObjectId("made")]
    assert isinstance(node.ref, Concrete)
    cluster.done("w1", reads)
    change(cluster, "remove", job="two")
    assert names(records_of(cluster)) == []


def test_a_kept_object_stays_until_it_is_discarded() -> None:
    cluster = two()
    change(cluster, "keep", name="words", reference=stored(UPLOAD, place_of("w1")))
    after = restored(cluster)
    assert after.machine.kept[UPLOAD].name == "words"
    assert after.machine.graph.objects.nodes[UPLOAD].ref == stored(UPLOAD, place_of("w1"))
    change(cluster, "discard", object="words")
    assert len(records_of(cluster)) == 3  # two workers, and the number of jobs


def test_an_upload_that_only_a_forgotten_task_named_is_still_known() -> None:
    cluster = two()
    first, second = a_task("first", inputs=[UPLOAD]), a_task("second", inputs=[UPLOAD, "never"])
    job = a_job_spec()
    cluster.says(
        SubmitJob(job), AddTask(second, ()), AddTask(first, (inline(UPLOAD),)),
        WantObjects(job.id, first.outputs), CloseJob(job.id),
    )  # fmt: skip
    cluster.done("w1", first)
    cluster.says(ReleaseObjects(job.id, first.outputs, for_good=True))
    records = records_of(cluster)
    assert names(records)[0] == "second"
    assert [r for r in records if isinstance(r, TaskReported)] == []
    assert restored(cluster).machine.graph.objects.nodes[UPLOAD].ref == inline(UPLOAD)


def test_ended_jobs_are_removed_after_a_time() -> None:
    cluster = two()
    cluster.machine._forget_jobs_after_s = 1000.0
    task, other = a_task("a", job="one"), a_task("b", job="two")
    cluster.job(task, want=["a"], job="one")
    cluster.job(other, want=["b"], job="two", detached=True)
    cluster.done("w1", task)
    cluster.passes(999)
    assert cluster.machine.jobs.keys() == {"one", "two"}
    cluster.passes(2)
    assert cluster.machine.jobs.keys() == {"two"}
    assert names(records_of(cluster)) == ["b"]


def test_volumes_need_as_many_records_as_they_have_extents() -> None:
    first, second = (
        MemoryServerSeen("a", 0, "a:1", 9, False),
        MemoryServerSeen("b", 1, "b:1", 9, True),
    )
    journal: list[VolumeRecord] = [first, second, VolumeCreated(1, "v", 2, 1, "u", "")]
    for epoch in range(1, 100):
        used = epoch > 1
        journal.append(ExtentsPlaced(1, (ExtentPlaced(0, epoch, used, 0, (0, 1)),)))
        journal.append(ExtentsPlaced(1, (ExtentPlaced(1, epoch, used, 1, (1,)),)))
    journal += [VolumeCreated(2, "w", 1, 1, "u", ""), VolumeRemoved(2)]
    journal += [ExtentsPlaced(2, (ExtentPlaced(0, 1, True, 0, (0,)),))]
    journal += [MemoryServerSeen("c", 2, "c:1", 9, False), MemoryServerLeft(2)]
    batches = [(1.0, [record]) for record in journal]
    needed = [record for _, records in compact(lambda: batches) for record in records]
    placed = ExtentPlaced(0, 99, True, 0, (0, 1)), ExtentPlaced(1, 99, True, 1, (1,))
    assert needed[:-1] == [
        first, second, VolumeCreated(1, "v", 2, 1, "u", ""), ExtentsPlaced(1, placed),
        VolumeRemoved(2),
    ]  # fmt: skip
    again = [record for _, records in compact(lambda: [(1.0, needed)]) for record in records]
    assert again == needed


def test_the_number_of_a_removed_volume_is_never_used_again() -> None:
    table = VolumeTable()
    table.apply(VolumeCreated(7, "v", 1, 1, "u", ""))
    table.apply(VolumeRemoved(7))
    again = VolumeTable()
    for record in table.records():
        again.apply(record)
    assert (again.volumes, again.last_volume) == ({}, 7)


def test_decisions_about_many_extents_need_several_records() -> None:
    count = EXTENTS_PER_RECORD + 1
    table = VolumeTable()
    table.apply(VolumeCreated(1, "v", count, 1, "u", ""))
    table.apply(ExtentsPlaced(1, tuple([ExtentPlaced(n, 1, False, 0, (0,)) for n in range(count)])))
    sizes = [len(r.extents) for r in table.records() if isinstance(r, ExtentsPlaced)]
    assert sizes == [EXTENTS_PER_RECORD, 1]
