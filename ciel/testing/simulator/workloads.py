"""Draws random work whose correct results are known.

Programs are functions: the outputs, children and delegations of a program depend only on its task
and the contents of its needed inputs (any-of inputs only decide whether it runs). So `Truth` can
evaluate a graph directly, and knows the content of every object. A plan contains the messages of
one client with their times; a `FakeClient` sends them, and repeats them after a lost connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from random import Random
from typing import Any, NamedTuple

from ciel.core.events import (
    AddTask,
    CancelJob,
    CloseJob,
    Message,
    ReleaseObjects,
    SubmitJob,
    TaskFault,
    WantObjects,
)
from ciel.core.ids import JobId, ObjectId
from ciel.core.jobs import JobSpec
from ciel.core.offers.resources import read_amounts, read_offer
from ciel.core.refs import Fixed, Future, Reference, Value
from ciel.core.scheduling import (
    DEFAULT_SCHEDULING,
    LOCALITY,
    POLICIES,
    Scheduling,
    read_scheduling,
)
from ciel.core.tasks import WORK_DISK, Mentions, Needs, TaskSpec
from ciel.testing.simulator.options import MEMORY, Options
from ciel.wire.descriptors import make_task, read_arguments

EXECUTOR = "pretend"
TIME_LIMIT_S = 0.5
DELAYED_SHARE = 0.1
DISKS = (WORK_DISK, "/data")
"""The share of tasks with a delay, of up to a tenth of a second."""
NOT_HERE = b"(an error)"
PROCESS = b"(a process)"
HEALING_GROWTH_FAILS_SHARE = 0.2


class Outcome(NamedTuple):
    """The actions of a program: it creates tasks, and then produces outputs or fails, or never
    ends.
    """

    duration_s: float
    children: tuple[tuple[TaskSpec, tuple[Reference, ...]], ...] = ()
    made: tuple[tuple[ObjectId, bytes], ...] = ()
    fault: TaskFault | None = None
    hangs: bool = False
    streams: bool = False  # its outputs can be read while it runs
    processes: tuple[ObjectId, ...] = ()  # processes that it leaves for its continuation
    puts: tuple[tuple[ObjectId, bytes], ...] = ()  # objects that it stores for its children
    memory: tuple[int, ...] = ()  # the memory of the waiting process


def run(
    spec: TaskSpec,
    inputs: Sequence[Reference],
    contents: Sequence[bytes | None],
    failures_before: int,
    *,
    is_retried: bool,
    here: str = "nowhere:1",
) -> Outcome:
    """Return the outcome of a program with these contents of inputs (None: an error that it sees).
    `is_retried`: its job was retried. `here`: the address of its worker, on which results must not
    depend.
    """
    arguments = read_arguments(spec.payload)
    duration_s = arguments["duration_s"]
    streams = "streams" in arguments
    is_healed = is_retried and "heals" in arguments
    if arguments["hangs"] and not is_healed:
        return Outcome(duration_s, hangs=True, streams=streams)
    if arguments["hangs"]:
        duration_s = min(duration_s, TIME_LIMIT_S / 2)
    is_broken = arguments["fails"] and not is_healed
    fault: TaskFault | None = None
    if is_broken or failures_before < arguments["flaky"]:
        fault = TaskFault("RUNTIME_EXCEPTION", "it is meant to fail")
        if is_broken or "fails_late" not in arguments:
            return Outcome(duration_s, fault=fault, streams=streams)
    needed = contents[: len(spec.needed)]
    seen = b"\n".join(NOT_HERE if content is None else content for content in needed)
    children: list[tuple[TaskSpec, tuple[Reference, ...]]] = []
    own = spec.outputs
    extras: list[Reference] = []
    if arguments["depth"] and "blocks" in arguments:
        early, late = (ObjectId(f"{spec.id}:pub:{n}") for n in range(2))
        extras = [Value.of(early, _content(early, seen)), Future(late)]
        extras.append(Fixed(ObjectId(f"{spec.id}:fixed:0"), here))
    if arguments["depth"]:
        chance = Random(blake2b(spec.id.encode() + seen).digest())
        own = spec.outputs[: chance.randrange(len(spec.outputs))]
        pool = [*inputs, *extras]
        children = _grow(spec, pool, arguments, chance, spec.outputs[len(own) :])
    if fault is not None:  # the next attempt creates the same tasks again
        return Outcome(duration_s, tuple(children), fault=fault, streams=streams)
    processes = tuple([ref.id for ref in extras if isinstance(ref, Fixed)])
    own += tuple([ref.id for ref in extras if ref.id not in processes])
    made = tuple([(o, _content(o, seen)) for o in own])
    return Outcome(duration_s, tuple(children), made, streams=streams, processes=processes)


def lot_content(seed: str, lot: int) -> bytes:
    """Return the content of one lot of a bundle (see `lots`), whichever task produces it."""
    return blake2b(f"{seed} lot {lot}".encode(), digest_size=16).digest()


def _content(object_id: ObjectId, seen: bytes) -> bytes:
    return blake2b(object_id.encode() + b"\n" + seen, digest_size=16).digest()


def _grow(
    spec: TaskSpec,
    inputs: Sequence[Reference],
    arguments: dict[str, Any],
    chance: Random,
    delegated: tuple[ObjectId, ...],
) -> list[tuple[TaskSpec, tuple[Reference, ...]]]:
    """Create a few tasks. The last one takes over the delegated outputs, and continues the waiting
    process.
    """
    processes = [ref for ref in inputs if ref.id == f"{spec.id}:fixed:0"]
    pool = [ref for ref in inputs if ":fixed:" not in ref.id]
    children = []
    fails = "heals" in arguments and chance.random() < HEALING_GROWTH_FAILS_SHARE
    last = chance.randint(1, arguments["breadth"])
    for ordinal in range(last + 1):
        is_last = ordinal == last
        chosen = chance.sample(pool, min(len(pool), chance.randint(0, 4)))
        if is_last:
            chosen = pool[-3:]
        any_of = chosen[1:] if "chooses" in arguments and ordinal % 2 else []
        child = make_task(
            job=spec.job,
            parent=spec.id,
            ordinal=ordinal,
            executor=EXECUTOR,
            arguments={
                **arguments,
                "inputs": chosen + processes if is_last else chosen,
                "duration_s": arguments["duration_s"] * chance.uniform(0.2, 1.5),
                "depth": chance.randrange(arguments["depth"]),
                "fails": fails and is_last,
            },
            outputs=delegated if is_last else None,
            needs=spec.needs,
            sees_errors=spec.sees_errors,
            mentions=_mentions(chance.choice(tuple(Mentions)), any_of),
            any_of=any_of,
        )
        children.append(child)
        pool.append(Future(child[0].outputs[0]))
    return children


def _mentions(drawn: Mentions, any_of: Sequence[Reference]) -> Mentions:
    """Return the mentions of a task; a list of any-of inputs would not have one correct value."""
    return Mentions.NOTHING if any_of and drawn is Mentions.INPUTS else drawn


class Truth:
    """The results of a graph without faults, evaluated directly; None stands for an error."""

    def __init__(self) -> None:
        self.values: dict[str, bytes | None] = {}
        self.is_retried = False
        self._makers: dict[str, TaskSpec] = {}

    def retry(self) -> None:
        """Make `value` return the results after a retry of failed tasks."""
        self.is_retried = True
        self.values = {o: value for o, value in self.values.items() if o not in self._makers}

    def add(self, spec: TaskSpec) -> None:
        for object_id in spec.outputs:
            self._makers.setdefault(object_id, spec)

    def value(self, object_id: str) -> bytes | None:
        """Evaluate an object, lazily and without recursion."""
        pending = [object_id]
        while pending:
            maker = self._makers.get(pending[-1])
            if pending[-1] in self.values:
                pending.pop()
            elif maker is None:
                self.values[pending.pop()] = None
            elif missing := [i for i in maker.inputs if i not in self.values]:
                pending += missing
            else:
                self._run(maker)
        return self.values[object_id]

    def makes_job_fail(self, object_id: str) -> bool:
        """Whether a job that wants this object fails: the object is an error, or a list that
        mentions an error.
        """
        if self.value(object_id) is None:
            return True
        maker = self._makers.get(object_id)
        return (
            maker is not None
            and maker.mentions is Mentions.INPUTS
            and any(self.values[i] is None for i in maker.inputs)
        )

    def _run(self, spec: TaskSpec) -> None:
        arguments = read_arguments(spec.payload)
        if "lots" in arguments:
            for object_id, lot in zip(spec.outputs, arguments["lots"], strict=True):
                self.values[object_id] = lot_content(arguments["seed"], lot)
            return
        contents = [self.values[i] for i in spec.inputs]
        outcome = Outcome(0.0)
        needed, choice = contents[: len(spec.needed)], contents[len(spec.needed) :]
        if spec.sees_errors or not (None in needed or (choice and set(choice) == {None})):
            inputs = [Future(i) for i in spec.inputs]
            outcome = run(spec, inputs, contents, 1000, is_retried=self.is_retried)
        for child, _ in outcome.children:
            for object_id in child.outputs:
                if self._makers.setdefault(object_id, child) is spec:
                    self._makers[object_id] = child
        made = dict(outcome.made)
        self.values.update({o: content for o, content in made.items() if o not in spec.outputs})
        self.values.update(dict.fromkeys(outcome.processes, PROCESS))
        for object_id in spec.outputs:
            if self._makers[object_id] is spec:
                self.values[object_id] = made.get(object_id)


class Step(NamedTuple):
    """A message of a client, which it sends `delay_s` after the previous one."""

    delay_s: float
    message: Message


class Plan(NamedTuple):
    """All messages of one client about its job, and the correct results."""

    job: JobSpec
    steps: tuple[Step, ...]
    uploads: dict[ObjectId, bytes]
    replicated: frozenset[ObjectId]  # of the uploads: the master maintains two copies
    wanted: tuple[ObjectId, ...]  # at the end of the plan
    is_cancelled: bool
    heals: bool  # failed tasks succeed after a retry; then no task sees errors
    truth: Truth


def draw_plan(options: Options, chance: Random, number: int) -> Plan:
    """Draw the plan of one client."""
    job = JobId(f"job{number}")
    truth = Truth()
    uploads = {
        ObjectId(f"{job}:upload{i}"): blake2b(f"{job} {i}".encode(), digest_size=16).digest()
        for i in range(options.uploads_per_job)
    }
    truth.values.update(uploads.items())
    replicates = Random(f"{job} copies {number}")
    replicated = frozenset(o for o in uploads if replicates.random() < options.copies_share)
    heals = bool(options.healing_share) and chance.random() < options.healing_share
    pool: list[ObjectId] = list(uploads)
    steps: list[Step] = []
    wanted: dict[ObjectId, None] = {}
    phases = chance.randint(1, options.phases_max)
    ordinal = 0
    for phase in range(phases):
        delay_s = chance.expovariate(1 / options.phase_mean_s) if phase else 0.0
        for _ in range(-(-options.tasks_per_job // phases)):
            for spec in _draw_task(options, chance, job, ordinal, pool, heals):
                ordinal += 1
                truth.add(spec)
                steps.append(Step(delay_s, AddTask(spec, ())))
                delay_s = 0.0
            pool += spec.outputs
        if released := [o for o in wanted if chance.random() < options.release_share]:
            steps.append(Step(chance.uniform(0, 1), ReleaseObjects(job, tuple(released))))
            wanted = {o: None for o in wanted if o not in released}
        recent = pool[len(uploads) :][-options.tasks_per_job :]
        wants = dict.fromkeys(
            [pool[-1], *chance.sample(recent, int(len(recent) * options.wanted_share))]
        )
        steps.append(Step(0.0, WantObjects(job, tuple(wants))))
        wanted |= wants
    is_cancelled = chance.random() < options.cancel_share
    if is_cancelled:
        cancel = Step(chance.expovariate(1.0), CancelJob(job, "I changed my mind"))
        steps.insert(chance.randint(1, len(steps)), cancel)
    how = _draw_scheduling(options, Random(f"{job} {chance.getstate()[1][3]}"))
    spec_of_job = JobSpec(
        job, "", phases > 1 or chance.random() < 0.7, chance.random() < options.detached_share,
        chance.random() < 0.1, how,
    )  # fmt: skip
    if spec_of_job.open:
        steps.append(Step(chance.choice((0.0, 1.0)), CloseJob(job)))
    steps.insert(0, Step(chance.uniform(0, 1), SubmitJob(spec_of_job)))
    return Plan(
        spec_of_job, tuple(steps), uploads, replicated, tuple(wanted), is_cancelled, heals, truth
    )


def _draw_scheduling(options: Options, chance: Random) -> Scheduling:
    if chance.random() >= options.policy_share:
        return DEFAULT_SCHEDULING
    policy = chance.choice(POLICIES)
    if policy != LOCALITY:
        return read_scheduling(policy)
    names = {"min_saving_threshold": 1e6, "equally_local_margin": 0.9, "sweetheart_factor": 2}
    return read_scheduling(policy, {name: names[name] for name in names if chance.random() < 0.5})


def _draw_task(
    options: Options, chance: Random, job: JobId, ordinal: int, pool: list[ObjectId], heals: bool
) -> list[TaskSpec]:
    """Draw the next task of a graph with chains, diamonds and fans, or two tasks with equal
    content.
    """
    shape = chance.choices(("leaf", "chain", "diamond", "fan", "any"), (3, 3, 3, 1, 2))[0]
    recent = pool[-6:]
    chosen: list[ObjectId] = {
        "leaf": [],
        "chain": recent[-1:],
        "diamond": chance.sample(recent, min(2, len(recent))),
        "fan": chance.sample(pool, min(12, len(pool))),
        "any": chance.sample(pool, min(chance.randint(1, 3), len(pool))),
    }[shape]
    hangs = chance.random() < options.hanging_share
    flaky = chance.randint(1, 3) if chance.random() < options.flaky_share else 0
    grows = chance.random() < options.growing_share
    arguments: dict[str, Any] = {
        "inputs": [Future(object_id) for object_id in chosen],
        "duration_s": chance.expovariate(1 / options.task_mean_s),
        "fails": chance.random() < options.failing_share,
        "flaky": flaky,
        "hangs": hangs,
        "depth": chance.randint(1, options.growth_depth_max) if grows else 0,
        "breadth": options.growth_breadth_max,
    }
    if heals:
        arguments["heals"] = True
    if grows and Random(f"{job} {ordinal} blocks").random() < options.blocking_share:
        arguments["blocks"] = True
    if grows and flaky and Random(f"{job} {ordinal} late").random() < options.late_failure_share:
        arguments["fails_late"] = True
    if Random(f"{job} {ordinal} {chance.getstate()[1][0]}").random() < options.streaming_share:
        arguments["streams"] = True
    chooses = Random(f"{job} {ordinal} {chance.getstate()[1][1]}")
    any_of: list[Reference] = []
    if chosen and chooses.random() < options.choosing_share:
        arguments["chooses"] = True
        any_of = chooses.sample(arguments["inputs"], chooses.randint(1, len(chosen)))
    needs = Needs(
        slots=chance.randint(1, min(2, options.slots_per_worker)),
        priority=chance.choice((0, 0, 0, 5)),
        timeout_s=TIME_LIMIT_S if hangs else 0.0,
        retries=flaky + chance.randint(0, 1),
    )
    hungry = Random(f"{job} {ordinal} {chance.getstate()[1][2]}")
    if hungry.random() < options.hungry_share:
        needs = needs._replace(memory_bytes=MEMORY // hungry.choice((1, 2, 4)))
    if flaky and hungry.random() < 0.5:
        needs = needs._replace(
            retry_on=("RUNTIME_EXCEPTION", "SIGNAL"), retry_delay_s=hungry.random()
        )
    needs = _with_resources(_at_a_disk(needs, job, ordinal, options), job, ordinal, options)
    needs = needs._replace(delay_s=max(0.0, hungry.random() - 1 + DELAYED_SHARE))
    n_outputs = chance.randint(2, 3) if chance.random() < options.wide_share else 1
    sees_errors = chance.random() < options.sees_errors_share and not heals
    if Random(f"{job} {ordinal} bundles").random() < options.bundle_share:
        return [_bundle(job, ordinal, arguments["duration_s"])]
    mentions = _mentions(chance.choice(tuple(Mentions)), any_of)
    has_twin = chance.random() < options.twin_share

    def make(ordinal: int) -> TaskSpec:
        return make_task(
            job=job, parent=job, ordinal=ordinal, executor=EXECUTOR, arguments=arguments,
            n_outputs=n_outputs, memoise=has_twin, needs=needs, sees_errors=sees_errors,
            mentions=mentions, any_of=any_of,
        )[0]  # fmt: skip

    return [make(ordinal), make(ordinal + 1)] if has_twin else [make(ordinal)]


def _at_a_disk(needs: Needs, job: JobId, ordinal: int, options: Options) -> Needs:
    """Draw whether a task is bound by the I/O of a disk, and of which."""
    chance = Random(f"{job} {ordinal} disks")
    is_bound = chance.random() < options.disk_share
    return needs._replace(io=chance.choice(DISKS)) if is_bound else needs


OFFERS = (read_offer("gpu=[0-1]"), read_offer("licence/x=1"))
"""The resources of each worker of the simulator."""


def labels_of(place: int) -> dict[str, str]:
    """Return the labels of the worker at a place: the zones alternate."""
    return {"zone": "ab"[place % 2]}


def _with_resources(needs: Needs, job: JobId, ordinal: int, options: Options) -> Needs:
    """Draw which resources and labels a task needs."""
    chance = Random(f"{job} {ordinal} resources")
    if chance.random() >= options.resource_share:
        return needs
    wanted = chance.choice(({"gpu": 1}, {"gpu": 2}, {"gpu": 0.5}, {"gpu": 1.5, "licence/x": 1},
                            {"licence/x": 0.3}, {}))  # fmt: skip
    # Each worker has these labels, since a task without a suitable worker fails at once.
    where = chance.choice(("", "", "zone=a or zone=b")) if wanted else "has zone and not zone=c"
    return needs._replace(resources=read_amounts(wanted), where=where)


def _bundle(job: JobId, ordinal: int, duration_s: float) -> TaskSpec:
    """Draw a task that hands lots of its work to idle workers (see `lots`)."""
    lot_count = Random(f"{job} {ordinal} lots").randint(2, 6)
    arguments = {
        "inputs": [], "duration_s": duration_s, "seed": f"{job} {ordinal}",
        "lots": list(range(lot_count)),
    }  # fmt: skip
    return make_task(
        job=job, parent=job, ordinal=ordinal, executor=EXECUTOR, arguments=arguments,
        n_outputs=lot_count, needs=Needs(), mentions=Mentions.OWN,
    )[0]  # fmt: skip
