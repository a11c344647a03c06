"""Calls of a client on a fake cluster: objects in this process. Each test decides when a task runs,
and what the master reports.
"""

from __future__ import annotations

import concurrent.futures
import gc
import io
import itertools
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from ciel.access.keys import Key
from ciel.access.settings import MasterLocation
from ciel.client.calls.calls import Calls
from ciel.client.calls.map_results import results_of_map
from ciel.client.errors import (
    CallbackWaitError,
    ClientClosedError,
    ConnectionLostError,
    ForeignFutureError,
    JobEndedError,
    ObjectUnreadableError,
)
from ciel.client.jobs.caller_context import Caller
from ciel.core.ids import JobId, ObjectId
from ciel.core.jobs import JobSummary
from ciel.core.refs import INLINE_MAX_BYTES, Concrete, Failure, Future, Reference, Stream, Value
from ciel.core.tasks import Mentions, Needs
from ciel.python import calls as wire
from ciel.python.contents import (
    CUT,
    ERROR,
    ITEM,
    MOVED,
    RETURNED,
    STREAM_MAGIC,
    VALUE,
    Outcome,
    decode,
    encode,
    stream_frame,
)
from ciel.python.failures import PackingError, TaskMemoryError, pack_error
from ciel.python.options import USUAL, Options
from ciel.python.packing import Packed, pack, unpack
from ciel.wire.references import to_array

HERE = MasterLocation("http://here:1", "unix:@here", "c", Key.new(), "a test")


@dataclass
class FakeTask:
    """A task that the client has added to its job."""

    name: str
    bundle: wire.Bundle
    inputs: list[Reference]
    outputs: list[ObjectId]
    needs: Needs


