"""Runs one task of the Python program: the calls of a bundle, batch by batch."""

from __future__ import annotations

import math
import os
import pickle
import time
from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ciel.executors.programs.python.arguments import Arguments, InputFailedError, cannot_unpickle
from ciel.executors.programs.python.batches import request_for
from ciel.executors.programs.python.evaluation.evaluator import Evaluator
from ciel.executors.programs.python.evaluation.sharing import Sharing
from ciel.executors.programs.python.functions import Loaded, is_independent
from ciel.executors.programs.python.objects.inputs import Inputs
from ciel.executors.programs.python.objects.outputs import Outputs
from ciel.python import sessions
from ciel.python.calls import Bundle, Call, Function, Mapped, Use, unpack_bundle
from ciel.python.contents import CUT, ERROR, VALUE, Outcome, Times
from ciel.python.options import USUAL, Options
from ciel.python.packing import PLAIN_TYPES, PROTOCOL, Packed, unpack
from ciel.python.task_futures import DONE, Result, TaskFuture, WorkItem
from ciel.python.task_session import HasSet, TaskSession

if TYPE_CHECKING:
    from ciel.executors.programs.python.program import Program

T = TypeVar("T")
_ROWS_PER_CHECK = 16
"""The largest number of rows that a map runs between two checks of its time limit."""


