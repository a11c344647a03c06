"""Scenes with the master's machine: lost workers, lost inputs, and spawned tasks."""

from __future__ import annotations

import pytest

from ciel.core.events import (
    SUSPECT_AFTER_S,
    WORKER_TIMEOUT_S,
    AddTask,
    CloseJob,
    CompareObjects,
    ContentDiffers,
    DropObjects,
    MeetWorkers,
    Neighbour,
    ObjectsStored,
    SpawnTask,
    StoresReported,
    SubmitJob,
    TaskReported,
    WantObjects,
)
from ciel.core.ids import JobId, ObjectId
from ciel.core.jobs import JobState
from ciel.core.refs import Failure, Reference, Tombstone
from ciel.core.retries import BACK_OFF_FIRST_S, INPUT_LOSSES_MAX
from ciel.core.tasks import Mentions, TaskSpec, TaskState
from ciel.master.state.workers import WorkerFacts
from ciel.testing.builders import (
    JOB,
    a_chain,
    a_job_spec,
    a_task,
    a_worker,
    inline,
    place_of,
    stored,
)
from ciel_tests.scenes.master import Cluster, ask, inputs_lost, one, two

DIFFERS = "another attempt on worker w1 also produced a, with different content; the earlier one"

# --- lost workers ---------------------------------------------------------------------------------


def test_a_lost_workers_task_runs_on_another_worker_at_once() -> None:
    cluster = two()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.said("w1: run a")
    cluster.loses("w1")
    cluster.said("w2: run a again (2)")


def test_a_task_fails_when_three_workers_ended_while_running_it() -> None:
    cluster = Cluster(*[a_worker(f"w{number}") for number in range(1, 5)])
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.said("w1: run a")
    cluster.loses("w1")
    cluster.loses("w2")
    cluster.said("w2: run a again (2)", "w3: run a again (3)")
    cluster.loses("w3")
    cluster.said(
        "client: a is WORKER_FAILED",
        "client: failed: WORKER_FAILED: 3 workers died while they ran this task, the last was "
        "w3: the task seems to crash them, or to exhaust the memory of their hosts (see the logs "
        "of these workers)",
    )


def losses(cluster: Cluster, *tasks: TaskSpec) -> list[int]:
    """Return how many deaths of workers count against each task."""
    states = cluster.machine.context.retry_states
    return [states[task.id].worker_losses if task.id in states else 0 for task in tasks]


def test_the_death_of_a_worker_counts_against_all_brief_tasks_that_it_had() -> None:
    """Workers report their ends late, so the master does not know which one ran."""
    cluster = one()
    a, b = a_task("a"), a_task("b")
    cluster.job(a, b, want=["a", "b"])
    cluster.loses("w1")
    assert losses(cluster, a, b) == [1, 0]
    cluster = one()
    cluster.machine.workers["w1"].credit.learn(0.001)
    cluster.job(a, b, want=["a", "b"])
    cluster.loses("w1")
    assert losses(cluster, a, b) == [1, 1]


def test_a_task_whose_worker_died_starts_at_once_where_it_is_assigned() -> None:
    """So the next death counts against it only if it runs, and against no task behind it."""
    cluster = two()
    a, b, c, d, e = tasks = [a_task(name) for name in "abcde"]
    for worker in cluster.machine.workers.values():
        worker.credit.learn(0.001)
    cluster.job(*tasks[:4], want=["a", "b", "c", "d"], open=True)
    cluster.said("w1: run a", "w2: run b", "w1: run c", "w2: run d")
    cluster.loses("w1")
    assert losses(cluster, a, b, c, d) == [1, 0, 1, 0]
    cluster.says(AddTask(e, ()), WantObjects(JOB, (e.outputs[0],)))
    cluster.done("w2", b)
    cluster.said("client: b is there")
    cluster.done("w2", d)
    cluster.said("w2: run a again (2)", "client: d is there")
    cluster.loses("w2")
    assert losses(cluster, a, c, e) == [2, 1, 0]
    cluster.joins(a_worker("w3"))
    cluster.said("w3: run c again (2)")
    cluster.loses("w3")
    assert losses(cluster, a, c, e) == [2, 2, 0]