@dataclass
class FakeCluster:
    """Satisfies the protocols `Session` and `CallJob`."""

    location: MasterLocation = HERE
    is_delivering: bool = False
    id: str = "job"
    has_ended: bool = False
    refusal: str = ""
    summary: JobSummary | None = None
    slots: int = 2
    took_s: float = 1e-6
    """How long each lot of calls takes, according to its worker."""
    tasks: list[FakeTask] = field(default_factory=list)
    wanted: list[ObjectId] = field(default_factory=list)
    released: list[ObjectId] = field(default_factory=list)
    objects: dict[ObjectId, bytes] = field(default_factory=dict)
    uploaded_to: list[int] = field(default_factory=list)
    """To how many workers each large object was uploaded."""
    replicated: dict[ObjectId, int] = field(default_factory=dict)
    """How many workers are to hold an object."""
    growing: list[bytes] = field(default_factory=list)
    """The contents for successive readers of a growing object."""
    lost: set[ObjectId] = field(default_factory=set)
    """Objects that no worker holds until they are recomputed."""
    recomputed: list[ObjectId] = field(default_factory=list)
    was_closed: bool = False
    on_add: Callable[[], object] = lambda: None

    def __post_init__(self) -> None:
        self._numbers = itertools.count()
        self._settled: dict[ObjectId, Reference] = {}
        self._tell: deque[Reference] = deque()
        self.calls = Calls(self, self._find_caller, lambda context: self)

    def _find_caller(self) -> Caller:
        return Caller(None, scratch=True, env={})

    # --- the session ------------------------------------------------------------------------------

    def slot_count(self) -> int:
        return self.slots

    def read_chunks(
        self, ref: Reference, start: int = 0, end: int | None = None
    ) -> Iterator[bytes]:
        if ref.id in self.lost:
            raise ObjectUnreadableError(ref.id, [("w:1", "it is lost")])
        yield self.objects[ref.id][start:end]

    def read_growing(self, ref: Reference) -> io.BytesIO:
        return io.BytesIO(self.growing.pop(0))

    def map_object(self, ref: Reference) -> None:
        return None

    def upload_content(self, content: bytes, name: str) -> Reference:
        return self._stored(ObjectId(f"upload:{next(self._numbers)}"), content)

    def upload_pieces(self, pieces: Sequence[Any], name: str, copies: int) -> Reference:
        self.uploaded_to.append(copies)
        return self.upload_content(b"".join(map(bytes, pieces)), name)

    def _stored(self, object_id: ObjectId, content: bytes) -> Reference:
        self.objects[object_id] = content
        if len(content) <= INLINE_MAX_BYTES:
            return Value.of(object_id, content)
        return Concrete(object_id, len(content), frozenset(["w:1"]))

    # --- the job ----------------------------------------------------------------------------------

    def add(
        self, executor: str, arguments: dict[str, Any], *, n_outputs: int, needs: Needs,
        mentions: Mentions, name: str, sees_errors: bool, apart: Iterable[Reference],
    ) -> list[Future]:  # fmt: skip
        self.on_add()
        task = next(self._numbers)
        outputs = [ObjectId(f"task{task}:out:{number}") for number in range(n_outputs)]
        inputs: list[Reference] = list(arguments["inputs"])
        bundle = wire.bundle_in(arguments)
        if bundle is None:
            bundle = wire.unpack_bundle(self.objects[inputs[-1].id])
        self.tasks.append(FakeTask(name, bundle, inputs, outputs, needs))
        return [Future(output) for output in outputs]

    def want(self, refs: Iterable[Reference], tell: deque[Reference] | None) -> None:
        self.wanted += [ref.id for ref in refs]
        if tell is not None:
            self._tell = tell

    def release(self, refs: Iterable[Reference], *, for_good: bool = False) -> None:
        self.released += [ref.id for ref in refs]

    def replicate(self, refs: Iterable[Reference], copies: int) -> None:
        self.replicated |= {ref.id: copies for ref in refs}

    def settled(self, ref: Reference) -> Reference | None:
        return self._settled.get(ref.id)

    def read(self, ref: Reference) -> bytes:
        while True:
            try:
                return b"".join(self.read_chunks(self._settled.get(ref.id, ref)))
            except ObjectUnreadableError as error:
                ref = self.await_copy(error, ref)

    def await_copy(self, unreadable: ObjectUnreadableError, ref: Reference) -> Reference:
        self.lost.discard(ref.id)
        self.recomputed.append(ref.id)
        return ref

    def close(self) -> None:
        self.was_closed = True

    # --- what a worker and the master do ----------------------------------------------------------

    def deliver(self, *refs: Reference) -> None:
        """Deliver references to objects, as the connection's thread does."""
        self._settled.update({ref.id: ref for ref in refs})
        self._tell.extend(refs)
        self.is_delivering = True
        try:
            self.calls.take_settled()
        finally:
            self.is_delivering = False

    def finish(self, task: FakeTask, *, cut: int = 0) -> None:
        """Run a task, and deliver its outputs. `cut`: a map stops after so many rows."""
        self.deliver(*self.run(task, cut=cut))

    def finish_all(self) -> None:
        """Run all tasks in the order in which they were added, until the client adds no more."""
        done = 0
        self.calls.flush(holds=False)
        while done < len(self.tasks):
            self.finish(self.tasks[done])
            done += 1
            self.calls.flush(holds=False)

    def fail(self, task: FakeTask, reason: str, text: str) -> None:
        """Deliver the failure of a task."""
        self.deliver(*[Failure(output, reason, text) for output in task.outputs])

    def run(self, task: FakeTask, *, cut: int = 0) -> list[Reference]:
        """Run the calls of a task, and return references to its outputs."""
        bundle = task.bundle
        functions = [self._function(function, task) for function in bundle.functions]
        lots: list[list[Outcome]] = []
        for lot in bundle.batches:
            lots.append([])
            for call in lot:
                lots[-1] += self._outcomes(call, functions[call.function], task, lots, cut)
        refs = []
        for output, outcomes in zip(task.outputs, lots, strict=True):
            content = b"".join(map(bytes, encode(outcomes, self.took_s)))
            refs.append(self._stored(output, content))
        return refs

    def _function(self, function: wire.Function, task: FakeTask) -> Callable[..., Any]:
        packed = function.packed
        if packed is None:
            packed = self.objects[task.inputs[function.input].id]
        found: Callable[..., Any] = pickle.loads(packed)
        return getattr(found, "function", found)

    def _outcomes(
        self, call: wire.Call, function: Callable[..., Any], task: FakeTask,
        lots: list[list[Outcome]], cut: int,
    ) -> list[Outcome]:  # fmt: skip
        given = []
        for use in call.uses:
            made = lots[use.batch] if use.input < 0 else self._content(task.inputs[use.input])
            outcome = made[use.place]
            if outcome.kind == ERROR:
                return [outcome]
            given.append(unpack(outcome.packed.head, outcome.packed.buffers))
        packed = call.arguments
        if call.with_object >= 0:
            packed = self._content(task.inputs[call.with_object])[0].packed
        args, kwargs = unpack(packed.head, packed.buffers, given)
        try:
            if call.is_map:
                return _map(function, args[0], cut)
            value = function(*args, **kwargs)
            values = [value] if call.returns == 1 else list(value)
            return [Outcome(VALUE, pack(value)) for value in values]
        except Exception as error:
            return [Outcome(ERROR, Packed(pack_error(error), ()))]

    def _content(self, ref: Reference) -> list[Outcome]:
        return decode(self.objects[ref.id]).outcomes


