"""Measures the master's state machine and its frames in one process.

The results are the cost of each event, the gain of a second process with separate tasks, and the
cost of a lock per task.

Tasks do not depend on each other, and their results are two bytes within a reference. The benchmark
contains no sockets and no reactor. Expected cost: reading or writing a record takes 5 us, and each
task has four of them; the graph takes 5 us, and so do placement and the choice of recipients.
"""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import threading
import time
from contextlib import nullcontext

from benchmarks.engine.graph import BATCH, JOB, make_batch, make_spec
from ciel.core.events import AddTask, AssignTask, Message, SubmitJob, TaskReported, WantObjects
from ciel.core.graph.nodes import TaskNode
from ciel.core.graph.task_graph import TaskGraph
from ciel.core.jobs import Job, JobSpec
from ciel.core.refs import Value
from ciel.core.tasks import TaskSpec
from ciel.master.state.machine import MasterMachine
from ciel.master.state.workers import WorkerFacts
from ciel.wire.frames import FrameReader, encode_frames
from ciel.wire.messages import FROM_CLIENT, FROM_WORKER, decode, encode

TASKS = 6_000
PAIRS = 3
SLOTS = 512  # of each of two workers, so that the machine places all tasks of a tick at once
EVENTS = (
    "frames of descriptions read", "tasks added", "objects wanted", "end of tick: tasks placed",
    "frames to workers written", "frames of reports read", "reports taken",
    "end of tick: results announced", "frames to clients written",
)  # fmt: skip


class Stages:
    """CPU time between marks, summed by name."""

    def __init__(self) -> None:
        self.spent_s = dict.fromkeys(EVENTS, 0.0)
        self._since_s = 0.0

    def start(self) -> None:
        self._since_s = time.process_time()

    def mark(self, name: str) -> None:
        now_s = time.process_time()
        self.spent_s[name] += now_s - self._since_s
        self._since_s = now_s


class Alone:
    """A machine with two workers that report each assigned task at once."""

    def __init__(self) -> None:
        self.stages = Stages()
        self._machine = MasterMachine()
        self._reader = FrameReader()
        self._index = 0
        for name in ("w1", "w2"):
            facts = WorkerFacts(
                name, f"127.0.0.1:{name[1]}", "here", SLOTS, frozenset(["stdinout"])
            )
            self._machine.worker_joined(facts, 0.0)
        spec = JobSpec(JOB, "", open=True, detached=False, keep=False)
        self._machine.client_sent("client", SubmitJob(spec), 0.0)

    def run_tasks(self, batch: int) -> None:
        """Process this many tasks from their descriptions to their results, in two ticks."""
        machine, stages = self._machine, self.stages
        specs = [make_spec(self._index + number, ()) for number in range(batch)]
        self._index += batch
        wanted = WantObjects(JOB, tuple([spec.outputs[0] for spec in specs]))
        data = encode_frames([encode(AddTask(s, ())) for s in specs] + [encode(wanted)])
        stages.start()
        *added, wanting = self._read(data, FROM_CLIENT)
        stages.mark("frames of descriptions read")
        for message in added:
            machine.client_sent("client", message, 0.0)
        stages.mark("tasks added")
        machine.client_sent("client", wanting, 0.0)
        stages.mark("objects wanted")
        machine.end_tick(0.0)
        stages.mark("end of tick: tasks placed")
        sent = self._write()
        stages.mark("frames to workers written")
        reports = [(worker, _done(m)) for worker, m in sent if type(m) is AssignTask]
        assert len(reports) == batch
        data = encode_frames([encode(report) for _, report in reports])
        stages.start()
        messages = self._read(data, FROM_WORKER)
        stages.mark("frames of reports read")
        for (worker, _), message in zip(reports, messages, strict=True):
            machine.worker_sent(worker, message, 0.0)
        stages.mark("reports taken")
        machine.end_tick(0.0)
        machine.journal.clear()
        stages.mark("end of tick: results announced")
        self._write()
        stages.mark("frames to clients written")

    def _read(self, data: bytes, allowed: frozenset[type]) -> list[Message]:
        self._reader.feed(data)
        messages = []
        while (records := self._reader.next_frame()) is not None:
            messages += [decode(record, allowed) for record in records]
        return messages

    def _write(self) -> list[tuple[str, Message]]:
        """Encode all messages in the outbox, one frame for each peer, as the master does."""
        outbox = self._machine.take_outbox()
        peers: dict[str, list[Message]] = {}
        for peer, message in outbox:
            peers.setdefault(peer, []).append(message)
        for of_peer in peers.values():
            encode_frames([encode(message) for message in of_peer])
        return outbox


