"""The master's machine in scenes. All that it says is told as short lines, and each step is
compared with all of them: nothing happens unseen.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

import ciel.master.state.jobs as jobs_module
from ciel.core.errors import CannotRetryError, JobNotEndedError
from ciel.core.events import (
    LOST_AFTER_S,
    RECALLED,
    AddTask,
    AssignTask,
    CancelJob,
    CancelTask,
    CloseJob,
    CopyTimed,
    DiskQueued,
    DropObjects,
    Heartbeat,
    InputsLost,
    JobChanged,
    MeetWorkers,
    Message,
    ObjectSettled,
    ObjectsStored,
    RecallTasks,
    ReleaseObjects,
    RequestRefused,
    SpawnTask,
    StreamsOpened,
    SubmitJob,
    TaskFault,
    TaskReported,
    WantObjects,
    WatchJob,
)
from ciel.core.ids import JobId, ObjectId
from ciel.core.jobs import Job, JobState
from ciel.core.refs import Failure, Fixed, Future, Reference, Stream, Value
from ciel.core.retries import BACK_OFF_FIRST_S, INPUT_LOSSES_MAX
from ciel.core.tasks import Mentions, TaskSpec, TaskState
from ciel.master.state import answers, explain
from ciel.master.state.ahead import AHEAD_MAX
from ciel.master.state.answers import UnknownQuestionError
from ciel.master.state.audience import CLIENT_GRACE_S
from ciel.master.state.jobs import PROGRESS_INTERVAL_S
from ciel.master.state.machine import MasterMachine
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

CLIENT = "client"


class Cluster:
    """A machine, its clock, and who said what. Tasks are called by the first object they make."""

    def __init__(self, *workers: WorkerFacts, delegates: bool = False) -> None:
        self.machine = MasterMachine(delegates=delegates)
        self.now_s = 1000.0
        self.progress = 0
        self.told: list[Message] = []
        for worker in workers:
            self.machine.worker_joined(worker, self.now_s)
        self.machine.outbox.clear()

    # --- what happens -----------------------------------------------------------------------------

    def says(self, *messages: Message, client: str = CLIENT) -> None:
        for message in messages:
            self.machine.client_said(client, message, self.now_s)
        self.end_turn()

    def job(
        self, *tasks: TaskSpec, want: Iterable[str] = (), open: bool = False, job: str = JOB,
        detached: bool = False,
    ) -> None:  # fmt: skip
        """A client submits a job of these tasks, and closes it unless it is to stay open."""
        objects = tuple(ObjectId(name) for name in want)
        spec = a_job_spec(job, detached=detached)
        messages: list[Message] = [SubmitJob(spec), *(AddTask(task, ()) for task in tasks)]
        messages.append(WantObjects(spec.id, objects))
        if not open:
            messages.append(CloseJob(spec.id))
        self.says(*messages)

    def worker_says(self, worker: str, *messages: Message) -> None:
        for message in messages:
            self.machine.worker_said(worker, message, self.now_s)
        self.end_turn()

    def done(self, worker: str, spec: TaskSpec, *published: Reference, attempt: int = 1) -> None:
        """A worker reports an attempt that made what it promised, or what else is given."""
        made = published or tuple(inline(output) for output in spec.outputs)
        self.worker_says(worker, TaskReported(spec.id, attempt, made, None, 0.01))

    def failed(
        self, worker: str, spec: TaskSpec, reason: str = "RUNTIME_ERROR", attempt: int = 1
    ) -> None:
        fault = TaskFault(reason, "exit status 3")
        self.worker_says(worker, TaskReported(spec.id, attempt, (), fault, 0.01))

    def joins(self, facts: WorkerFacts) -> None:
        self.machine.worker_joined(facts, self.now_s)
        self.end_turn()

    def loses(self, worker: str) -> None:
        self.machine.worker_lost(worker, "its connection ended", self.now_s)
        self.end_turn()

    def client_goes(self, client: str = CLIENT) -> None:
        self.machine.client_gone(client, self.now_s)
        self.end_turn()

    def passes(self, seconds: float, *heard: str) -> None:
        """Time passes; meanwhile these workers are heard, as all are unless some are named."""
        self.now_s += seconds
        for worker in heard or list(self.machine.workers):
            self.machine.worker_said(worker, Heartbeat(), self.now_s)
        self.machine.tick(self.now_s)
        self.end_turn()

    def end_turn(self) -> None:
        self.machine.end_turn(self.now_s)
        self.machine.graph.validate()

    # --- what follows -----------------------------------------------------------------------------

    def said(self, *lines: str) -> None:
        """Compare and forget everything that was said; meetings and progress apart."""
        assert self.lines() == list(lines)

    def lines(self) -> list[str]:
        """Tell and forget everything that was said; meetings and progress apart."""
        told = [self._line(peer, message) for peer, message in self.machine.outbox]
        self.told += [message for _, message in self.machine.outbox]
        self.machine.outbox.clear()
        self.progress += told.count("client: active")
        return [line for line in told if line not in ("", "client: active")]

    def _line(self, peer: str, message: Message) -> str:
        match message:
            case AssignTask(spec, attempt, _):
                again = f" again ({attempt})" if attempt > 1 else ""
                return f"{peer}: run {spec.outputs[0]}{again}"
            case CancelTask(task_id, attempt):
                return f"{peer}: stop {self._name(task_id)} ({attempt})"
            case RecallTasks(attempts):
                return f"{peer}: give back {' '.join(self._name(task) for task, _ in attempts)}"
            case DropObjects(objects):
                return f"{peer}: drop {' '.join(objects)}"
            case ObjectSettled(_, Failure(object_id, reason, _)):
                return f"{peer}: {object_id} is {reason}"
            case ObjectSettled(_, ref):
                return f"{peer}: {ref.id} is there"
            case JobChanged(summary):
                reason = f": {summary.reason}" if summary.reason else ""
                return f"{peer}: {summary.state}{reason}"
            case RequestRefused(_, reason):
                return f"{peer}: refused: {reason}"
            case MeetWorkers():
                return ""
        return f"{peer}: {type(message).__name__}"

    def _name(self, task_id: str) -> str:
        task = self.machine.graph.tasks.get(task_id)
        return task_id if task is None else task.spec.outputs[0]

    def job_of(self, job: str = JOB) -> Job:
        return self.machine.jobs[job]

    def state(self, spec: TaskSpec) -> TaskState:
        return self.machine.graph.tasks[spec.id].state

    def slots_used(self, worker: str) -> int:
        return self.machine.workers[worker].slots_used


def one(*, slots: int = 1) -> Cluster:
    return Cluster(a_worker("w1", slots=slots))


def two() -> Cluster:
    return Cluster(a_worker("w1"), a_worker("w2"))


# --- jobs come and go -----------------------------------------------------------------------------


def test_a_job_runs_and_completes() -> None:
    cluster = one()
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"])
    cluster.said("w1: run c0")
    cluster.done("w1", first)
    cluster.said("w1: run c1")
    cluster.done("w1", second)
    cluster.said("client: c1 is there", "client: completed")
    assert cluster.job_of().ended_at_s == cluster.now_s


def test_nothing_runs_that_nobody_wants() -> None:
    cluster = one()
    cluster.job(*a_chain(2), a_task("aside"), want=["c0"])
    cluster.said("w1: run c0")
    cluster.done("w1", a_chain(1)[0])
    cluster.said("client: c0 is there", "client: completed")


def test_a_job_that_wants_nothing_is_complete_when_it_is_closed() -> None:
    cluster = one()
    cluster.job(a_task("a"), open=True)
    cluster.said()
    cluster.says(CloseJob(JOB))
    cluster.said("client: completed")


def test_submitting_again_changes_nothing() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.said("w1: run a")
    cluster.job(task, want=["a"])
    cluster.said()
    assert len(cluster.machine.jobs) == 1
    cluster.done("w1", task)
    cluster.said("client: a is there", "client: completed")
    cluster.job(task, want=["a"])
    cluster.said("client: completed", "client: a is there")


def test_an_open_job_takes_late_tasks_and_wants() -> None:
    cluster = one()
    first, second = a_task("a"), a_task("b", inputs=["a"])
    cluster.job(first, want=["a"], open=True)
    cluster.said("w1: run a")
    cluster.done("w1", first)
    cluster.said("client: a is there")
    cluster.says(AddTask(second, ()))
    cluster.said()
    cluster.says(WantObjects(JOB, second.outputs))
    cluster.said("w1: run b")
    cluster.says(CloseJob(JOB))
    cluster.said()
    cluster.done("w1", second)
    cluster.said("client: b is there", "client: completed")


def test_an_open_job_waits_for_what_nobody_makes_yet() -> None:
    cluster = one()
    cluster.job(want=["a"], open=True)
    cluster.passes(60)
    cluster.said()
    cluster.says(AddTask(a_task("a"), ()))
    cluster.said("w1: run a")


def test_a_closed_job_that_is_stuck_fails_and_says_what_is_missing() -> None:
    cluster = one()
    cluster.job(a_task("a", inputs=["orphan"]), want=["a"])
    cluster.said(
        "client: a is DEPENDENCY_FAILED",
        "client: failed: DEPENDENCY_FAILED: its input orphan failed (NEVER_MADE): "
        "no task of the job makes orphan",
    )


def test_a_wanted_object_that_nobody_makes_is_named() -> None:
    cluster = one()
    cluster.job(want=["orphan"])
    cluster.said(
        "client: orphan is NEVER_MADE",
        "client: failed: NEVER_MADE: no task of the job makes orphan",
    )


def test_a_circle_is_stuck() -> None:
    cluster = one()
    cluster.job(a_task("a", inputs=["b"]), a_task("b", inputs=["a"]), want=["a"])
    assert cluster.job_of().reason.startswith("NEVER_MADE: no task of the job makes a")


def test_releasing_what_is_missing_ends_a_closed_job() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.said("w1: run a")
    cluster.says(ReleaseObjects(JOB, task.outputs))
    cluster.said("w1: stop a (1)", "client: completed")


def test_a_released_result_is_dropped_where_it_lies() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"], open=True)
    cluster.done("w1", task, stored("a", place_of("w1")))
    cluster.said("w1: run a", "client: a is there")
    cluster.says(ReleaseObjects(JOB, task.outputs))
    cluster.said("w1: drop a")


def test_an_intermediate_object_is_dropped_where_it_lies() -> None:
    cluster = one()
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"], open=True)
    cluster.done("w1", first, stored("c0", place_of("w1")))
    cluster.said("w1: run c0", "w1: run c1")
    cluster.done("w1", second)
    cluster.said("client: c1 is there", "w1: drop c0")


def test_a_job_that_keeps_drops_nothing() -> None:
    cluster = one()
    first, second = a_chain(2)
    keeping = a_job_spec(keep=True)
    cluster.says(SubmitJob(keeping), AddTask(first, ()), AddTask(second, ()))
    cluster.says(WantObjects(JOB, second.outputs))
    cluster.done("w1", first, stored("c0", place_of("w1")))
    cluster.said("w1: run c0", "w1: run c1")
    cluster.done("w1", second)
    cluster.said("client: c1 is there")


# --- what is refused ------------------------------------------------------------------------------


def test_a_message_about_an_unknown_job_is_refused() -> None:
    cluster = one()
    nowhere = JobId("nowhere")
    for message in (CloseJob(nowhere), WatchJob(nowhere), CancelJob(nowhere, ""),
                    WantObjects(nowhere, ()), AddTask(a_task("a", job="nowhere"), ())):  # fmt: skip
        cluster.says(message)
        cluster.said("client: refused: no job nowhere")


def test_a_task_that_is_refused_fails_its_job_with_one_clear_sentence() -> None:
    cluster = one()
    forged = a_task("b")._replace(ordinal=1)
    cluster.job(a_task("a"), want=["a"], open=True)
    cluster.said("w1: run a")
    cluster.says(AddTask(forged, ()))
    why = f"task {forged.id}: its parent, ordinal and digest give the id "
    told = cluster.job_of().reason
    assert told.startswith(f"a task was refused: {why}")
    assert "\n" not in told
    refusal = told.removeprefix("a task was refused: ")
    cluster.said(
        "w1: stop a (1)",
        "client: a is CANCELLED",
        f"client: failed: {told}",
        f"client: refused: {refusal}",
    )


def test_an_input_that_cannot_be_decoded_fails_its_job_and_meets_no_worker() -> None:
    cluster = one()
    cluster.job(want=["a"], open=True)
    cluster.said()
    cluster.says(AddTask(a_task("a", inputs=["upload"]), (Value(ObjectId("upload"), "!"),)))
    why = "what the reference says that object upload holds is not base64"
    cluster.said(
        "client: a is CANCELLED",
        f"client: failed: a task was refused: {why}",
        f"client: refused: {why}",
    )


def test_tasks_that_come_after_the_end_are_ignored() -> None:
    cluster = one()
    cluster.job(a_task("a"), want=["a"], open=True)
    cluster.said("w1: run a")
    cluster.says(CancelJob(JOB, "the user said so"))
    cluster.said("w1: stop a (1)", "client: a is CANCELLED")
    cluster.says(AddTask(a_task("b"), ()), WantObjects(JOB, (ObjectId("b"),)))
    cluster.said()
    assert a_task("b").id not in cluster.machine.graph.tasks


def test_one_job_too_many_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "JOBS_MAX", 1)
    cluster = one()
    cluster.job(want=["a"], open=True)
    cluster.said()
    cluster.machine.client_said(CLIENT, SubmitJob(a_job_spec("other")), cluster.now_s)
    assert cluster.machine.outbox == [
        (CLIENT, RequestRefused(JobId("other"), "there are 1 jobs already; remove some"))
    ]


def test_an_unknown_executor_fails_the_job_with_what_there_is() -> None:
    cluster = one()
    cluster.job(a_task("a", executor="cobol"), want=["a"])
    cluster.said(
        "client: a is NO_EXECUTOR",
        "client: failed: NO_EXECUTOR: no worker offers the executor 'cobol' (there are: stdinout)",
    )


def test_too_many_slots_fail_the_job_with_what_there_is() -> None:
    cluster = one(slots=2)
    cluster.job(a_task("a", slots=3), want=["a"])
    cluster.said(
        "client: a is NO_WORKER_FITS",
        "client: failed: NO_WORKER_FITS: it needs 3 slots, and no worker has more than 2: "
        "ask for fewer, or start a worker with more (ciel-worker --slots)",
    )


# --- cancelling -----------------------------------------------------------------------------------


def test_a_cancelled_job_ends_when_its_programs_are_gone() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.said("w1: run a")
    cluster.says(CancelJob(JOB, "the user said so"))
    cluster.said("w1: stop a (1)", "client: a is CANCELLED")
    cluster.failed("w1", task, "CANCELLED")
    cluster.said("client: cancelled: the user said so")
    assert cluster.slots_used("w1") == 0


def test_a_late_success_of_a_called_off_attempt_ends_the_job_as_well() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.says(CancelJob(JOB, "enough"))
    cluster.said("w1: run a", "w1: stop a (1)", "client: a is CANCELLED")
    cluster.done("w1", task)
    cluster.said("client: cancelled: enough")


def test_a_lost_worker_holds_up_no_cancelling() -> None:
    cluster = two()
    first, second = a_task("a"), a_task("b")
    cluster.job(first, second, want=["a", "b"])
    cluster.said("w1: run a", "w2: run b")
    cluster.says(CancelJob(JOB, "enough"))
    cluster.said(
        "w1: stop a (1)", "w2: stop b (1)", "client: a is CANCELLED", "client: b is CANCELLED"
    )
    cluster.loses("w1")
    cluster.said()
    cluster.failed("w2", second, "CANCELLED")
    cluster.said("client: cancelled: enough")


def test_a_job_of_which_nothing_runs_is_cancelled_at_once() -> None:
    cluster = Cluster()
    cluster.job(a_task("a"), want=["a"])
    cluster.says(CancelJob(JOB, "enough"))
    cluster.said("client: a is CANCELLED", "client: cancelled: enough")


def test_an_ended_job_cannot_be_cancelled() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.done("w1", task)
    cluster.said("w1: run a", "client: a is there", "client: completed")
    cluster.says(CancelJob(JOB, "too late"))
    cluster.said()


# --- failures and retries -------------------------------------------------------------------------


def test_a_failed_task_fails_its_job() -> None:
    cluster = one()
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"])
    cluster.said("w1: run c0")
    cluster.failed("w1", first)
    cluster.said(
        "client: c1 is DEPENDENCY_FAILED",
        "client: failed: DEPENDENCY_FAILED: its input c0 failed (RUNTIME_ERROR): exit status 3",
    )


def test_a_failed_task_is_tried_again_after_a_delay() -> None:
    cluster = one()
    task = a_task("a", retries=2)
    cluster.job(task, want=["a"])
    cluster.said("w1: run a")
    started_s = cluster.now_s
    cluster.failed("w1", task)
    cluster.said()
    assert cluster.machine.due_s() == pytest.approx(started_s + 0.2)
    cluster.passes(0.21)
    cluster.said("w1: run a again (2)")
    cluster.failed("w1", task, attempt=2)
    cluster.passes(0.39)
    cluster.said()
    cluster.passes(0.02)
    cluster.said("w1: run a again (3)")
    cluster.failed("w1", task, attempt=3)
    cluster.said(
        "client: a is RUNTIME_ERROR",
        "client: failed: RUNTIME_ERROR: exit status 3\n(attempt 3 of 3)",
    )
    assert [line.partition(": ")[2] for line in cluster.machine.stories[task.id].lines(0.0)] == [
        f"attempt {number} failed on worker w1: RUNTIME_ERROR: exit status 3"
        for number in (1, 2, 3)
    ]


def test_a_fault_that_cannot_be_mended_is_not_tried_again() -> None:
    cluster = one()
    task = a_task("a", retries=5)
    cluster.job(task, want=["a"])
    cluster.failed("w1", task, "BAD_ARGUMENTS")
    cluster.said(
        "w1: run a",
        "client: a is BAD_ARGUMENTS",
        "client: failed: BAD_ARGUMENTS: exit status 3",
    )


def test_a_second_attempt_that_succeeds_leaves_no_blame() -> None:
    cluster = one()
    task = a_task("a", retries=1)
    cluster.job(task, want=["a"])
    cluster.failed("w1", task)
    cluster.passes(1)
    cluster.done("w1", task, attempt=2)
    cluster.said("w1: run a", "w1: run a again (2)", "client: a is there", "client: completed")


def test_a_job_with_many_errors_tells_the_first_and_the_number() -> None:
    cluster = one(slots=3)
    tasks = [a_task(name) for name in ("a", "b", "c")]
    cluster.job(*tasks, want=["a", "b", "c"])
    for task in tasks:
        cluster.failed("w1", task)
    assert cluster.job_of().reason == "RUNTIME_ERROR: exit status 3 (and 2 more)"


# --- workers are lost -----------------------------------------------------------------------------


def test_a_lost_workers_task_runs_elsewhere_at_once() -> None:
    cluster = two()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.said("w1: run a")
    cluster.loses("w1")
    cluster.said("w2: run a again (2)")


def test_a_task_that_takes_down_three_workers_is_poison() -> None:
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
        "client: failed: WORKER_FAILED: 3 workers were lost while they ran it, the last was w3: "
        "it seems to end them, or to take all memory of their hosts (their logs may say more)",
    )


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


def test_what_a_lost_worker_held_is_made_again_if_needed() -> None:
    cluster = two()
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"])
    cluster.done("w1", first, stored("c0", place_of("w1")))
    cluster.said("w1: run c0", "w1: run c1")
    cluster.loses("w1")
    cluster.said("w2: run c0 again (2)")
    cluster.done("w2", first, stored("c0", place_of("w2")), attempt=2)
    cluster.said("w2: run c1 again (2)")


def test_a_worker_that_falls_silent_is_lost_at_the_next_tick() -> None:
    cluster = two()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.said("w1: run a")
    cluster.passes(LOST_AFTER_S, "w2")
    cluster.said()
    cluster.passes(0.1, "w2")
    cluster.said("w2: run a again (2)")
    assert list(cluster.machine.workers) == ["w2"]
    [line] = cluster.machine.stories[task.id].lines(cluster.now_s)
    assert line == "0.0 s ago: worker w1 was lost (silent for 3.1 s) during attempt 1"


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


def test_workers_are_introduced_to_each_other() -> None:
    cluster = Cluster()
    for name in ("w1", "w2", "w3"):
        cluster.joins(a_worker(name))
    cluster.machine.outbox.clear()
    cluster.loses("w2")
    met = {
        peer: [neighbour.netloc for neighbour in message.neighbours]
        for peer, message in cluster.machine.outbox
        if isinstance(message, MeetWorkers)
    }
    assert met == {"w1": [place_of("w3")], "w3": [place_of("w1")]}


def test_a_worker_that_is_not_there_is_not_heard() -> None:
    cluster = one()
    cluster.done("w9", a_task("a"))
    cluster.loses("w9")
    cluster.said()


# --- inputs are lost ------------------------------------------------------------------------------


def inputs_lost(spec: TaskSpec, *places: str, attempt: int = 1) -> InputsLost:
    losses = tuple((object_id, place) for object_id in spec.inputs for place in places)
    return InputsLost(spec.id, attempt, losses, "w2:8001 answered 404")


def test_a_lost_input_is_made_again_before_its_reader_runs_again() -> None:
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


def test_an_input_that_is_never_found_fails_its_reader_in_the_end() -> None:
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


def test_an_input_that_is_made_again_and_again_out_of_reach_fails_its_reader() -> None:
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
    why = "its input upload failed (OBJECT_LOST): no copy of it is left, and no task makes it "
    why += "(whoever sent it has to send it again)"
    cluster.said(
        "w1: drop upload",
        "client: a is DEPENDENCY_FAILED",
        f"client: failed: DEPENDENCY_FAILED: {why}",
    )


def test_a_superseded_attempt_does_not_lose_anything() -> None:
    cluster = one()
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"])
    cluster.done("w1", first, stored("c0", place_of("w1")))
    cluster.said("w1: run c0", "w1: run c1")
    cluster.worker_says("w1", inputs_lost(second, place_of("w1"), attempt=7))
    cluster.said()
    assert cluster.state(second) is TaskState.ASSIGNED


def test_what_a_superseded_attempt_left_is_deleted_there() -> None:
    cluster = two()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.loses("w1")
    cluster.said("w1: run a", "w2: run a again (2)")
    cluster.joins(a_worker("w1"))
    cluster.done("w1", task, stored("a", place_of("w1")), attempt=1)
    cluster.said("w1: drop a")


def test_copies_that_workers_have_are_noted_if_anyone_knows_the_object() -> None:
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


def test_what_a_lost_worker_kept_counts_if_it_was_not_made_again() -> None:
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


def test_what_somebody_brought_long_ago_goes_if_no_job_names_it() -> None:
    cluster = one()
    here = place_of("w1")
    reader = a_task("a", inputs=["named"])
    spec = a_job_spec(JOB)
    want = WantObjects(spec.id, (ObjectId("a"),))
    cluster.says(SubmitJob(spec), AddTask(reader, (stored("named", here),)), want)
    cluster.machine.outbox.clear()
    brought = (stored("named", here), stored("alone", here))
    cluster.worker_says("w1", ObjectsStored(brought, kept=True))
    assert cluster.machine.outbox == []  # its client may be about to name it
    cluster.worker_says("w1", ObjectsStored(brought, kept=True, idle=True))
    assert cluster.machine.outbox == [("w1", DropObjects((ObjectId("alone"),)))]


# --- growth ---------------------------------------------------------------------------------------


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


def test_a_result_lost_after_its_jobs_end_may_be_made_again_by_another_way() -> None:
    """Where a task stops, and what it spawns, depends on what is there when it runs."""
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


def test_a_parent_that_spawns_nonsense_fails_and_is_stopped() -> None:
    cluster = one()
    parent = a_task("a")
    child = a_task("b", parent=parent)
    cluster.job(parent, want=["a"])
    cluster.said("w1: run a")
    cluster.worker_says("w1", SpawnTask(child._replace(outputs=()), (), 1))
    why = f"task {child.id}: it has no outputs, so nobody could ever want it"
    cluster.said("w1: stop a (1)", "client: a is BAD_SPAWN", f"client: failed: BAD_SPAWN: {why}")
    cluster.failed("w1", parent, "CANCELLED")
    cluster.said()
    assert cluster.slots_used("w1") == 0


def test_nobody_spawns_into_another_job() -> None:
    cluster = one()
    parent = a_task("a")
    cluster.job(parent, want=["a"])
    child = a_task("b", parent=parent)._replace(job=JobId("other"))
    cluster.worker_says("w1", SpawnTask(child, (), 1))
    assert cluster.job_of().reason == f"BAD_SPAWN: task {child.id}: it is spawned into another job"


# --- clients come and go --------------------------------------------------------------------------


def test_a_job_is_cancelled_when_its_client_stays_away() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.said("w1: run a")
    cluster.client_goes()
    cluster.passes(CLIENT_GRACE_S - 0.1)
    cluster.said()
    cluster.passes(0.2)
    cluster.said("w1: stop a (1)")
    cluster.failed("w1", task, "CANCELLED")
    cluster.said()
    assert str(cluster.job_of().state) == "cancelled"
    assert cluster.job_of().reason == "its client is gone"


@pytest.mark.parametrize("comes_back", [WatchJob(JOB), SubmitJob(a_job_spec())])
def test_a_client_that_comes_back_in_time_keeps_its_job(comes_back: Message) -> None:
    cluster = one()
    cluster.job(a_task("a"), want=["a"])
    cluster.said("w1: run a")
    cluster.client_goes()
    cluster.passes(CLIENT_GRACE_S - 0.1)
    cluster.says(comes_back, client="client again")
    cluster.passes(60)
    cluster.machine.outbox.clear()
    assert str(cluster.job_of().state) == "active"
    cluster.client_goes("client again")
    cluster.passes(CLIENT_GRACE_S + 0.1)
    cluster.said("w1: stop a (1)")


def test_a_client_that_comes_back_before_its_old_connection_is_missed_keeps_its_job() -> None:
    cluster = one()
    cluster.job(a_task("a"), want=["a"])
    cluster.says(WatchJob(JOB), client="client again")
    cluster.client_goes()
    cluster.passes(60)
    assert str(cluster.job_of().state) == "active"
    cluster.client_goes("client again")
    cluster.passes(CLIENT_GRACE_S + 0.1)
    assert str(cluster.job_of().state) == "cancelling"


def test_who_comes_back_is_told_what_is_there_already() -> None:
    cluster = one(slots=2)
    first, second = a_task("a"), a_task("b")
    cluster.job(first, second, want=["a", "b"])
    cluster.client_goes()
    cluster.done("w1", first)
    cluster.said("w1: run a", "w1: run b")
    cluster.says(WatchJob(JOB), client="client again")
    cluster.said("client again: a is there", "client again: active")
    cluster.done("w1", second)
    cluster.said("client again: b is there", "client again: completed")


def test_a_detached_job_goes_on_without_its_client() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"], detached=True)
    cluster.client_goes()
    cluster.passes(60)
    cluster.said("w1: run a")
    cluster.done("w1", task)
    cluster.said()
    assert str(cluster.job_of().state) == "completed"


def test_an_ended_job_is_watched_for_its_last_word() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.done("w1", task)
    cluster.said("w1: run a", "client: a is there", "client: completed")
    cluster.says(WatchJob(JOB), client="late")
    cluster.said("late: a is there", "late: completed")


def test_progress_is_told_now_and_then() -> None:
    cluster = one(slots=9)
    tasks = [a_task(f"t{number}") for number in range(9)]
    cluster.job(*tasks, want=[task.outputs[0] for task in tasks])
    cluster.said(*[f"w1: run t{number}" for number in range(9)])
    before = cluster.progress
    for number, task in enumerate(tasks[:5]):
        cluster.done("w1", task)
        cluster.said(f"client: t{number} is there")
    assert cluster.progress == before
    assert cluster.machine.due_s() == pytest.approx(cluster.now_s + PROGRESS_INTERVAL_S)
    cluster.passes(PROGRESS_INTERVAL_S)
    cluster.said()
    assert cluster.progress == before + 1
    assert cluster.machine.due_s() is None


# --- placing --------------------------------------------------------------------------------------


def test_a_higher_priority_goes_first() -> None:
    cluster = Cluster()
    cluster.job(a_task("a"), a_task("b", priority=3), want=["a", "b"])
    cluster.said()
    cluster.joins(a_worker("w1"))
    cluster.said("w1: run b", "w1: run a")


def test_a_worker_gets_its_slots_and_a_little_ahead() -> None:
    cluster = one(slots=2)
    tasks = [a_task(f"t{number}") for number in range(9)]
    cluster.job(*tasks, want=[task.outputs[0] for task in tasks])
    limit = cluster.machine.workers["w1"].credit.limit
    assert 2 < limit < 9
    cluster.said(*[f"w1: run t{number}" for number in range(limit)])


def test_short_tasks_are_given_ahead_by_the_hundred() -> None:
    cluster = one()
    tasks = [a_task(f"t{number}") for number in range(1000)]
    cluster.job(*tasks, want=[task.outputs[0] for task in tasks])
    for task in tasks[:100]:
        cluster.worker_says("w1", TaskReported(task.id, 1, (inline(task.outputs[0]),), None, 1e-4))
    assert cluster.slots_used("w1") > 100


def test_a_reader_is_sent_where_its_input_lies_with_what_is_known_of_it() -> None:
    cluster = Cluster(a_worker("w1"), a_worker("w2"), a_worker("w3"))
    reader = a_task("a", inputs=["big"])
    where = stored("big", place_of("w3"), size_bytes=1 << 30)
    cluster.says(
        SubmitJob(a_job_spec()), AddTask(reader, (where,)), WantObjects(JOB, reader.outputs)
    )
    [assignment] = [m for _, m in cluster.machine.outbox if isinstance(m, AssignTask)]
    assert assignment == AssignTask(reader, 1, (where,))
    cluster.said("w3: run a")


# --- losing interest ------------------------------------------------------------------------------


def test_an_attempt_that_nobody_needs_is_called_off_once() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"], open=True)
    cluster.said("w1: run a")
    cluster.says(ReleaseObjects(JOB, task.outputs))
    cluster.said("w1: stop a (1)")
    assert cluster.slots_used("w1") == 1
    cluster.failed("w1", task, "CANCELLED")
    cluster.said()
    assert cluster.slots_used("w1") == 0


def test_what_was_called_off_may_run_again_at_once() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"], open=True)
    cluster.says(ReleaseObjects(JOB, task.outputs))
    cluster.says(WantObjects(JOB, task.outputs))
    cluster.said("w1: run a", "w1: stop a (1)", "w1: run a again (2)")
    cluster.failed("w1", task, "CANCELLED", attempt=1)
    cluster.said()
    cluster.done("w1", task, attempt=2)
    cluster.said("client: a is there")
    assert cluster.slots_used("w1") == 0


# --- what a journal keeps -------------------------------------------------------------------------


def test_what_changes_the_state_is_kept_in_order() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.done("w1", task)
    assert [type(record) for record in cluster.machine.journal] == [
        SubmitJob, AddTask, WantObjects, CloseJob, TaskReported, JobChanged,
    ]  # fmt: skip


# --- changes that anybody may ask for -------------------------------------------------------------


def test_a_failed_job_goes_on_with_what_failed() -> None:
    cluster = one()
    first, second = a_chain(2)
    good = a_task("good")
    cluster.job(first, second, good, want=["c1", "good"])
    cluster.failed("w1", first)
    cluster.done("w1", good)
    assert cluster.job_of().state is JobState.FAILED
    cluster.machine.outbox.clear()
    cluster.machine.retry_job(cluster.job_of(), cluster.now_s)
    cluster.end_turn()
    cluster.said("w1: run c0 again (2)")
    assert cluster.job_of().state is JobState.ACTIVE
    cluster.done("w1", first, attempt=2)
    cluster.done("w1", second)
    assert cluster.job_of().state is JobState.COMPLETED


def test_what_did_not_fail_cannot_be_tried_again() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"])
    with pytest.raises(CannotRetryError, match="it is active"):
        cluster.machine.retry_job(cluster.job_of(), cluster.now_s)
    cluster.done("w1", task)
    with pytest.raises(CannotRetryError, match="it is completed"):
        cluster.machine.retry_job(cluster.job_of(), cluster.now_s)


def test_a_job_that_has_ended_is_removed_with_all_that_it_left() -> None:
    cluster = one()
    good, bad = a_task("good"), a_task("bad")
    cluster.job(good, bad, want=["good", "bad"])
    with pytest.raises(JobNotEndedError, match="job 1 has not ended"):
        cluster.machine.remove_job(cluster.job_of())
    cluster.done("w1", good, stored("good", place_of("w1")))
    cluster.failed("w1", bad)
    cluster.machine.outbox.clear()
    cluster.machine.remove_job(cluster.job_of())
    cluster.end_turn()
    cluster.said("w1: drop good")
    machine = cluster.machine
    assert not machine.jobs
    assert not machine.graph.tasks
    assert not machine.stories
    assert not machine.blame
    cluster.job(a_task("later"), want=["later"])
    assert cluster.job_of().number == 2


def test_results_that_are_handed_over_leave_the_cluster() -> None:
    cluster = one()
    task = a_task("a", mentions=Mentions.NOTHING)
    cluster.job(task, want=["a"], open=True)
    cluster.done("w1", task, stored("a", place_of("w1")))
    cluster.machine.outbox.clear()
    cluster.says(ReleaseObjects(JobId(JOB), (ObjectId("a"),), True))
    cluster.said("w1: drop a")
    assert not cluster.machine.graph.tasks
    cluster.says(CloseJob(JobId(JOB)))
    assert cluster.job_of().state is JobState.COMPLETED


# --- answers --------------------------------------------------------------------------------------


def ask(cluster: Cluster, topic: str, **arguments: object) -> Any:
    return answers.answer(cluster.machine, topic, arguments, cluster.now_s)


def test_a_task_is_found_by_name_place_or_id() -> None:
    cluster = one()
    tasks = [a_task(f"t{n}", name=str(n + 4), ordinal=n) for n in range(3)]
    cluster.job(*tasks, want=["t0"])
    assert ask(cluster, "task", job=1, task="5")["task"] == tasks[1].id
    assert ask(cluster, "task", job="last", task="1")["task"] == tasks[0].id
    assert ask(cluster, "task", job=JOB, task=tasks[2].id)["name"] == "6"
    with pytest.raises(UnknownQuestionError, match="job 1 has no task 9"):
        ask(cluster, "task", job=1, task="9")


def test_tasks_and_results_are_listed_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "TASKS_LISTED_MAX", 2)
    monkeypatch.setattr(answers, "RESULTS_MAX", 2)
    cluster = one()
    tasks = [a_task(f"t{n}", name=f"n{n}", ordinal=n) for n in range(3)]
    cluster.job(*tasks, want=["t0", "t1", "t2"])
    cluster.done("w1", tasks[0], inline("t0"))
    page = ask(cluster, "tasks", job=1)
    assert [row["name"] for row in page["tasks"]] == ["n0", "n1"]
    assert [row["state"] for row in page["tasks"]] == ["done", "assigned"]
    page = ask(cluster, "tasks", job=1, first=page["next"])
    assert [row["name"] for row in page["tasks"]] == ["n2"]
    assert page["next"] is None
    assert len(ask(cluster, "tasks", job=1, state="done")["tasks"]) == 1
    page = ask(cluster, "results", job=1)
    assert page["results"] == [["n0", inline("t0")], ["n1", Future(ObjectId("t1"))]]
    assert ask(cluster, "results", job=1, first=page["next"])["results"][0][0] == "n2"


def test_what_failures_say_makes_no_answer_endless() -> None:
    cluster = one()
    tasks = [a_task(f"t{n}", name=f"n{n}", ordinal=n) for n in range(3)]
    cluster.job(*tasks, want=["t0", "t1", "t2"])
    long = "x" * (answers.ROOM_CHARACTERS - 1)
    for task in tasks:
        fault = TaskFault("RUNTIME_EXCEPTION", long)
        cluster.worker_says("w1", TaskReported(task.id, 1, (), fault, 0.01))
    assert len(ask(cluster, "job", job=1)["failures"]) == 2
    page = ask(cluster, "results", job=1)
    assert [(name, ref.text) for name, ref in page["results"]] == [("n0", long), ("n1", long)]
    (row,) = ask(cluster, "results", job=1, first=page["next"])["results"]
    assert row[0] == "n2"
    (listed,), (alone,) = ask(cluster, "jobs"), ask(cluster, "jobs", job=1)
    assert len(str(listed)) < 2000
    assert long in str(alone)


def test_tasks_are_found_by_the_numbers_of_elements_or_else_by_place() -> None:
    cluster = one()
    tasks = [a_task(f"t{n}", name=name, ordinal=n) for n, name in enumerate(["5", "7", "x", "9"])]
    cluster.job(*tasks, want=["t0"])

    def names(*elements: int) -> list[str]:
        return [row["name"] for row in ask(cluster, "tasks", job=1, elements=elements)["tasks"]]

    assert names(5, 9, 1) == ["5", "7", "9"]
    assert names(5, 9, 4) == ["5", "9"]
    assert names(1, 4, 1) == ["x"]


def test_jobs_are_listed_by_number() -> None:
    cluster = one()
    for number in range(1, 6):
        cluster.says(SubmitJob(a_job_spec(f"job{number}")))

    def numbers(**arguments: object) -> list[int]:
        return [summary[1] for summary in ask(cluster, "jobs", **arguments)]

    assert numbers(limit=2) == [4, 5]
    assert numbers(first=2, last=4) == [2, 3, 4]
    assert numbers(first=2, last=4, limit=1) == [4]
    assert numbers(job="job3") == numbers(job=3) == [3]
    with pytest.raises(UnknownQuestionError, match="no job 9"):
        numbers(job=9)


def why(cluster: Cluster, name: str) -> str:
    return "\n".join(ask(cluster, "task", job="last", task=name)["why"])


def test_a_task_says_why_it_does_not_run() -> None:
    cluster = Cluster()
    first = a_task("a", name="first")
    second = a_task("b", inputs=["a"], name="second")
    third = a_task("c", inputs=["b"], name="third")
    cluster.job(first, second, third, a_task("d", name="aside"), want=["c"])
    assert why(cluster, "aside") == "nobody wants what it makes, so it does not run"
    assert why(cluster, "first").startswith("it could run, but there is no worker")
    assert why(cluster, "third") == (
        "it waits for b, made by task second, which is waiting\n"
        "second waits for a, made by task first, which is runnable"
    )
    cluster.joins(a_worker("w1"))
    assert why(cluster, "first") == "it runs on worker w1, as attempt 1; given to it 0.0 s ago"
    cluster.failed("w1", first)
    assert why(cluster, "first") == "RUNTIME_ERROR: exit status 3"
    assert why(cluster, "third").startswith("DEPENDENCY_FAILED")


def test_how_long_a_copy_took_is_taken_note_of() -> None:
    cluster = two()
    cluster.worker_says("w1", CopyTimed(place_of("w2"), 10**6, 0.5))
    measured = cluster.machine.dispatcher.bandwidths
    assert measured.s_per_byte("host of w2", "host of w1") == 0.5e-6


def test_what_waits_for_memory_says_who_has_how_much() -> None:
    cluster = Cluster(a_worker("w1", slots=2, memory_bytes=3 << 30))
    large, small = (a_task(n, name=n, memory_bytes=m << 30) for n, m in (("a", 2), ("b", 2)))
    cluster.job(large, small, want=["a", "b"])
    assert answers.find_task(cluster.machine, cluster.job_of(), "b").state is TaskState.RUNNABLE
    told = explain.why(cluster.machine, cluster.machine.graph.tasks[small.id], cluster.now_s)
    assert told == [
        "it asks for 2 GiB of memory, which no worker has to spare now:",
        "worker w1: 1 GiB of 3 GiB to spare, 1 of 2 slots taken, 0 more given ahead",
        "1 tasks of its priority or a higher one wait so, itself included",
    ]


def test_a_task_that_failed_says_when_it_is_tried_again() -> None:
    cluster = one()
    task = a_task("a", retries=1, name="again")
    cluster.job(task, want=["a"])
    cluster.failed("w1", task)
    assert why(cluster, "again") == "attempt 1 came to nothing; it is tried again in 0.2 s"
    story = ask(cluster, "task", job=1, task="again")["story"]
    assert story == ["0.0 s ago: attempt 1 failed on worker w1: RUNTIME_ERROR: exit status 3"]


def test_a_task_for_which_there_is_no_room_says_who_has_it() -> None:
    cluster = one()
    tasks = [a_task(f"t{n}", name=f"n{n}", ordinal=n) for n in range(9)]
    cluster.job(*tasks, want=[f"t{n}" for n in range(9)])
    cluster.worker_says("w1", DiskQueued(2 * 10**9, 20.0))
    assert ", 1.863 GiB to pass through its disk (about 20 s)" in why(cluster, "n8")
    cluster.worker_says("w1", DiskQueued(0, 0.0))
    assert why(cluster, "n8").splitlines() == [
        "it could run, but every worker has as much as it can take:",
        f"worker w1: 1 of 1 slots taken, {cluster.slots_used('w1') - 1} more given ahead",
        f"{9 - cluster.slots_used('w1')} tasks of its priority or a higher one are in line, "
        "itself included",
    ]


def test_a_task_that_was_given_back_runs_elsewhere_and_nothing_is_held_against_it() -> None:
    cluster = one()
    tasks = [a_task(f"t{number}", ordinal=number) for number in range(2)]
    cluster.job(*tasks, want=["t0", "t1"])
    cluster.said("w1: run t0", "w1: run t1")
    cluster.joins(a_worker("w2"))
    cluster.said()
    cluster.passes(1.0)
    cluster.said("w1: give back t1")
    fault = TaskFault(RECALLED, "it never began")
    cluster.worker_says("w1", TaskReported(tasks[1].id, 1, (), fault, 0.0))
    cluster.said("w2: run t1 again (2)")
    assert not cluster.machine.blame
    assert cluster.slots_used("w1") == 1


def test_an_open_job_that_is_detached_ends_with_a_client_that_did_not_close_it() -> None:
    cluster = one()
    cluster.job(a_task("a"), want=["a"], open=True, detached=True)
    cluster.client_goes()
    cluster.passes(CLIENT_GRACE_S + 0.1)
    assert cluster.job_of().state is JobState.CANCELLING
    assert cluster.job_of().reason == "its client is gone"


def test_a_detached_job_that_is_closed_goes_on_without_its_client() -> None:
    cluster = one()
    cluster.job(a_task("a"), want=["a"], detached=True)
    cluster.client_goes()
    cluster.passes(CLIENT_GRACE_S + 0.1)
    assert cluster.job_of().state is JobState.ACTIVE


def test_a_job_that_made_something_of_an_error_cannot_be_mended_in_part() -> None:
    cluster = one()
    bad = a_task("bad")
    seer = a_task("list", inputs=["bad"], sees_errors=True, mentions=Mentions.INPUTS)
    cluster.job(bad, seer, want=["list", "bad"])
    cluster.failed("w1", bad)
    cluster.done("w1", seer)
    with pytest.raises(CannotRetryError, match="made its result from an error"):
        cluster.machine.retry_job(cluster.job_of(), cluster.now_s)


# --- objects that grow ----------------------------------------------------------------------------


def opened(spec: TaskSpec, worker: str, *, attempt: int = 1) -> StreamsOpened:
    place = frozenset((place_of(worker),))
    return StreamsOpened(spec.id, attempt, tuple(Stream(name, place) for name in spec.outputs))


class Reading(Cluster):
    """A task writes `c0` on w1; another reads that on w2, and writes `c1`, which a third one reads
    on w3. Whatever is not settled yet grows.
    """

    def __init__(self, **options: Any) -> None:
        names = ("w1", "w2", "w3")
        super().__init__(*(a_worker(name, executors=[name]) for name in names))
        self.joins(a_worker("busy", executors=names))  # could run them all, and has no room
        self.machine.workers["busy"].credit.limit = 0
        self.first = a_task("c0", executor="w1")
        self.second = a_task("c1", inputs=["c0"], executor="w2", **options)
        self.third = a_task("c2", inputs=["c1"], executor="w3")
        self.job(self.first, self.second, self.third, want=["c2"])
        self.worker_says("w1", opened(self.first, "w1"))
        self.worker_says("w2", opened(self.second, "w2"))
        self.said("w1: run c0", "w2: run c1", "w3: run c2")

    def reports(self) -> None:
        """The readers report that they are done; that counts for nothing yet."""
        self.done("w2", self.second, stored("c1", place_of("w2")))
        self.done("w3", self.third, stored("c2", place_of("w3")))
        self.said()

    def ref(self, name: str) -> Reference:
        return self.machine.graph.objects.reference(ObjectId(name))


def test_a_report_waits_for_the_end_of_what_was_read_and_frees_its_slot_at_once() -> None:
    cluster = Reading()
    cluster.reports()
    assert cluster.slots_used("w2") == cluster.slots_used("w3") == 0
    assert cluster.state(cluster.second) is cluster.state(cluster.third) is TaskState.ASSIGNED
    assert isinstance(cluster.ref("c1"), Stream)
    assert "is held until c0 is whole" in why(cluster, cluster.second.id)
    cluster.done("w1", cluster.first)
    cluster.said("client: c2 is there", "w2: drop c1", "client: completed")
    assert not cluster.machine.held


def test_a_reader_that_is_given_its_input_is_told_that_it_grows() -> None:
    cluster = Cluster(a_worker("w1"), a_worker("w2"))
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"])
    cluster.machine.outbox.clear()
    cluster.worker_says("w1", opened(first, "w1"))
    sent = [message for _, message in cluster.machine.outbox if isinstance(message, AssignTask)]
    assert [message.inputs for message in sent] == [opened(first, "w1").refs]


@pytest.mark.parametrize("end", ["recalled", "lost", "not to be had"])
def test_readers_are_stopped_before_what_they_read_is_made_again(end: str) -> None:
    cluster = Reading()
    stops, drops = ["w2: stop c1 (1)", "w3: stop c2 (1)"], ["w2: drop c0", "w3: drop c1"]
    if end == "lost":
        cluster.loses("w1")
    elif end == "not to be had":
        cluster.worker_says("w2", inputs_lost(cluster.second, place_of("w1")))
        del stops[0]  # it has ended by itself
    else:
        fault = TaskFault(RECALLED, "")
        cluster.worker_says("w1", TaskReported(cluster.first.id, 1, (), fault, 0.0))
    cluster.said(*stops, *drops, *(["w1: run c0 again (2)"] if end == "recalled" else []))
    assert cluster.state(cluster.second) is cluster.state(cluster.third) is TaskState.WAITING


def test_what_nobody_reads_any_more_is_not_followed_when_it_breaks() -> None:
    cluster = Reading()
    cluster.worker_says("w2", inputs_lost(cluster.second, place_of("w4")))
    cluster.lines()
    cluster.loses("w1")
    assert "w2: drop c0" in cluster.lines()


def test_a_reader_that_says_in_the_same_turn_that_it_has_all_keeps_it() -> None:
    cluster = Reading()
    cluster.machine.worker_lost("w1", "its connection ended", cluster.now_s)
    whole = ObjectsStored((stored("c0", place_of("w2")),))
    cluster.machine.worker_said("w2", whole, cluster.now_s)
    cluster.end_turn()
    assert [line for line in cluster.lines() if "drop" in line] == ["w3: drop c1"]


@pytest.mark.parametrize("end", ["recalled", "lost", "failed", "cancelled"])
def test_a_report_that_was_held_is_dropped_with_what_it_made(end: str) -> None:
    cluster = Reading()
    cluster.reports()
    if end == "recalled":
        fault = TaskFault(RECALLED, "")
        cluster.worker_says("w1", TaskReported(cluster.first.id, 1, (), fault, 0.0))
    elif end == "lost":
        cluster.loses("w1")
    elif end == "failed":
        cluster.failed("w1", cluster.first)
    else:
        cluster.says(CancelJob(JOB, "the user said so"))
    drops = [line for line in cluster.lines() if "drop" in line]
    assert sorted(drops) == ["w2: drop c0", "w2: drop c1", "w3: drop c1", "w3: drop c2"]
    assert not cluster.machine.held
    assert cluster.state(cluster.second) is not TaskState.ASSIGNED
    assert cluster.slots_used("w2") == 0


def test_a_reader_that_was_stopped_is_not_blamed_and_its_late_report_not_believed() -> None:
    cluster = Reading()
    cluster.loses("w1")
    cluster.lines()
    cluster.failed("w2", cluster.second)
    cluster.done("w3", cluster.third, stored("c2", place_of("w3")))
    cluster.said("w3: drop c2")
    assert cluster.state(cluster.second) is cluster.state(cluster.third) is TaskState.WAITING
    cluster.joins(a_worker("w4", executors=["w1"]))
    cluster.said("w4: run c0 again (2)")
    cluster.done("w4", cluster.first, attempt=2)
    cluster.done("w2", cluster.second, attempt=2)
    cluster.done("w3", cluster.third, attempt=2)
    cluster.said(
        "w2: run c1 again (2)", "w3: run c2 again (2)", "client: c2 is there", "client: completed"
    )


def test_a_report_in_the_same_turn_as_the_break_is_not_believed() -> None:
    cluster = Reading()
    fault = TaskFault(RECALLED, "")
    made = (stored("c1", place_of("w2")),)
    cluster.machine.worker_said(
        "w1", TaskReported(cluster.first.id, 1, (), fault, 0.0), cluster.now_s
    )
    cluster.worker_says("w2", TaskReported(cluster.second.id, 1, made, None, 0.1))
    assert cluster.state(cluster.second) is TaskState.WAITING
    assert "w2: drop c1" in cluster.lines()


def test_a_reader_whose_worker_is_lost_while_its_report_is_held_runs_again() -> None:
    cluster = Reading()
    cluster.reports()
    cluster.loses("w2")
    cluster.said("w3: drop c2", "w3: drop c1")
    assert cluster.state(cluster.second) is TaskState.RUNNABLE
    assert not cluster.machine.blame
    cluster.joins(a_worker("w5", executors=["w2"]))
    cluster.said("w5: run c1 again (2)")


def test_readers_of_what_failed_fail_unless_they_see_errors() -> None:
    cluster = Reading(sees_errors=True)
    cluster.failed("w1", cluster.first)
    cluster.said(
        "w2: stop c1 (1)", "w3: stop c2 (1)", "w2: drop c0", "w3: drop c1", "w2: run c1 again (2)"
    )
    cluster = Reading()
    cluster.failed("w1", cluster.first)
    cluster.said(
        "w2: stop c1 (1)",
        "w3: stop c2 (1)",
        "w2: drop c0",
        "w3: drop c1",
        "client: c2 is DEPENDENCY_FAILED",
        "client: failed: DEPENDENCY_FAILED: its input c0 failed (RUNTIME_ERROR): exit status 3",
    )


@pytest.mark.parametrize("end", ["whole", "whole and small", "broken"])
def test_a_copy_of_what_grows_settles_nothing_before_its_maker(end: str) -> None:
    cluster = Reading()
    cluster.worker_says("w2", ObjectsStored((stored("c0", place_of("w2")),)))
    cluster.said()
    assert isinstance(cluster.ref("c0"), Stream)
    if end == "broken":
        cluster.loses("w1")
        assert "w2: drop c0" in cluster.lines()
    elif end == "whole and small":
        cluster.done("w1", cluster.first, inline("c0"))
        cluster.said("w2: drop c0")
    else:
        cluster.done("w1", cluster.first, stored("c0", place_of("w1")))
        cluster.said()
        assert cluster.ref("c0") == stored("c0", place_of("w1"), place_of("w2"))


def test_an_input_that_came_to_be_otherwise_is_nobodys_fault() -> None:
    cluster = Reading()
    cluster.done("w1", cluster.first, inline("c0"))
    cluster.worker_says("w2", inputs_lost(cluster.second, place_of("w1")))
    cluster.said("w3: stop c2 (1)", "w3: drop c1", "w2: run c1 again (2)")
    assert not any(blame.missing_inputs for blame in cluster.machine.blame.values())


# --- processes that wait --------------------------------------------------------------------------


class Waiting(Cluster):
    """A task left a process on w1, and a continuation that makes its output with it."""

    def __init__(self, *, keep: bool = False) -> None:
        super().__init__(a_worker("w1"), a_worker("w2"))
        self.first = a_task("out", mentions=Mentions.ANYTHING)
        self.process = ObjectId(f"{self.first.id}:fixed:0")
        self.rest = a_task(
            "out", inputs=[self.process], parent=self.first, mentions=Mentions.ANYTHING
        )
        keeping = a_job_spec(keep=keep)
        self.says(SubmitJob(keeping), AddTask(self.first, ()), WantObjects(JOB, self.first.outputs))
        self.said("w1: run out")

    def wait(self, worker: str = "w1", attempt: int = 1) -> None:
        fixed = (Fixed(self.process, place_of(worker)),)
        self.worker_says(
            worker,
            SpawnTask(self.rest, fixed, attempt),
            TaskReported(self.first.id, attempt, fixed, None, 0.01),
        )


@pytest.mark.parametrize("keep", [False, True])
def test_what_goes_on_with_a_process_runs_there_and_the_process_ends_with_it(keep: bool) -> None:
    cluster = Waiting(keep=keep)
    cluster.wait()
    cluster.said("w1: run out")
    cluster.done("w1", cluster.rest)
    cluster.said("client: out is there", f"w1: drop {cluster.process}")


def test_what_goes_on_with_a_process_waits_for_room_there_and_goes_nowhere_else() -> None:
    cluster = Waiting()
    worker = cluster.machine.workers["w1"]
    worker.slots_used += 10
    cluster.wait()
    cluster.passes(10)
    cluster.said()
    assert list(worker.bound) == [cluster.machine.graph.tasks[cluster.rest.id]]
    assert "it waits for room on worker w1" in why(cluster, cluster.rest.id)
    worker.slots_used -= 10
    cluster.passes(1)
    cluster.said("w1: run out")
    worker.slots_used += 10  # it stands in line there, and is not asked for
    cluster.passes(10)
    cluster.said()


def test_a_process_whose_worker_is_lost_is_made_again_elsewhere() -> None:
    cluster = Waiting()
    cluster.wait()
    cluster.said("w1: run out")
    cluster.loses("w1")
    cluster.said("w2: run out again (2)")
    cluster.wait("w2", attempt=2)
    cluster.said("w2: run out again (2)")
    cluster.done("w2", cluster.rest, attempt=2)
    cluster.said("client: out is there", f"w2: drop {cluster.process}")


def test_a_task_that_does_not_wait_the_second_time_needs_no_continuation() -> None:
    cluster = Waiting()
    cluster.wait()
    cluster.loses("w1")
    cluster.said("w1: run out", "w2: run out again (2)")
    cluster.done("w2", cluster.first, attempt=2)
    cluster.said("client: out is there")
    assert cluster.state(cluster.rest) is TaskState.DORMANT


def test_a_second_process_of_the_same_name_is_ended() -> None:
    cluster = Waiting()
    cluster.wait()
    cluster.said("w1: run out")
    graph = cluster.machine.graph
    task = graph.tasks[cluster.first.id]
    graph.reopen(task)
    graph.make_runnable(task)
    cluster.end_turn()
    cluster.said("w2: run out again (2)")
    cluster.wait("w2", attempt=2)
    cluster.said(f"w2: drop {cluster.process}")


@pytest.mark.parametrize("end", ["cancelled", "failed"])
def test_a_process_ends_when_its_job_does(end: str) -> None:
    cluster = Waiting()
    cluster.machine.workers["w1"].slots_used += 10
    cluster.wait()
    if end == "cancelled":
        cluster.says(CancelJob(JOB, "enough"))
    else:
        cluster.says(ReleaseObjects(JOB, cluster.first.outputs), CloseJob(JOB))
    assert f"w1: drop {cluster.process}" in cluster.lines()


# --- what workers let run by themselves -----------------------------------------------------------


def delegating(*workers: WorkerFacts) -> Cluster:
    return Cluster(*(workers or (a_worker("w1"), a_worker("w2"))), delegates=True)


def test_successors_follow_their_maker_and_each_is_recorded() -> None:
    cluster = delegating()
    first, second, third = a_chain(3)
    cluster.job(first, second, third, want=["c2"])
    cluster.said("w1: run c0", "w1: run c1", "w1: run c2")
    assert cluster.state(second) is cluster.state(third) is TaskState.WAITING
    assert cluster.slots_used("w1") == 1
    cluster.done("w1", first)
    cluster.said()
    assert cluster.state(second) is TaskState.ASSIGNED
    assert cluster.slots_used("w1") == 1
    cluster.worker_says(
        "w1",
        *(
            TaskReported(task.id, 1, (inline(task.outputs[0]),), None, 0.01)
            for task in (second, third)
        ),
    )
    cluster.said("client: c2 is there", "client: completed")
    assert cluster.slots_used("w1") == 0


def test_what_is_still_to_be_made_is_sent_as_a_future() -> None:
    cluster = delegating()
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"])
    sent = [message for _, message in cluster.machine.outbox if isinstance(message, AssignTask)]
    assert [message.inputs for message in sent] == [(), (Future(ObjectId("c0")),)]


def test_a_switch_turns_it_off() -> None:
    cluster = two()
    cluster.job(*a_chain(2), want=["c1"])
    cluster.said("w1: run c0")


def test_a_worker_has_a_bounded_number_ahead_and_gets_more() -> None:
    cluster = delegating(a_worker("w1"))
    chain = a_chain(200)
    cluster.job(*chain, want=["c199"])
    assert len(cluster.lines()) == 1 + AHEAD_MAX
    for task in chain[: AHEAD_MAX // 2]:
        cluster.done("w1", task)
    assert len(cluster.lines()) == AHEAD_MAX // 2
    for task in chain[AHEAD_MAX // 2 :]:
        cluster.done("w1", task)
    assert cluster.job_of().state is JobState.COMPLETED


def test_no_more_follow_a_task_than_could_run_at_once() -> None:
    cluster = delegating(a_worker("w1", slots=2), a_worker("w2", slots=2))
    split = a_task("split")
    parts = [a_task(f"part{n}", inputs=["split"], ordinal=n) for n in range(5)]
    cluster.job(split, *parts, want=[part.outputs[0] for part in parts])
    cluster.said("w1: run split", "w1: run part0", "w1: run part1")


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(a_task("b", inputs=["c0", "elsewhere"]), id="made-elsewhere"),
        pytest.param(a_task("b", inputs=["c0"], executor="rare"), id="no-executor"),
        pytest.param(a_task("b", inputs=["c0"], slots=2), id="no-slots"),
        pytest.param(a_task("b", inputs=["c0", "large"]), id="large-input-elsewhere"),
        pytest.param(a_task("b", inputs=["c0", *map(str, range(20))]), id="many-inputs"),
    ],
)
def test_what_does_not_fit_does_not_follow(other: TaskSpec) -> None:
    cluster = Cluster(delegates=True)
    cluster.joins(a_worker("w1"))
    first = a_chain(1)[0]
    elsewhere = a_task("elsewhere", executor="rare")
    large = stored("large", place_of("w2"), size_bytes=10**9)
    values = [inline(str(n)) for n in range(20)]
    cluster.says(SubmitJob(a_job_spec()), AddTask(first, ()), AddTask(elsewhere, ()))
    cluster.says(AddTask(other, (large, *values)))
    cluster.joins(a_worker("w2", executors=["rare"], slots=2))
    cluster.says(WantObjects(JOB, (ObjectId("b"),)))
    assert "w1: run c0" in cluster.lines()
    assert cluster.machine.graph.tasks[other.id] not in cluster.machine.ahead.tasks


@pytest.mark.parametrize(
    "end", ["failed", "recalled", "lost", "released", "cancelled", "delegated"]
)
def test_who_went_ahead_is_called_off_when_anything_goes_otherwise(end: str) -> None:
    cluster = delegating()
    first, second, third = a_chain(3)
    cluster.job(first, second, third, want=["c2"], open=True)
    cluster.said("w1: run c0", "w1: run c1", "w1: run c2")
    stops = ["w1: stop c1 (1)", "w1: stop c2 (1)"]
    if end == "failed":
        cluster.failed("w1", first)
        cluster.said(*stops, "client: c2 is DEPENDENCY_FAILED")
    elif end == "recalled":
        fault = TaskFault(RECALLED, "")
        cluster.worker_says("w1", TaskReported(first.id, 1, (), fault, 0.0))
        assert cluster.lines()[:2] == stops
        return
    elif end == "lost":
        cluster.loses("w1")
        cluster.said("w2: run c0 again (2)", "w2: run c1 again (2)", "w2: run c2 again (2)")
        return
    elif end == "released":
        cluster.says(ReleaseObjects(JOB, third.outputs))
        cluster.said("w1: stop c0 (1)", *stops)
    elif end == "cancelled":
        cluster.says(CancelJob(JOB, "enough"))
        assert cluster.lines() == [*stops, "w1: stop c0 (1)", "client: c2 is CANCELLED"]
        assert cluster.job_of().state is JobState.CANCELLING
        for task in (second, third, first):
            cluster.failed("w1", task, "CANCELLED")
        cluster.said("client: cancelled: enough")
    else:
        child = a_task("c0", inputs=["never"], parent=first)
        cluster.worker_says("w1", SpawnTask(child, (), 1))
        cluster.said(*stops)
    assert not cluster.machine.ahead.tasks


def test_a_slot_of_who_was_called_off_is_free_when_it_says_so() -> None:
    cluster = delegating(a_worker("w1"))
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"], open=True)
    cluster.says(ReleaseObjects(JOB, second.outputs))
    cluster.said("w1: run c0", "w1: run c1", "w1: stop c0 (1)", "w1: stop c1 (1)")
    assert cluster.slots_used("w1") == 2
    cluster.done("w1", first)
    cluster.failed("w1", second, "CANCELLED")
    assert cluster.slots_used("w1") == 0
    cluster.says(WantObjects(JOB, second.outputs))
    cluster.said("w1: run c0 again (2)", "w1: run c1 again (2)")


def test_who_went_ahead_reads_what_grows_there_and_what_follows_it_waits() -> None:
    cluster = delegating(a_worker("w1", slots=2))
    first, second, third = a_chain(3)
    cluster.job(first, second, third, want=["c2"])
    cluster.said("w1: run c0", "w1: run c1", "w1: run c2")
    cluster.worker_says("w1", opened(first, "w1"))
    cluster.said("w1: stop c2 (1)")
    cluster.done("w1", second)
    cluster.said()
    cluster.done("w1", first)
    cluster.said("w1: run c2 again (2)")


def test_who_went_ahead_runs_elsewhere_than_where_what_it_reads_grows() -> None:
    cluster = delegating()
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"])
    cluster.said("w1: run c0", "w1: run c1")
    cluster.worker_says("w1", opened(first, "w2"))
    cluster.said("w1: stop c1 (1)", "w2: run c1 again (2)")


def test_a_worker_may_give_back_what_went_ahead() -> None:
    cluster = delegating(a_worker("w1"))
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"])
    cluster.failed("w1", second, RECALLED)
    assert not cluster.machine.ahead.tasks
    cluster.said("w1: run c0", "w1: run c1")
    cluster.done("w1", first)
    cluster.said("w1: run c1 again (2)")


def test_an_input_that_another_made_calls_off_who_waits_for_it_elsewhere() -> None:
    cluster = delegating(a_worker("w1"))
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"])
    cluster.joins(a_worker("w2"))
    cluster.said("w1: run c0", "w1: run c1")
    cluster.worker_says("w2", ObjectsStored((stored("c0", place_of("w2")),)))
    assert cluster.lines()[:1] == ["w1: stop c1 (1)"]


# --- children that begin where their parent runs --------------------------------------------------


def spawning(*, delegates: bool = True) -> tuple[Cluster, TaskSpec, TaskSpec]:
    """A task that delegates its output to a child runs on w1."""
    cluster = Cluster(a_worker("w1", slots=3), delegates=delegates)
    parent = a_task("a", mentions=Mentions.ANYTHING)
    child = a_task("a", parent=parent)
    cluster.job(parent, want=["a"])
    cluster.said("w1: run a")
    return cluster, parent, child


def test_a_child_that_is_needed_goes_on_where_it_was_begun() -> None:
    cluster, parent, child = spawning()
    cluster.worker_says("w1", SpawnTask(child, (), 1, begun=True))
    cluster.said()
    assert cluster.state(child) is TaskState.ASSIGNED
    assert cluster.slots_used("w1") == 2
    cluster.done("w1", child, attempt=0)
    cluster.said("client: a is there", "client: completed")
    cluster.worker_says("w1", TaskReported(parent.id, 1, (), None, 0.1))
    assert cluster.slots_used("w1") == 0


def test_a_child_is_needed_if_it_is_at_the_end_of_the_turn() -> None:
    cluster, parent, _ = spawning()
    part = a_task("part", parent=parent, ordinal=1)
    whole = a_task("a", inputs=["part"], parent=parent, ordinal=2)
    inner = a_task("inner", parent=part, ordinal=3)
    cluster.worker_says(
        "w1",
        SpawnTask(part, (), 1, begun=True),
        SpawnTask(inner, (), 0, begun=True),
        TaskReported(inner.id, 0, (inline("inner"),), None, 0.1),
        TaskReported(part.id, 0, (inline("part"),), None, 0.1),
        SpawnTask(whole, (), 1),
        TaskReported(parent.id, 1, (), None, 0.1),
    )
    assert cluster.state(part) is TaskState.DONE
    assert cluster.state(inner) is TaskState.DORMANT
    cluster.said("w1: stop inner (0)", "w1: run a")


@pytest.mark.parametrize("reason", ["not needed", "known", "switched off", "parent superseded"])
def test_a_child_that_must_not_begin_is_called_off(reason: str) -> None:
    cluster, parent, child = spawning(delegates=reason != "switched off")
    attempt = 1
    if reason == "not needed":
        child = a_task("aside", parent=parent)
    elif reason == "known":
        cluster.worker_says("w1", SpawnTask(child, (), 1))
        cluster.said("w1: run a")
    elif reason == "parent superseded":
        attempt = 7
    cluster.worker_says("w1", SpawnTask(child, (), attempt, begun=True))
    lines = cluster.lines()
    assert CancelTask(child.id, 0) in cluster.told
    assert lines[1:] == (["w1: run a"] if reason == "switched off" else [])
    cluster.worker_says("w1", TaskReported(child.id, 0, (inline("a"),), None, 0.1))
    assert cluster.job_of().unsettled == 1


def test_a_child_that_was_begun_and_whose_worker_is_lost_runs_again() -> None:
    cluster, _, child = spawning()
    cluster.worker_says("w1", SpawnTask(child, (), 1, begun=True))
    cluster.loses("w1")
    cluster.joins(a_worker("w2"))
    cluster.said("w2: run a")


def test_a_child_that_is_refused_fails_its_parent_and_stops() -> None:
    cluster, parent, child = spawning()
    cluster.worker_says("w1", SpawnTask(child._replace(digest="0" * 32), (), 1, begun=True))
    assert cluster.state(parent) is TaskState.FAILED
    cluster.lines()
    assert CancelTask(child.id, 0) in cluster.told


# --- children that run within their parents -------------------------------------------------------


def within(child: TaskSpec, attempt: int = 1) -> SpawnTask:
    return SpawnTask(child, (), attempt, begun=True, wanted=True)


def test_a_child_that_runs_within_its_parent_counts_and_takes_no_slot() -> None:
    cluster, parent, _ = spawning()
    part = a_task("part", parent=parent, ordinal=1)
    inner = a_task("inner", parent=part, ordinal=2)
    cluster.worker_says("w1", within(part), within(inner, 0))
    cluster.said()
    assert cluster.state(part) is cluster.state(inner) is TaskState.ASSIGNED
    assert cluster.slots_used("w1") == 1
    cluster.done("w1", inner, attempt=0)
    cluster.done("w1", part, attempt=0)
    cluster.said()
    assert cluster.state(part) is cluster.state(inner) is TaskState.DONE
    whole = a_task("a", inputs=["part"], parent=parent, ordinal=2)
    cluster.worker_says("w1", SpawnTask(whole, (), 1), TaskReported(parent.id, 1, (), None, 0.1))
    cluster.said("w1: run a")
    assert cluster.slots_used("w1") == 1


def test_what_a_running_task_needs_runs_elsewhere_meanwhile() -> None:
    cluster, parent, _ = spawning()
    cluster.joins(a_worker("w2"))
    part = a_task("part", parent=parent, ordinal=1)
    cluster.worker_says("w1", SpawnTask(part, (), 1, wanted=True))
    assert cluster.state(part) is TaskState.ASSIGNED
    cluster.lines()
    cluster.worker_says("w1", TaskReported(parent.id, 1, (inline("a"),), None, 0.1))
    cluster.lines()
    assert cluster.state(part) is TaskState.DORMANT, "nobody needs it any more"
    assert CancelTask(part.id, 1) in cluster.told


def test_a_child_that_ran_within_and_was_known_has_its_parent_begin_anew() -> None:
    """It would run twice, and what else its parent made of it might be lost."""
    cluster, parent, _ = spawning()
    part = a_task("part", parent=parent, ordinal=1)
    cluster.worker_says("w1", SpawnTask(part, (), 1))
    cluster.worker_says("w1", within(part))
    cluster.lines()
    assert CancelTask(part.id, 0) in cluster.told
    assert CancelTask(parent.id, 1) in cluster.told
    assert cluster.state(parent) in (TaskState.RUNNABLE, TaskState.ASSIGNED)
    assert parent.id not in cluster.machine.blame
    stopped = TaskFault("CANCELLED", "")
    cluster.worker_says("w1", TaskReported(part.id, 0, (), stopped, 0.1))
    cluster.worker_says("w1", TaskReported(parent.id, 1, (), stopped, 0.1))
    assert cluster.machine.graph.tasks[parent.id].attempt == 2
    assert cluster.slots_used("w1") == 1


def test_who_is_given_back_with_its_children_runs_again() -> None:
    cluster, parent, _ = spawning()
    part = a_task("part", parent=parent, ordinal=1)
    cluster.worker_says("w1", within(part))
    cluster.worker_says(
        "w1",
        TaskReported(parent.id, 1, (), TaskFault(RECALLED, ""), 0.1),
        TaskReported(part.id, 0, (), TaskFault("RUNTIME_ERROR", "its own"), 0.1),
    )
    assert cluster.state(part) is TaskState.FAILED
    assert cluster.machine.graph.tasks[parent.id].attempt == 2
    assert cluster.slots_used("w1") == 1


def test_a_worker_is_lost_with_all_that_ran_within_each_other() -> None:
    cluster, parent, _ = spawning()
    part = a_task("part", parent=parent, ordinal=1)
    inner = a_task("inner", parent=part, ordinal=2)
    cluster.worker_says("w1", within(part), within(inner, 0))
    cluster.loses("w1")
    assert cluster.state(part) is cluster.state(inner) is TaskState.DORMANT
    for task in (parent, part, inner):
        assert cluster.machine.blame[task.id].worker_losses == 1
    cluster.joins(a_worker("w2"))
    assert cluster.machine.graph.tasks[parent.id].attempt == 2


# --- what a task did not promise ------------------------------------------------------------------


def test_what_a_task_published_unasked_is_made_again_when_its_worker_is_lost() -> None:
    cluster = two()
    maker = a_task("a", mentions=Mentions.ANYTHING)
    extra = ObjectId(f"{maker.id}:pub:0")
    reader = a_task("b", inputs=[extra], parent=maker)
    cluster.says(
        SubmitJob(a_job_spec()),
        AddTask(maker, ()),
        WantObjects(JOB, (ObjectId("a"), ObjectId("b"))),
    )
    cluster.said("w1: run a")
    made = stored(extra, place_of("w1"), size_bytes=10**8)
    cluster.worker_says("w1", SpawnTask(reader, (made,), 1))
    cluster.said("w1: run b")
    assert cluster.state(maker) is TaskState.ASSIGNED
    cluster.worker_says("w1", TaskReported(maker.id, 1, (inline("a"), made), None, 0.1))
    cluster.said("client: a is there")
    cluster.loses("w1")
    cluster.said("w2: run a again (2)")
    assert cluster.state(reader) is TaskState.WAITING


def test_what_a_superseded_attempt_published_unasked_is_deleted() -> None:
    cluster = two()
    maker = a_task("a")
    cluster.job(maker, want=["a"], open=True)
    cluster.says(ReleaseObjects(JOB, maker.outputs))
    cluster.said("w1: run a", "w1: stop a (1)")
    extra = ObjectId(f"{maker.id}:pub:0")
    cluster.done("w1", maker, stored("a", place_of("w1")), stored(extra, place_of("w1")))
    cluster.said(f"w1: drop a {extra}")


def test_a_copy_that_cannot_be_read_where_it_is_made_anew_is_deleted_if_it_is_not_made() -> None:
    cluster = one(slots=3)
    maker = a_task("a", "b")
    readers = [a_task("r1", inputs=["b"]), a_task("r2", inputs=["a"])]
    cluster.job(maker, *readers, want=["r1", "r2"])
    here = place_of("w1")
    cluster.done("w1", maker, stored("a", here), stored("b", here))
    cluster.lines()
    cluster.worker_says("w1", InputsLost(readers[0].id, 1, ((ObjectId("b"), here),), "gone"))
    cluster.said("w1: drop b", "w1: run a again (2)")
    cluster.worker_says("w1", InputsLost(readers[1].id, 1, ((ObjectId("a"), here),), "gone"))
    cluster.said()
    cluster.worker_says("w1", TaskReported(maker.id, 2, (), TaskFault(RECALLED, "no room"), 0.0))
    cluster.said("w1: drop a", "w1: run a again (3)")


# --- choices --------------------------------------------------------------------------------------


EITHER = a_task("either", any_of=["a", "b"])


def assigned_inputs(cluster: Cluster, spec: TaskSpec) -> tuple[Reference, ...]:
    told = [m for m in cluster.told if isinstance(m, AssignTask) and m.spec == spec]
    return told[-1].inputs


def test_who_chooses_is_given_what_is_there_and_the_rest_is_stopped_at_its_end() -> None:
    cluster = two()
    a, b = a_task("a"), a_task("b", ordinal=1)
    cluster.job(a, b, EITHER, want=["either"])
    assert sorted(cluster.lines()) == ["w1: run b", "w2: run a"]
    at_w1 = stored("b", place_of("w1"))
    cluster.done("w1", b, at_w1)
    cluster.said("w1: run either")
    assert assigned_inputs(cluster, EITHER) == (Future(ObjectId("a")), at_w1)
    cluster.done("w1", EITHER)
    assert "w2: stop a (1)" in cluster.lines()


def test_who_cannot_get_what_it_chose_waits_for_any_again() -> None:
    cluster = two()
    a, b = a_task("a"), a_task("b", ordinal=1)
    cluster.job(a, b, EITHER, want=["either"])
    cluster.done("w1", b, stored("b", place_of("w1")))
    cluster.lines()
    losses = ((ObjectId("b"), place_of("w1")),)
    cluster.worker_says("w1", InputsLost(EITHER.id, 1, losses, "it is gone"))
    cluster.said("w1: drop b", "w1: run b again (2)")
    cluster.done("w2", a)
    cluster.said("w2: run either again (2)")
    assert assigned_inputs(cluster, EITHER) == (inline("a"), Future(ObjectId("b")))


def test_who_chooses_is_not_sent_ahead_but_what_follows_it_is() -> None:
    cluster = Cluster(a_worker("w1", slots=2), delegates=True)
    a, last = a_task("a"), a_task("last", inputs=["either"])
    cluster.job(a, a_task("b", ordinal=1), EITHER, last, want=["last"])
    assert sorted(cluster.lines()) == ["w1: run a", "w1: run b"]
    cluster.done("w1", a)
    cluster.said("w1: run either", "w1: run last")


def test_who_chooses_says_what_it_waits_for() -> None:
    cluster = Cluster()
    first = a_task("a", name="first")
    choice = a_task("either", inputs=["n"], any_of=["a", "b"], name="choice")
    bad = a_task("b", slots=9)
    cluster.job(first, a_task("n", name="other"), bad, choice, want=["either"])
    assert why(cluster, "choice") == (
        "it waits for n, made by task other, which is runnable\n"
        "it waits for any of 2 objects:\n"
        "a, made by task first, which is runnable\n"
        f"b, made by task {bad.id}, which is runnable"
    )
    cluster.joins(a_worker("w1"))
    lines = why(cluster, "choice").splitlines()
    assert lines[-1] == "b, which has failed"