def test_a_report_of_a_superseded_attempt_is_dropped() -> None:
    cluster = two()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.loses("w1")
    cluster.said("w1: run a", "w2: run a again (2)")
    cluster.joins(a_worker("w1"))
    cluster.done("w1", task, inline("a", b"late"), attempt=1)
    cluster.done("w2", task, inline("a", b"older number"), attempt=1)
    cluster.done("w1", task, inline("a", b"another worker"), attempt=2)
    cluster.said()
    cluster.done("w2", task, inline("a", b"right"), attempt=2)
    cluster.said("client: a is there", "client: completed")
    assert cluster.machine.graph.objects.reference(ObjectId("a")) == inline("a", b"right")


@pytest.mark.parametrize(
    "known, late, is_told",
    [
        (inline("a", b"right"), inline("a", b"right"), False),
        (inline("a", b"right"), inline("a", b"wrong"), True),
        (inline("a", b"right"), stored("a", "w1:8001", size_bytes=5000), True),
        (stored("a", "w2:8001", size_bytes=5000), stored("a", "w1:8001", size_bytes=5000), False),
        (stored("a", "w2:8001", size_bytes=5000), stored("a", "w1:8001", size_bytes=5001), True),
    ],
)
def test_a_late_result_that_differs_from_the_first_is_recorded(
    known: Reference, late: Reference, is_told: bool
) -> None:
    """The first report that counts wins, and the table keeps one value."""
    cluster = two()
    task = a_task("a")
    cluster.job(task, want=["a"], open=True)
    cluster.loses("w1")
    cluster.joins(a_worker("w1"))
    cluster.done("w2", task, known, attempt=2)
    cluster.done("w1", task, late, attempt=1)
    found = cluster.machine.graph.objects.reference(ObjectId("a"))
    assert getattr(found, "size_bytes", None) == getattr(known, "size_bytes", None)
    assert (DIFFERS in str(ask(cluster, "task", job="last", task=task.id))) == is_told


@pytest.mark.parametrize("late_bytes, is_compared", [(5000, True), (5001, False)])
def test_a_late_result_of_the_same_size_is_compared_with_the_first(
    late_bytes: int, is_compared: bool
) -> None:
    cluster = two()
    task = a_task("a")
    cluster.job(task, want=["a"], open=True)
    cluster.loses("w1")
    cluster.joins(a_worker("w1"))
    first = stored("a", place_of("w2"), size_bytes=5000)
    cluster.done("w2", task, first, attempt=2)
    cluster.lines()
    cluster.done("w1", task, stored("a", place_of("w1"), size_bytes=late_bytes), attempt=1)
    cluster.said(f"w1: {'compare' if is_compared else 'drop'} a")
    if is_compared:
        assert cluster.sent[-1] == CompareObjects((first,))
        cluster.worker_says("w1", ContentDiffers(ObjectId("a")))
    assert str(ask(cluster, "task", job="last", task=task.id)).count(DIFFERS) == 1


def test_objects_of_a_lost_worker_are_recomputed_if_needed() -> None:
    cluster = two()
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"])
    cluster.done("w1", first, stored("c0", place_of("w1")))
    cluster.said("w1: run c0", "w1: run c1")
    cluster.loses("w1")
    cluster.said("w2: run c0 again (2)")
    cluster.done("w2", first, stored("c0", place_of("w2")), attempt=2)
    cluster.said("w2: run c1 again (2)")