def _map(function: Callable[..., Any], rows: list[tuple[Any, ...]], cut: int) -> list[Outcome]:
    values: list[Any] = []
    error = None
    try:
        for row in rows[: cut or None]:
            values.append(function(*row))
    except Exception as raised:
        error = pack_error(raised)
    outcome = Outcome(VALUE, pack(wire.Mapped(values, error)))
    if not cut or cut >= len(rows):
        return [outcome]
    return [outcome, Outcome(CUT, Packed(str(cut).encode(), ()))]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    yield cluster
    cluster.calls.close()


def submit(cluster: FakeCluster, function: Callable[..., Any], *args: Any) -> Any:
    return cluster.calls.call(function, args, {}, USUAL)


def double(number: int) -> int:
    return 2 * number


def add(one: int, other: int) -> int:
    return one + other


def refuse(number: int) -> int:
    if number == 3:
        raise ValueError(number)
    return number


def count_to(number: int) -> Iterator[int]:
    yield from range(number)


def large(size_bytes: int) -> bytes:
    return bytes(size_bytes)


def know(cluster: FakeCluster, function: Callable[..., Any], *args: Any) -> None:
    """Have the client know that a function is quick."""
    future = submit(cluster, function, *args)
    cluster.finish_all()
    future.result(0)
    cluster.tasks.clear()


# --- single calls ---------------------------------------------------------------------------------


def test_a_result_is_there_when_its_object_is(cluster: FakeCluster) -> None:
    future = submit(cluster, double, 4)
    assert [task.name for task in cluster.tasks] == ["double"]
    assert cluster.wanted == cluster.tasks[0].outputs
    assert not future.done()
    cluster.finish(cluster.tasks[0])
    assert future.result(0) == 8


def test_a_call_that_raises_fails_alone_in_its_bundle(cluster: FakeCluster) -> None:
    know(cluster, refuse, 0)
    futures = [submit(cluster, refuse, number) for number in range(6)]
    cluster.finish_all()
    assert any(" calls of refuse" in task.name for task in cluster.tasks)
    found = [future.exception(0) or future.result(0) for future in futures]
    assert [found[n] for n in (0, 1, 2, 4, 5)] == [0, 1, 2, 4, 5]
    assert isinstance(found[3], ValueError)
    assert found[3].args == (3,)
    assert cluster.calls.functions.tallies["refuse"].failed == 1
    assert cluster.calls.functions.tallies["refuse"].done == 6


def test_a_task_that_fails_fails_all_its_calls(cluster: FakeCluster) -> None:
    know(cluster, double, 0)
    futures = [submit(cluster, double, number) for number in range(8)]
    cluster.calls.flush(holds=False)
    for task in cluster.tasks:
        cluster.fail(task, "MEMORY_LIMIT", "it took 2 GiB")
    for future in futures:
        assert isinstance(future.exception(0), TaskMemoryError)


def test_calls_are_held_back_until_their_time_is_known(cluster: FakeCluster) -> None:
    futures = [submit(cluster, double, number) for number in range(100)]
    cluster.calls.flush()
    assert len(cluster.tasks) == 8 * cluster.slots
    cluster.finish(cluster.tasks[0])
    cluster.calls.flush()
    assert len(cluster.tasks) < 24  # all other calls are bundled
    cluster.finish_all()
    assert [future.result(0) for future in futures] == list(range(0, 200, 2))