def _done(assigned: AssignTask) -> TaskReported:
    """Return the report of a worker that has ended its task."""
    spec, attempt, *_ = assigned
    return TaskReported(spec.id, attempt, (Value(spec.outputs[0], "MQ=="),), None, 0.001)


def as_the_master() -> None:
    """Configure the garbage collector as the master does."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1000)


def event_us(batch: int, count: int = TASKS) -> dict[str, float]:
    """Return the CPU time per task of each kind of event, for this many tasks per tick."""
    alone = Alone()
    for _ in range(count // batch):
        alone.run_tasks(batch)
    return {name: spent / count * 1e6 for name, spent in alone.stages.spent_s.items()}


# --- a second process -----------------------------------------------------------------------------


def _whole(count: int) -> float:
    """Process this many tasks, and return the CPU time."""
    started_s = time.process_time()
    alone = Alone()
    for _ in range(count // 100):
        alone.run_tasks(100)
    return time.process_time() - started_s


def two_processes(pairs: int = PAIRS) -> dict[str, float]:
    """Return the speedup of two processes with half of the jobs each over one with all jobs.

    It is measured by wall-clock time, and by the CPU time of the slower process, as if no other
    program ran on this machine.
    """
    by_clock, by_cpu = [], []
    with multiprocessing.get_context("fork").Pool(2, as_the_master) as pool:
        for _ in range(pairs):
            started_s = time.perf_counter()
            (one_s,) = pool.map(_whole, [2 * TASKS], 1)
            between_s = time.perf_counter()
            halves_s = pool.map(_whole, [TASKS, TASKS], 1)
            by_cpu.append(one_s / max(halves_s))
            by_clock.append((between_s - started_s) / (time.perf_counter() - between_s))
    return {
        "two_by_clock": statistics.median(by_clock),
        "two_by_cpu": statistics.median(by_cpu),
    }


# --- a lock for every task ------------------------------------------------------------------------


def _advance(batches: list[list[TaskSpec]], *, with_locks: bool) -> None:
    """Add tasks to a graph, assign and finish them.

    With locks, this function holds the lock of a task whenever it uses the task or one of its
    outputs: when the task is added, wanted, assigned and finished, and when one of its inputs is
    finished. No lock is contended, so finer structures cannot be faster.
    """
    graph = TaskGraph()
    job = Job(JobSpec(JOB, "", open=True, detached=False, keep=False), 1, 0.0)
    free = nullcontext()
    locks: dict[TaskNode, threading.Lock] = {}
    for specs in batches:
        for spec in specs:
            node = graph.add(spec, job)
            lock = locks.setdefault(node, threading.Lock()) if with_locks else free
            with lock:
                graph.want(spec.outputs[0], job)
    runnable = graph.runnable
    while runnable:
        ready = runnable[:]
        runnable.clear()
        for task in ready:
            lock = locks[task] if with_locks else free
            with lock:
                graph.assign(task, "w")
            for _ in task.spec.inputs:
                with lock:
                    pass
            with lock:
                graph.finish(task, (Value(task.spec.outputs[0], "MQ=="),))
        graph.settled.clear()


def _in_threads(shares: list[list[list[TaskSpec]]], *, with_locks: bool) -> tuple[float, float]:
    """Run each share in a thread, all at once; return the time and the CPU time."""
    threads = [
        threading.Thread(target=_advance, args=(share,), kwargs={"with_locks": with_locks})
        for share in shares
    ]
    started_s, had_s = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started_s, time.process_time() - had_s


def threads_and_locks(batches: int = 10, pairs: int = PAIRS) -> dict[str, float]:
    """Return the speed of one thread with locks, and of two threads with and without locks.

    The speed is relative to one thread without locks: by wall-clock time, and by CPU time, as if no
    other program ran on this machine (an interpreter runs one thread at a time). The results are
    medians of pairs that ran one after the other.
    """
    tasks = [make_batch(number * BATCH) for number in range(batches)]
    one, two = [tasks], [tasks[: batches // 2], tasks[batches // 2 :]]
    ways = {
        "one_with_locks": (one, True),
        "two_without_locks": (two, False),
        "two_with_locks": (two, True),
    }
    found: dict[str, list[float]] = {}
    for number in range(pairs):
        for name, (shares, with_locks) in ways.items():
            if number % 2:
                taken = _in_threads(shares, with_locks=with_locks)
                alone = _in_threads(one, with_locks=False)
            else:
                alone = _in_threads(one, with_locks=False)
                taken = _in_threads(shares, with_locks=with_locks)
            for clock, ours, theirs in zip(("clock", "cpu"), taken, alone, strict=True):
                found.setdefault(f"{name}_by_{clock}", []).append(theirs / ours)
    return {name: statistics.median(ratios) for name, ratios in found.items()}