def test_a_silent_worker_is_suspected_and_later_declared_dead() -> None:
    cluster = two()
    task, other = a_task("a"), a_task("b", ordinal=2)
    cluster.job(task, want=["a"], open=True)
    cluster.said("w1: run a")
    cluster.passes(SUSPECT_AFTER_S, "w2")
    told = [worker["suspicion"] for worker in ask(cluster, "workers")]
    cluster.passes(0.1, "w2")
    told += [worker["suspicion"] for worker in ask(cluster, "workers")]
    assert told == ["", "", "it was silent for 3.1 s", ""]
    cluster.says(AddTask(other, ()), WantObjects(JOB, (ObjectId("b"),)))
    cluster.said("w2: run b")
    cluster.passes(WORKER_TIMEOUT_S - SUSPECT_AFTER_S - 0.1, "w2")
    cluster.said()
    cluster.passes(0.1, "w2")
    cluster.said("w2: run a again (2)")
    assert list(cluster.machine.workers) == ["w2"]
    [line] = cluster.machine.histories[task.id].lines(cluster.now_s)
    assert line == "0.0 s ago: worker w1 was lost (silent for 60.1 s) during attempt 1"
    assert task.id not in cluster.machine.retry_states


def test_reports_of_a_suspected_worker_count_when_it_is_back() -> None:
    cluster = two()
    task = a_task("a")
    cluster.job(task, want=["a"], open=True)
    cluster.said("w1: run a")
    cluster.machine.worker_cut_off("w1", "a cable", cluster.now_s)
    cluster.passes(30.0, "w2")
    cluster.done("w1", task)
    cluster.said("client: a is there")
    assert not cluster.machine.workers["w1"].suspicion
    assert cluster.machine.membership.lost_count == 0


def test_no_worker_is_declared_dead_while_all_are_silent() -> None:
    cluster = two()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.said("w1: run a")
    cluster.passes(10 * WORKER_TIMEOUT_S, "nobody")
    assert list(cluster.machine.workers) == ["w1", "w2"]
    cluster.passes(1.0, "w2")
    cluster.passes(1.0, "w2")
    cluster.said("w2: run a again (2)")


def test_an_object_held_only_by_a_suspected_worker_is_not_recomputed() -> None:
    cluster = two()
    maker, reader = a_task("a"), a_task("b", inputs=["a"], ordinal=1)
    cluster.job(maker, want=["a"], open=True)
    cluster.done("w1", maker, stored("a", place_of("w1"), size_bytes=5000))
    cluster.machine.worker_cut_off("w1", "a cable", cluster.now_s)
    cluster.lines()
    cluster.says(AddTask(reader, ()), WantObjects(JOB, (ObjectId("b"),)))
    cluster.passes(WORKER_TIMEOUT_S / 2, "w2")
    cluster.said()
    assert "only silent workers have" in cluster.machine.graph.tasks[reader.id].reason
    cluster.passes(1.0)
    cluster.said("w1: run b")


def test_an_input_that_a_suspected_worker_does_not_serve_is_not_lost() -> None:
    cluster = Cluster(a_worker("w1"), a_worker("w2", slots=2))
    maker, reader = a_task("a"), a_task("b", inputs=["a"], ordinal=1, slots=2)
    cluster.machine.worker_cut_off("w2", "a cable", cluster.now_s)
    cluster.job(maker, reader, want=["b"])
    cluster.done("w1", maker, stored("a", place_of("w1"), size_bytes=5000))
    cluster.passes(1.0)
    cluster.said("w1: run a", "w2: run b")
    cluster.machine.worker_cut_off("w1", "a cable", cluster.now_s)
    cluster.worker_says("w2", inputs_lost(reader, place_of("w1")))
    cluster.passes(WORKER_TIMEOUT_S / 2, "w2")
    cluster.said()
    assert cluster.state(maker) is TaskState.DONE
    cluster.passes(1.0)
    cluster.said("w2: run b again (2)")