def test_a_call_can_take_the_result_of_a_call_in_its_bundle(cluster: FakeCluster) -> None:
    know(cluster, double, 0)
    first = submit(cluster, double, 1)
    second = submit(cluster, add, first, 10)
    third = submit(cluster, add, second, first)
    cluster.finish_all()
    assert [future.result(0) for future in (first, second, third)] == [2, 12, 14]


def test_a_failed_argument_fails_the_call(cluster: FakeCluster) -> None:
    third = submit(cluster, double, submit(cluster, refuse, 3))
    cluster.finish_all()
    assert isinstance(third.exception(0), ValueError)


def test_several_values_are_several_futures(cluster: FakeCluster) -> None:
    one, other = cluster.calls.call(divmod, (17, 5), {}, Options(returns=2))
    cluster.finish_all()
    assert (one.result(0), other.result(0)) == (3, 2)


def test_a_result_that_a_task_has_delegated_comes_from_the_other_object(
    cluster: FakeCluster,
) -> None:
    future = submit(cluster, double, 4)
    cluster.finish_all()
    child = Future(ObjectId("child:out:0"))
    moved = submit(cluster, double, 5)
    (output,) = cluster.tasks[-1].outputs
    outcome = Outcome(MOVED, pack((to_array(child), 0, False)))
    cluster.deliver(Value.of(output, b"".join(map(bytes, encode([outcome])))))
    assert not moved.done()
    assert child.id in cluster.wanted
    cluster.deliver(Value.of(child.id, cluster.objects[future.lot.id]))
    assert moved.result(0) == 8


def test_an_argument_that_cannot_be_pickled_is_refused_at_once(cluster: FakeCluster) -> None:
    with pytest.raises(PackingError, match="argument 1"):
        submit(cluster, double, threading.Lock())
    assert cluster.tasks == []


def test_a_future_of_another_cluster_is_refused(cluster: FakeCluster) -> None:
    other = FakeCluster(HERE._replace(cluster_id="other"))
    try:
        with pytest.raises(ForeignFutureError):
            submit(cluster, double, submit(other, double, 1))
    finally:
        other.calls.close()


# --- maps -----------------------------------------------------------------------------------------


def mapped(
    cluster: FakeCluster, function: Callable[..., Any], count: int, size: int | None
) -> Iterator[Any]:
    def begin(rows: list[tuple[Any, ...]], chunksize: int | None) -> list[Any]:
        return list(cluster.calls.map_parts(function, rows, USUAL, chunksize))

    return results_of_map(begin, [range(count)], 5.0, size, None)


def test_results_of_a_map_are_in_order_however_their_tasks_end(cluster: FakeCluster) -> None:
    results = mapped(cluster, double, 20, 3)
    cluster.calls.flush(holds=False)
    assert len(cluster.tasks) == 7
    for task in reversed(cluster.tasks):
        cluster.finish(task)
    assert list(results) == list(range(0, 40, 2))


def test_an_error_is_raised_in_the_place_of_its_result(cluster: FakeCluster) -> None:
    results = mapped(cluster, refuse, 8, 2)
    cluster.finish_all()
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="3") as caught:
        next(results)
    assert caught.value.__notes__[-1] == "in element 3 of the map, counted from 0"


def test_a_part_that_takes_long_leaves_its_rows_to_further_tasks(cluster: FakeCluster) -> None:
    cluster.took_s = 0.1
    results = mapped(cluster, double, 200, None)
    cluster.calls.flush(holds=False)
    part = max(cluster.tasks, key=lambda task: len(str(task.bundle)))
    for task in cluster.tasks:
        if task is not part:
            cluster.finish(task)
    cluster.finish(part, cut=2)
    known = len(cluster.tasks)
    cluster.calls.flush(holds=False)
    assert len(cluster.tasks) > known
    for task in cluster.tasks[known:]:
        cluster.finish(task)
    assert list(results) == list(range(0, 400, 2))


def test_a_map_that_is_dropped_is_cancelled(cluster: FakeCluster) -> None:
    results = mapped(cluster, double, 8, 2)
    cluster.calls.flush(holds=False)
    cluster.finish(cluster.tasks[0])
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]  # it is a generator
    cluster.calls.flush()
    outputs = [output for task in cluster.tasks[1:] for output in task.outputs]
    assert {*outputs} <= {*cluster.released}


