"""Builds jobs, tasks, references and workers in one line each, for tests and the simulator.

Tasks are well-formed (`check_task` accepts them) and named by their outputs: `a_task("total",
inputs=["a", "b"])` produces `total` from `a` and `b`, and its id depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ciel.core.ids import JobId, ObjectId, child_id, job_output_id, root_task_id
from ciel.core.jobs import Job, JobSpec
from ciel.core.naming import arguments_digest
from ciel.core.offers.labels import read_label
from ciel.core.offers.resources import read_offer
from ciel.core.refs import Concrete, Failure, Value
from ciel.core.scheduling import DEFAULT_SCHEDULING, Scheduling
from ciel.core.tasks import Mentions, Needs, TaskSpec
from ciel.master.state.workers import WorkerFacts

JOB = JobId("job")
EXECUTOR = "stdinout"


# --- jobs -----------------------------------------------------------------------------------------


def a_job_spec(
    job: str = JOB, *, open: bool = True, detached: bool = False, keep: bool = False,
    scheduling: Scheduling = DEFAULT_SCHEDULING,
) -> JobSpec:  # fmt: skip
    """Describe a job; open by default."""
    return JobSpec(JobId(job), "", open, detached, keep, scheduling)


def a_job(
    job: str = JOB, *, open: bool = True, detached: bool = False, keep: bool = False,
    scheduling: Scheduling = DEFAULT_SCHEDULING,
) -> Job:  # fmt: skip
    """Make a job in the form in which the master keeps it."""
    spec = a_job_spec(job, open=open, detached=detached, keep=keep, scheduling=scheduling)
    return Job(spec, 1, 0.0)


# --- tasks ----------------------------------------------------------------------------------------


def a_task(
    *outputs: str,
    inputs: Iterable[str] = (),
    any_of: Iterable[str] = (),
    job: str = JOB,
    parent: TaskSpec | None = None,
    ordinal: int = 0,
    executor: str = EXECUTOR,
    sees_errors: bool = False,
    mentions: Mentions = Mentions.NOTHING,
    slots: int = 1,
    priority: int = 0,
    retries: int = 0,
    memory_bytes: int = 0,
    delay_s: float = 0.0,
    name: str = "",
    salt: str = "",
) -> TaskSpec:
    """Make a task of `job`, or of the job of its `parent`, that produces `outputs` from `inputs`
    and at least one of `any_of`.

    Equal tasks get different ids by `ordinal` (the n-th child of its parent) or by `salt` (part of
    the arguments).
    """
    made = tuple([ObjectId(output) for output in outputs])
    alternatives = [ObjectId(item) for item in any_of]
    read = (*[ObjectId(item) for item in inputs], *alternatives)
    job_id = job if parent is None else parent.job
    parent_id = job_id if parent is None else parent.id
    digest = arguments_digest(executor, [*made, salt], read)
    needs = Needs(slots, memory_bytes, priority, retries=retries, delay_s=delay_s)
    return TaskSpec(
        child_id(parent_id, ordinal, digest), JobId(job_id), parent_id, ordinal, digest, executor,
        read, made, needs, sees_errors, mentions, name, b"{}", len(alternatives),
    )  # fmt: skip


def a_root_task(job: str = JOB, *, executor: str = EXECUTOR) -> TaskSpec:
    """Make the first task of a job that starts from a package; it produces the job's output."""
    output = job_output_id(JobId(job))
    task = a_task(output, job=job, executor=executor, mentions=Mentions.ANYTHING)
    return task._replace(id=root_task_id(job), ordinal=-1, digest="")


def a_chain(length: int, *, job: str = JOB, start: Sequence[str] = ()) -> list[TaskSpec]:
    """Make tasks that produce `c0` … `c<length-1>`. Each reads the output of the previous task;
    the first one reads `start`.
    """
    tasks: list[TaskSpec] = []
    inputs = tuple(start)
    for index in range(length):
        tasks.append(a_task(f"c{index}", inputs=inputs, job=job, ordinal=index))
        inputs = (f"c{index}",)
    return tasks


def a_fan(width: int, *, job: str = JOB, total: str = "total") -> list[TaskSpec]:
    """Make tasks that produce `leaf0` … `leaf<width-1>`, and a task that produces `total` from
    them.
    """
    leaves = [a_task(f"leaf{index}", job=job, ordinal=index) for index in range(width)]
    names = [leaf.outputs[0] for leaf in leaves]
    return [*leaves, a_task(total, inputs=names, job=job, ordinal=width)]


# --- references -----------------------------------------------------------------------------------


def stored(object_id: str, *places: str, size_bytes: int = 5000) -> Concrete:
    """Return a reference to an object that is stored at `places`."""
    return Concrete(ObjectId(object_id), size_bytes, frozenset(places))


def inline(object_id: str, content: bytes = b"1") -> Value:
    """Return a reference with the content of an object."""
    return Value.of(ObjectId(object_id), content)


def failed(object_id: str, reason: str = "RUNTIME_EXCEPTION", details: str = "no luck") -> Failure:
    """Return a reference to an object whose task failed."""
    return Failure(ObjectId(object_id), reason, details)


# --- workers --------------------------------------------------------------------------------------


def a_worker(
    worker: str,
    *,
    slots: int = 1,
    executors: Iterable[str] = (EXECUTOR,),
    host: str = "",
    netloc: str = "",
    memory_bytes: int = 0,
    resources: str = "",
    labels: str = "",
) -> WorkerFacts:
    """Describe a worker at `<worker>:8001`; by default no other worker is on its host.

    `resources` and `labels`: as the options of a worker, separated by spaces.
    """
    return WorkerFacts(
        worker, netloc or place_of(worker), host or f"host of {worker}", slots,
        frozenset(executors), memory_bytes=memory_bytes,
        resources=tuple([read_offer(text) for text in resources.split()]),
        labels=dict([read_label(text) for text in labels.split()]),
    )  # fmt: skip


def place_of(worker: str) -> str:
    """Return the address of a worker of `a_worker`."""
    return f"{worker}:8001"