@pytest.mark.parametrize(
    "newcomer", [a_worker("w1", netloc="elsewhere:1"), a_worker("w3", netloc=place_of("w1"))]
)
def test_a_worker_of_the_same_name_or_address_replaces_the_old_one(newcomer: WorkerFacts) -> None:
    cluster = two()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.said("w1: run a")
    cluster.joins(newcomer)
    cluster.said("w2: run a again (2)")
    assert [worker.facts for worker in cluster.machine.workers.values()] == [
        a_worker("w2"),
        newcomer,
    ]


def met_by(cluster: Cluster) -> dict[str, list[MeetWorkers]]:
    """Return the introductions that each worker was sent since the outbox was emptied."""
    told: dict[str, list[MeetWorkers]] = {}
    for peer, message in cluster.machine.outbox:
        if isinstance(message, MeetWorkers):
            told.setdefault(peer, []).append(message)
    return told


def test_workers_are_introduced_to_each_other() -> None:
    cluster = Cluster()
    for name in ("w1", "w2", "w3"):
        cluster.joins(a_worker(name))
    hosts = {w.facts.netloc: w.facts.host for w in cluster.machine.workers.values()}
    everyone = tuple([Neighbour(*item) for item in hosts.items()])
    assert met_by(cluster)["w3"][-1] == MeetWorkers(everyone, is_complete=True)
    assert met_by(cluster)["w1"][-1] == MeetWorkers(everyone[2:])
    cluster.machine.outbox.clear()
    cluster.loses("w2")
    news = MeetWorkers((), (place_of("w2"),))
    assert met_by(cluster) == {"w1": [news], "w3": [news]}


def test_a_worker_that_joins_causes_one_message_to_each_other_worker() -> None:
    cluster = Cluster()
    for number in range(100):
        cluster.joins(a_worker(f"w{number}"))
    sent = [message for messages in met_by(cluster).values() for message in messages]
    assert sum(len(m.neighbours) for m in sent if not m.is_complete) == 100 * 99 / 2
    cluster.machine.outbox.clear()
    for number in range(50):
        cluster.machine.worker_lost(f"w{number}", "its connection ended", cluster.now_s)
    cluster.end_turn()
    told = met_by(cluster)
    assert len(told) == 50
    assert all(len(messages) == 1 and len(messages[0].gone) == 50 for messages in told.values())


def test_messages_of_an_unknown_worker_are_ignored() -> None:
    cluster = one()
    cluster.done("w9", a_task("a"))
    cluster.loses("w9")
    cluster.said()


# --- full disks -----------------------------------------------------------------------------------


def test_a_task_that_found_no_space_runs_on_each_other_worker_once() -> None:
    cluster = Cluster(*[a_worker(f"w{number}") for number in range(1, 4)])
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.said("w1: run a")
    for number in (1, 2):
        cluster.failed(f"w{number}", task, "NO_SPACE", attempt=number)
        cluster.said(f"w{number + 1}: run a again ({number + 1})")
    cluster.failed("w3", task, "NO_SPACE", attempt=3)
    failure = cluster.machine.graph.objects.reference(task.outputs[0])
    assert isinstance(failure, Failure)
    assert failure.reason == "NO_SPACE"


def test_a_full_worker_gets_tasks_only_if_no_other_can_run_them() -> None:
    cluster = two()
    cluster.worker_says("w1", StoresReported((), 0, is_full=True))
    tasks = [a_task(name, ordinal=n) for n, name in enumerate("abc")]
    cluster.job(*tasks, want=["a", "b", "c"])
    assert {task.worker for task in cluster.machine.graph.tasks.values()} <= {"w2", None}
    cluster.loses("w2")
    assert "w1" in {task.worker for task in cluster.machine.graph.tasks.values()}


def test_a_worker_with_space_again_gets_tasks() -> None:
    cluster = one()
    cluster.worker_says("w1", StoresReported((), 0, is_full=True))
    cluster.joins(a_worker("w2"))
    cluster.worker_says("w1", StoresReported((), 0, is_full=False))
    cluster.job(a_task("a"), a_task("b", ordinal=1), want=["a", "b"])
    assert {task.worker for task in cluster.machine.graph.tasks.values()} == {"w1", "w2"}