class Run:
    """A task, from its start to its end.

    `start`: the arguments of `start_task`; `paths`: the files of its inputs, by id.
    """

    def __init__(self, program: Program, start: dict[str, Any], paths: dict[str, str]) -> None:
        channel = program.channel
        self._program = program
        self._channel = channel
        self._inputs = Inputs(start["inputs"], paths, channel, program.cache)
        self._outputs = Outputs(channel)
        self._sharing = Sharing(
            channel, self._inputs, self._outputs, program.functions, program.timer
        )
        self._evaluator = self._sharing.evaluation = Evaluator(self._sharing)
        self._session = TaskSession(
            self._evaluator,
            program.functions.snapshot,
            program.state.scratch,
            lambda: channel.call("task", {}),
        )
        self._bundle = self._read_bundle(start)
        self._made: list[list[Outcome]] = [[] for _ in self._bundle.batches]
        self._arguments = Arguments(self._inputs, channel, self._evaluator, self._made)
        self._next_batch, self._end_batch = 0, len(self._bundle.batches)
        self._state = program.state
        self._is_retry = start.get("attempt", 1) > 1
        self._taken: list[int] = start.get("taken", [])
        self._functions: dict[int, Loaded] = {}
        self._is_alone = [len(batch) for batch in self._bundle.batches] == [1]
        self._delegate: TaskFuture[Any] | None = None
        """The remote future whose task produces the output of this task instead."""
        self._spans: list[tuple[float, float]] = []  # of calls, for a trace
        self._loading_s = 0.0  # the time that unpickling functions took, in this batch

    def _read_bundle(self, start: dict[str, Any]) -> Bundle:
        encoded = start.get("calls")
        if encoded is None:
            return unpack_bundle(bytes(self._inputs.content(self._inputs.refs[-1])))
        return unpack_bundle(b64decode(encoded))

    # --- running ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the task to its end."""
        bundle = self._bundle
        self._sharing.submission.bundle = bundle
        self._evaluator.locals_wanted = bundle.locals_wanted
        self._evaluator.is_careful = self._is_retry
        self._program.use_directories(bundle.directories)
        self._outputs.expect(len(bundle.batches))
        self._end_batch -= len(self._outputs.give_up(self._taken))
        sessions.enter(self._session)
        try:
            self._state.move(*(bundle.moved or ("", {})))
            if bundle.log_level:
                self._state.set_log_level(bundle.log_level)
            error = self._run_batches()
        finally:
            sessions.leave(self._session)
            self._session.forget()  # a cycle would keep what the calls have read in memory
            self._evaluator.close()
            self._inputs.close()
        if error is not None:
            self._outputs.give_up_arrays()  # a cycle would keep their memory
            self._fail(error)
        else:
            values = self._outputs.values()
            self._made.clear()
            leak = self._array_leak()
            self._outputs.close()
            self._program.end(values, leak)

    def _run_batches(self) -> bytes | None:
        """Run the batches that no other task takes over.

        Return the packed error of a task's only call, if it raised one.
        """
        if self._bundle.streams:
            return self._run_stream(self._bundle.batches[0][0])
        batches = self._bundle.batches
        is_alone = self._is_alone
        if is_alone and not batches[0][0].is_map:
            self._session.join_states = self._join_states
        if self._is_retry and not is_alone:
            self._run_each_alone()
            return None
        if len(batches) > 1:
            self._sharing.batches = self
            self._sharing.arm()
        run_call = self._run_timed if self._bundle.timed else self._run_call
        while (number := self._next_number()) is not None:
            self._loading_s, started_s = 0.0, time.perf_counter()
            outcomes = self._made[number]
            self._begin_batch(number)
            for call in batches[number]:
                outcomes += run_call(call)
                if self._state.is_changed:
                    self._state.restore()
                if self._sharing.has_items:
                    self._sharing.drop_all()
            if self._delegate is not None:
                self._sharing.delegate(self._delegate)
                return None
            if is_alone and outcomes[0].kind == ERROR:
                return bytes(outcomes[0].packed.head)
            took_s = time.perf_counter() - started_s - self._loading_s
            if self._bundle.raw:
                return self._publish_raw(outcomes[0])
            self._outputs.publish(number, outcomes, took_s, self._take_times())
        return None

    def _join_states(self, name: str, size: int, number: int) -> tuple[str, HasSet]:
        found = self._channel.call("join_states", {"name": name, "size": size, "number": number})
        return found["path"], self._has_set_state

    def _has_set_state(self, name: str, number: int) -> None:
        with self._channel.lock:
            self._channel.notify("set_state", {"name": name, "number": number})
            self._channel.flush()

    def _begin_batch(self, number: int) -> None:
        """Let a call that has an output for itself allocate arrays in it."""
        has_own = len(self._bundle.batches[number]) == 1 and not self._bundle.raw
        self._outputs.begin(number)
        self._session.new_array = self._outputs.array if has_own else None
        self._session.new_region = self._outputs.region if has_own else None

    def _next_number(self) -> int | None:
        with self._channel.lock:
            number = self._next_batch
            if number >= self._end_batch:
                return None
            self._next_batch = number + 1
            return number

    def _run_stream(self, call: Call) -> bytes | None:
        """Run a call whose items other tasks read while it runs; return its error, if any."""
        from ciel.executors.programs.python.objects.streams import StreamWriter

        writer = StreamWriter(self._channel, self._outputs)
        work = self._work(call)

        def put(item: Any) -> None:
            if not writer.is_open:
                self._sharing.close()
            writer.put(item)

        try:
            function = self._function(call).take().function
            args, kwargs = self._arguments.of(call)
            self._evaluator.take(work, function(*args, **kwargs), put)
            self._evaluator.evaluate(work)
            writer.finish(TaskFuture(self._evaluator, work).result())
        except InputFailedError as failed:
            return bytes(failed.outcome.packed.head)
        except BaseException as error:  # a function may raise anything
            if work.state is DONE and work.results[0].kind == ERROR:
                return bytes(work.results[0].payload)
            return self._evaluator.packed_error(error, 1, self._name(call))
        finally:
            writer.close()
        return None

    # --- batches that become tasks ----------------------------------------------------------------

    @property
    def may_be_shared(self) -> bool:
        return self._next_batch < self._end_batch

    def hand_over(self, most: int) -> int:
        count = 0
        while count < most and self.may_be_shared:
            batch = self._end_batch - 1
            calls = self._bundle.batches[batch]
            uses = [use for call in calls for use in call.uses]
            if any(use.input < 0 and use.batch >= self._next_batch - 1 for use in uses):
                break  # the batch needs a result that does not exist yet
            request = request_for(self._bundle, calls, self._inputs.refs, self._stored)
            request["takes"] = self._outputs.give_up((batch,))
            self._channel.notify("spawn", request)
            self._end_batch = batch
            count += 1
        return count

    def _stored(self, use: Use) -> tuple[int, int]:
        return self._sharing.submission.store_outcome(self._made[use.batch][use.place]), 0

    def _run_each_alone(self) -> None:
        """Run each call as a separate task, since one of them has killed the program.

        The results of all other calls were lost with the program, so every call runs again. Only
        the batches that other tasks run do not (ADR 67).
        """
        works: list[list[WorkItem]] = []
        found: dict[tuple[int, int], tuple[WorkItem, int]] = {}
        for batch, calls in enumerate(self._bundle.batches[: self._end_batch]):
            works.append([])
            for call in calls:
                request = request_for(
                    self._bundle,
                    (call,),
                    self._inputs.refs,
                    lambda use: (
                        found[use.batch, use.place][0].child,
                        found[use.batch, use.place][1],
                    ),
                )
                work = self._work(call)
                self._sharing.spawn(work, {**request, "wanted": True})
                for place in range(call.returns):
                    found[batch, len(works[batch]) + place] = (work, place)
                works[batch] += [work] * call.returns
        self._evaluator.complete([work for row in works for work in row])
        for batch, row in enumerate(works):
            places = [found[batch, place] for place in range(len(row))]
            outcomes = [self._outcome(work, place) for work, place in places]
            self._outputs.publish(batch, outcomes, 0.0)

    # --- calls ------------------------------------------------------------------------------------

    def _run_call(self, call: Call) -> Sequence[Outcome]:
        """Return the outcomes of a call."""
        try:
            loaded = self._function(call)
            copy = loaded.take()
            packed = call.arguments
            if call.uses or packed.buffers or call.with_object >= 0:
                args, kwargs = self._arguments.of(call)
            else:  # most calls
                args, kwargs = pickle.loads(packed.head)
        except InputFailedError as failed:
            return [failed.outcome] * call.returns
        except BaseException as error:  # unpickling may raise anything
            return self._failed(call, error, 0)
        if call.is_map:
            loaded.give_back(copy)
            rows, has_shared = args
            if has_shared:
                rows = self._arguments.with_own_copies(call, rows)
            return self._run_map(call, loaded, rows)
        try:
            value = copy.function(*args, **kwargs)
        except BaseException as error:  # a function may raise anything
            return self._failed(call, error, 1)
        if type(value) in PLAIN_TYPES and call.returns == 1:
            loaded.give_back(copy)
            return (Outcome(VALUE, Packed(pickle.dumps(value, PROTOCOL))),)
        outcomes = self._outcomes(call, value)
        if is_independent(value, [outcome.packed for outcome in outcomes]):
            loaded.give_back(copy)
        return outcomes

    def _run_map(
        self, call: Call, loaded: Loaded, rows: Iterable[Sequence[Any]]
    ) -> Sequence[Outcome]:
        values: list[Any] = []
        error: bytes | None = None
        copy, serves_all = loaded.take(), loaded.serves_all
        is_timed = self._bundle.timed
        call_row = self._timed(copy.function) if is_timed else copy.function
        limit_s = time.perf_counter() + (call.limit_s or math.inf)
        check_at, is_cut = 1, False
        try:
            for number, row in enumerate(rows):
                if number == check_at:
                    if is_cut := time.perf_counter() >= limit_s:
                        break
                    check_at += min(number, _ROWS_PER_CHECK)
                value = call_row(*row)
                is_plain = type(value) in PLAIN_TYPES
                if not is_plain:
                    value = self._evaluator.resolve(value, call.name)
                values.append(value)
                if self._state.is_changed:
                    self._state.restore()
                # A value that is not plain may refer to the state of the function.
                if not serves_all and not (is_plain and copy.is_as_sent()):
                    copy = loaded.take()
                    call_row = self._timed(copy.function) if is_timed else copy.function
        except BaseException as raised:  # a function may raise anything
            error = self._evaluator.packed_error(raised, 1, self._name(call))
        outcomes = self._outcomes(call, Mapped(values, error))
        return [*outcomes, Outcome(CUT, Packed(b"%d" % len(values)))] if is_cut else outcomes

    def _outcomes(self, call: Call, value: Any) -> Sequence[Outcome]:
        """Return the outcomes of a call that has returned a value."""
        work = self._work(call)
        self._evaluator.take(work, value)
        if work.state is not DONE:
            may_delegate = self._is_alone and call.returns == 1 and not self._bundle.raw
            self._delegate = self._evaluator.evaluate(work, may_delegate=may_delegate)
            if self._delegate is not None:
                self._outputs.give_up_arrays()
                return ()
        return [self._outcome(work, place) for place in range(call.returns)]

    def _work(self, call: Call) -> WorkItem:
        options = USUAL
        if call.returns != 1 or call.name:
            options = Options(returns=call.returns, name=call.name)
        return WorkItem(_named, (), {}, options)

    def _outcome(self, work: WorkItem, place: int) -> Outcome:
        result: Result = TaskFuture(self._evaluator, work, place).wait()
        return self._sharing.submission.outcome_of(result)

    def _failed(self, call: Call, error: BaseException, skipped_frames: int) -> Sequence[Outcome]:
        packed = self._evaluator.packed_error(error, skipped_frames, self._name(call))
        return [Outcome(ERROR, Packed(packed))] * call.returns

    def _name(self, call: Call) -> str:
        """Return the name of a call as its client shows it."""
        loaded = self._functions.get(call.function)
        return call.name or ("" if loaded is None else loaded.name)

    def _function(self, call: Call) -> Loaded:
        loaded = self._functions.get(call.function)
        if loaded is None:
            loaded = self._functions[call.function] = self._load(call)
            if not loaded.is_constant:
                self._program.functions.are_constant = False
        return loaded

    def _load(self, call: Call) -> Loaded:
        listed: Function = self._bundle.functions[call.function]
        program = self._program
        loaded = program.functions.find(listed.digest)
        if loaded is None:
            started_s = time.perf_counter()
            packed = listed.packed
            if packed is None:
                ref = self._inputs.refs[listed.input]
                packed = bytes(self._inputs.content(ref, may_cache=False))
            try:
                loaded = program.load(listed._replace(packed=packed, input=-1))
            except BaseException as error:  # modules that it imports may raise anything
                raise cannot_unpickle(f"the function {call.name}", error) from error
            self._loading_s += time.perf_counter() - started_s
        return loaded

    # --- times for a trace ------------------------------------------------------------------------

    def _run_timed(self, call: Call) -> Sequence[Outcome]:
        """Run a call and note its time; for a map, the time of each row."""
        return self._run_call(call) if call.is_map else self._timed(self._run_call)(call)

    def _timed(self, function: Callable[..., T]) -> Callable[..., T]:
        """Return a function that also notes the time of each of its calls."""

        def timed(*args: Any) -> T:
            started_s = time.time()
            try:
                return function(*args)
            finally:
                self._spans.append((started_s, time.time() - started_s))

        return timed

    def _take_times(self) -> Times | None:
        """Return the times of the calls of a batch that has ended, if the client wants a trace."""
        if not self._bundle.timed:
            return None
        spans, self._spans = self._spans, []
        return Times(os.environ.get("CIEL_WORKER", ""), spans)

    # --- the end ----------------------------------------------------------------------------------

    def _array_leak(self) -> str:
        if not self._outputs.has_surviving_arrays:
            return ""
        return "a reference to an array in the store, which could still be changed"

    def _publish_raw(self, outcome: Outcome) -> bytes | None:
        """Write the output for programs that read bytes; return the error for other types."""
        value = unpack(outcome.packed.head, outcome.packed.buffers)
        if isinstance(value, str):
            value = value.encode()
        try:
            content = memoryview(value).cast("B")
        except TypeError:
            text = f"the input of a program must be bytes or a string, not {type(value).__name__}"
            return self._evaluator.packed_error(TypeError(text))
        self._outputs.publish_pieces(0, [content])
        return None

    def _fail(self, error: bytes) -> None:
        from ciel.python.failures import RAISED, failure_details

        self._program.fail(RAISED, failure_details(error))


def _named() -> None:
    """Placeholder for the function of a bundle's call in its work item."""