# --- cancellation ---------------------------------------------------------------------------------


def test_a_call_that_is_cancelled_before_it_is_sent_never_is(cluster: FakeCluster) -> None:
    futures = [submit(cluster, double, number) for number in range(40)]
    held = futures[-1]
    assert held.cancel()
    cluster.finish_all()
    assert sum(len(lot) for task in cluster.tasks for lot in task.bundle.batches) == 39
    with pytest.raises(concurrent.futures.CancelledError):
        held.result(0)
    assert cluster.calls.functions.tallies["double"].submitted == 39


def test_the_object_of_a_cancelled_call_is_released(cluster: FakeCluster) -> None:
    future = submit(cluster, double, 1)
    assert future.cancel()
    assert cluster.released == cluster.tasks[0].outputs
    assert not future.cancel()
    cluster.finish(cluster.tasks[0])
    assert future.cancelled()


def test_an_object_is_released_when_the_last_of_its_calls_is_cancelled(
    cluster: FakeCluster,
) -> None:
    know(cluster, double, 0)
    futures = [submit(cluster, double, number) for number in range(80)]
    cluster.calls.flush(holds=False)
    task = next(task for task in cluster.tasks if len(task.bundle.batches[0]) > 1)
    together = [future for future in futures if future.lot.id == task.outputs[0]]
    for future in together[:-1]:
        future.cancel()
    assert task.outputs[0] not in cluster.released
    cluster.finish(task)
    assert together[-1].result(0) == 2 * futures.index(together[-1])


def test_a_call_whose_future_is_dropped_is_not_sent(cluster: FakeCluster) -> None:
    futures = [submit(cluster, double, number) for number in range(40)]
    del futures[20:]
    gc.collect()
    cluster.finish_all()
    assert sum(len(lot) for task in cluster.tasks for lot in task.bundle.batches) == 20


def test_the_object_of_a_dropped_result_is_released(cluster: FakeCluster) -> None:
    future = submit(cluster, double, 1)
    cluster.finish_all()
    (output,) = cluster.tasks[0].outputs
    assert output not in cluster.released
    del future
    gc.collect()
    submit(cluster, double, 2)
    assert output in cluster.released


# --- the end --------------------------------------------------------------------------------------


def test_a_lost_connection_fails_all_calls_also_later_ones(cluster: FakeCluster) -> None:
    done = submit(cluster, double, 0)
    cluster.finish_all()
    sent = submit(cluster, double, 1)
    pending = [submit(cluster, add, number, number) for number in range(30)]
    lost = ConnectionLostError("here", "it closed the connection")
    cluster.calls.lose(lost)
    for future in (sent, *pending):
        assert future.exception(0) is lost
    assert done.result(0) == 0
    with pytest.raises(ConnectionLostError):
        submit(cluster, double, 2)


def test_a_connection_that_is_lost_while_a_call_is_sent_fails_the_call(
    cluster: FakeCluster,
) -> None:
    lost = ConnectionLostError("here", "it closed the connection")
    cluster.on_add = lambda: cluster.calls.lose(lost)
    assert submit(cluster, double, 1).exception(1) is lost


def test_a_thread_that_waits_is_woken_by_the_loss_of_the_connection(cluster: FakeCluster) -> None:
    future = submit(cluster, double, 1)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(future.exception(5)))
    thread.start()
    cluster.calls.lose(ConnectionLostError("here", "it closed the connection"))
    thread.join(5)
    assert isinstance(found[0], ConnectionLostError)


def test_the_end_of_the_job_fails_its_calls(cluster: FakeCluster) -> None:
    future = submit(cluster, double, 1)
    cluster.has_ended = True
    cluster.summary = JobSummary(
        JobId("job"), 7, "", "cancelled", "by its user", {}, 0.0, 1.0, 1, 1, 0
    )
    cluster.deliver()
    with pytest.raises(JobEndedError, match="job 7 is cancelled: by its user"):
        future.result(0)


def test_a_client_that_is_closed_leaves_a_job_that_is_done(cluster: FakeCluster) -> None:
    future = submit(cluster, double, 1)
    cluster.finish_all()
    cluster.calls.close()
    assert cluster.was_closed
    assert future.result(0) == 2
    with pytest.raises(ClientClosedError):
        submit(cluster, double, 1)