# --- lost inputs ----------------------------------------------------------------------------------


def test_a_lost_input_is_recomputed_before_its_reader_runs_again() -> None:
    cluster = one()
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"])
    cluster.done("w1", first, stored("c0", place_of("w1")))
    cluster.said("w1: run c0", "w1: run c1")
    cluster.worker_says("w1", inputs_lost(second, place_of("w1")))
    cluster.said("w1: drop c0", "w1: run c0 again (2)")
    cluster.done("w1", first, attempt=2)
    cluster.said("w1: run c1 again (2)")
    cluster.done("w1", second, attempt=2)
    cluster.said("client: c1 is there", "client: completed")
    assert cluster.slots_used("w1") == 0


def test_a_result_that_was_damaged_is_recomputed() -> None:
    """Its worker has deleted the file."""
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.done("w1", task, stored("a", place_of("w1")))
    cluster.said("w1: run a", "client: a is there", "client: completed")
    gone = Tombstone(ObjectId("a"), frozenset((place_of("w1"),)))
    cluster.worker_says("w1", ObjectsStored((gone,)))
    cluster.said("w1: run a again (2)")


def test_a_worker_cannot_bury_the_objects_of_another_one() -> None:
    cluster = two()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.done("w1", task, stored("a", place_of("w1")))
    cluster.said("w1: run a", "client: a is there", "client: completed")
    gone = Tombstone(ObjectId("a"), frozenset((place_of("w1"),)))
    cluster.worker_says("w2", ObjectsStored((gone,)))
    cluster.said()


def test_an_input_that_is_never_found_finally_fails_its_reader() -> None:
    cluster = one()
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"])
    cluster.done("w1", first, stored("c0", place_of("w1")))
    cluster.said("w1: run c0", "w1: run c1")
    for attempt in (1, 2, 3):
        cluster.worker_says("w1", inputs_lost(second, "stranger:1", attempt=attempt))
        cluster.said()
        cluster.passes(BACK_OFF_FIRST_S, "w1")
        cluster.said(f"w1: run c1 again ({attempt + 1})")
    cluster.worker_says("w1", inputs_lost(second, "stranger:1", attempt=4))
    cluster.said(
        "client: c1 is MISSING_INPUT",
        "w1: drop c0",
        "client: failed: MISSING_INPUT: w2:8001 answered 404",
    )


def test_an_input_that_is_repeatedly_recomputed_out_of_reach_fails_its_reader() -> None:
    cluster = two()
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"])
    for attempt in range(1, 2 * INPUT_LOSSES_MAX + 2):
        maker = cluster.machine.graph.tasks[first.id].worker
        assert maker is not None
        cluster.done(maker, first, stored("c0", place_of(maker)), attempt=attempt)
        reader = cluster.machine.graph.tasks[second.id].worker
        assert reader is not None
        cluster.worker_says(reader, inputs_lost(second, place_of(maker), attempt=attempt))
    cluster.machine.outbox.clear()
    failure = cluster.machine.graph.objects.reference(second.outputs[0])
    assert isinstance(failure, Failure)
    assert failure.reason == "MISSING_INPUT"


def test_a_lost_upload_fails_the_job_and_says_so() -> None:
    cluster = one()
    reader = a_task("a", inputs=["upload"])
    cluster.says(SubmitJob(a_job_spec()), AddTask(reader, (stored("upload", place_of("w1")),)))
    cluster.says(WantObjects(JOB, reader.outputs), CloseJob(JOB))
    cluster.said("w1: run a")
    cluster.worker_says("w1", inputs_lost(reader, place_of("w1")))
    why = "input upload failed (OBJECT_LOST): no copy of it is left, and no task produces it "
    why += "(its client has to upload it again)"
    cluster.said(
        "w1: drop upload",
        "client: a is DEPENDENCY_FAILED",
        f"client: failed: DEPENDENCY_FAILED: {why}",
    )


def test_lost_inputs_of_a_superseded_attempt_are_ignored() -> None:
    cluster = one()
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"])
    cluster.done("w1", first, stored("c0", place_of("w1")))
    cluster.said("w1: run c0", "w1: run c1")
    cluster.worker_says("w1", inputs_lost(second, place_of("w1"), attempt=7))
    cluster.said()
    assert cluster.state(second) is TaskState.ASSIGNED


def test_outputs_of_a_superseded_attempt_are_deleted() -> None:
    cluster = two()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.loses("w1")
    cluster.said("w1: run a", "w2: run a again (2)")
    cluster.joins(a_worker("w1"))
    cluster.done("w1", task, stored("a", place_of("w1")), attempt=1)
    cluster.said("w1: drop a")


def test_outputs_of_a_superseded_attempt_are_deleted_when_the_next_one_there_ends() -> None:
    """Until then, the next attempt may have produced them."""
    cluster = one()
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"])
    cluster.done("w1", first, stored("c0", place_of("w1")))
    cluster.worker_says("w1", inputs_lost(second, place_of("w1")))
    cluster.done("w1", first, stored("c0", place_of("w1")), attempt=2)
    cluster.lines()
    cluster.done("w1", second, stored("c1", place_of("w1")), attempt=1)
    cluster.said()
    cluster.worker_says("w1", inputs_lost(second, place_of("w1"), attempt=2))
    assert "w1: drop c1" in cluster.lines()


def test_copies_that_workers_report_are_recorded_for_known_objects() -> None:
    cluster = two()
    task = a_task("a")
    cluster.job(task, want=["a"], open=True)
    cluster.done("w1", task, stored("a", place_of("w1")))
    cluster.said("w1: run a", "client: a is there")
    copies = (stored("a", place_of("w2")), stored("stranger", place_of("w2")))
    cluster.worker_says("w2", ObjectsStored(copies))
    cluster.said()
    cluster.loses("w1")
    cluster.said()
    assert cluster.machine.graph.objects.get("stranger") is None


def test_objects_of_a_returning_worker_count_if_they_were_not_recomputed() -> None:
    cluster = two()
    first, second = a_task("a"), a_task("b")
    cluster.job(first, second, want=["a", "b"], open=True)
    cluster.done("w1", first, stored("a", place_of("w1")))
    cluster.done("w2", second, stored("b", place_of("w2")))
    cluster.said("w1: run a", "w2: run b", "client: a is there", "client: b is there")
    cluster.loses("w1")
    cluster.done("w2", first, stored("a", place_of("w2")), attempt=2)
    cluster.loses("w2")
    cluster.machine.outbox.clear()
    cluster.joins(a_worker("w1"))
    cluster.worker_says("w1", ObjectsStored((stored("a", place_of("w1")),), kept=True))
    cluster.joins(a_worker("w2"))
    kept = (stored("a", place_of("w2")), stored("b", place_of("w2")))
    cluster.worker_says("w2", ObjectsStored(kept, kept=True))
    places = [cluster.machine.graph.objects.nodes[name].ref for name in "ab"]
    assert places == [stored("a", place_of("w1")), stored("b", place_of("w2"))]
    assert ("w2", DropObjects((ObjectId("a"),))) in cluster.machine.outbox


def test_an_old_upload_is_deleted_if_no_job_names_it() -> None:
    cluster = one()
    here = place_of("w1")
    reader = a_task("a", inputs=["named"])
    spec = a_job_spec(JOB)
    want = WantObjects(spec.id, (ObjectId("a"),))
    cluster.says(SubmitJob(spec), AddTask(reader, (stored("named", here),)), want)
    cluster.machine.outbox.clear()
    brought = (stored("named", here), stored("alone", here))
    cluster.worker_says("w1", ObjectsStored(brought, kept=True))
    assert cluster.machine.outbox == []  # the client may be about to name it
    cluster.worker_says("w1", ObjectsStored(brought, kept=True, idle=True))
    assert cluster.machine.outbox == [("w1", DropObjects((ObjectId("alone"),)))]