def test_the_thread_that_delivers_results_cannot_wait_for_one(cluster: FakeCluster) -> None:
    future, other = submit(cluster, double, 1), submit(cluster, double, 2)
    found: list[Any] = []

    def wait(_: Any) -> None:
        with pytest.raises(CallbackWaitError):
            other.result()
        found.append(other.done())

    future.add_done_callback(wait)
    cluster.finish(cluster.tasks[0])
    assert found == [False]


# --- values ---------------------------------------------------------------------------------------


def test_a_large_result_is_read_when_the_program_asks_for_it(cluster: FakeCluster) -> None:
    future = submit(cluster, large, 200_000)
    cluster.finish_all()
    assert future.done()
    (output,) = cluster.tasks[0].outputs
    content = cluster.objects.pop(output)
    with pytest.raises(KeyError):
        future.result()
    cluster.objects[output] = content
    assert future.result(0) == bytes(200_000)


def test_a_result_that_was_lost_is_read_again_when_it_is_recomputed(cluster: FakeCluster) -> None:
    future = submit(cluster, large, 200_000)
    cluster.finish_all()
    (output,) = cluster.tasks[0].outputs
    cluster.lost.add(output)
    assert future.result() == bytes(200_000)
    assert cluster.recomputed == [output]


def test_several_small_results_that_were_lost_are_read_again_by_a_thread(
    cluster: FakeCluster,
) -> None:
    know(cluster, large, 0)
    futures = [submit(cluster, large, 2000 + number) for number in range(8)]
    cluster.calls.flush(holds=False)
    for task in cluster.tasks:
        refs = cluster.run(task)
        cluster.lost.update(task.outputs)
        cluster.deliver(*refs)
    assert [len(future.result(5)) for future in futures] == list(range(2000, 2008))
    assert cluster.recomputed


def test_a_stored_value_can_hold_futures(cluster: FakeCluster) -> None:
    inner = submit(cluster, double, 4)
    value = cluster.calls.put([1, inner])
    cluster.finish_all()
    (_, again) = value.result(10)  # a thread reads it
    assert again.result(0) == 8
    assert again.lot is inner.lot


def test_a_stored_value_has_as_many_copies_as_its_caller_requests(cluster: FakeCluster) -> None:
    default, one, three = [cluster.calls.put(bytes(5000), copies) for copies in (None, 1, 3)]
    short = cluster.calls.put(b"short", 3)
    assert cluster.uploaded_to == [2, 1, 3]
    assert three.lot is not None
    assert cluster.replicated == {three.lot.id: 3}
    assert [len(future.result(0)) for future in (default, one, three, short)] == [5000] * 3 + [5]


def test_wait_returns_at_the_first_failure(cluster: FakeCluster) -> None:
    good, bad = submit(cluster, refuse, 1), submit(cluster, refuse, 3)
    cluster.calls.flush(holds=False)
    cluster.finish(cluster.tasks[1])
    done, rest = cluster.calls.wait([good, bad], 0, concurrent.futures.FIRST_EXCEPTION)
    assert (done, rest) == ({bad}, {good})
    cluster.finish(cluster.tasks[0])
    assert list(cluster.calls.as_completed([good, bad], 1)) != []


def stream_of(*items: int, is_whole: bool = True) -> bytes:
    frames = [stream_frame(ITEM, pack(item).head) for item in items]
    end = [stream_frame(RETURNED, pack(None).head)] if is_whole else []
    return b"".join([STREAM_MAGIC, *frames, *end])


def test_items_of_a_generator_come_once_though_its_task_runs_again(cluster: FakeCluster) -> None:
    future = submit(cluster, count_to, 3)
    (output,) = cluster.tasks[0].outputs
    cluster.growing = [stream_of(0, 1, is_whole=False), stream_of(0, 1, 2)]
    cluster.deliver(Stream(output, frozenset(["w:1"])))
    items = iter(future)
    assert [next(items), next(items)] == [0, 1]
    timer = threading.Timer(0.05, cluster.deliver, [Stream(output, frozenset(["w:2"]))])
    timer.start()  # the first worker is lost before the task has ended
    assert list(items) == [2]
    timer.join()