# --- spawned tasks --------------------------------------------------------------------------------


def test_a_spawned_task_takes_over_its_parents_output() -> None:
    cluster = one()
    parent = a_task("a", mentions=Mentions.ANYTHING)
    child = a_task("a", parent=parent)
    cluster.job(parent, want=["a"])
    cluster.said("w1: run a")
    cluster.worker_says("w1", SpawnTask(child, (), 1), TaskReported(parent.id, 1, (), None, 0.01))
    cluster.said("w1: run a")
    cluster.done("w1", child)
    cluster.said("client: a is there", "client: completed")


def test_a_result_lost_after_its_jobs_end_may_be_recomputed_by_a_child() -> None:
    """The point where a task stops, and the children that it spawns, depend on the objects that
    exist when it runs.
    """
    cluster = two()
    parent = a_task("a", mentions=Mentions.ANYTHING)
    child = a_task("a", parent=parent)
    cluster.job(parent, want=["a"])
    cluster.done("w1", parent, stored("a", place_of("w1")))
    cluster.said("w1: run a", "client: a is there", "client: completed")
    cluster.loses("w1")
    cluster.said("w2: run a again (2)")
    cluster.worker_says("w2", SpawnTask(child, (), 2), TaskReported(parent.id, 2, (), None, 0.01))
    cluster.said("w2: run a")
    cluster.done("w2", child, stored("a", place_of("w2")))
    assert cluster.job_of().state is JobState.COMPLETED
    assert cluster.machine.graph.objects.reference(ObjectId("a")) == stored("a", place_of("w2"))


def test_a_superseded_parent_spawns_nothing() -> None:
    cluster = two()
    parent = a_task("a")
    child = a_task("b", parent=parent)
    cluster.job(parent, want=["a"])
    cluster.said("w1: run a")
    cluster.worker_says("w2", SpawnTask(child, (), 1))
    cluster.worker_says("w1", SpawnTask(child, (), 2))
    cluster.worker_says("w1", SpawnTask(a_task("c", parent=a_task("unknown")), (), 1))
    assert child.id not in cluster.machine.graph.tasks
    assert len(cluster.machine.graph.tasks) == 1


def test_a_parent_that_spawns_an_invalid_task_fails_and_is_stopped() -> None:
    cluster = one()
    parent = a_task("a")
    child = a_task("b", parent=parent)
    cluster.job(parent, want=["a"])
    cluster.said("w1: run a")
    cluster.worker_says("w1", SpawnTask(child._replace(outputs=()), (), 1))
    why = f"task {child.id}: it has no outputs, so no job could ever want one"
    cluster.said("w1: stop a (1)", "client: a is BAD_SPAWN", f"client: failed: BAD_SPAWN: {why}")
    cluster.failed("w1", parent, "CANCELLED")
    cluster.said()
    assert cluster.slots_used("w1") == 0


def test_a_task_cannot_spawn_into_another_job() -> None:
    cluster = one()
    parent = a_task("a")
    cluster.job(parent, want=["a"])
    child = a_task("b", parent=parent)._replace(job=JobId("other"))
    cluster.worker_says("w1", SpawnTask(child, (), 1))
    assert (
        cluster.job_of().reason == f"BAD_SPAWN: task {child.id}: its parent belongs to another job"
    )


def test_the_time_for_which_the_master_stood_still_is_no_silence() -> None:
    cluster = two()
    cluster.now_s += 30
    cluster.machine.was_stalled(30)
    cluster.machine.check_timeouts(cluster.now_s)
    assert [worker.suspicion for worker in cluster.machine.workers.values()] == ["", ""]
