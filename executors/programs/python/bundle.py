"""One task of the Python program: the calls of a bundle, lot by lot."""

from __future__ import annotations

import math
import os
import pickle
import sys
import time
from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ciel.executors.programs.python.batches import told_of
from ciel.executors.programs.python.evaluation.evaluator import Evaluator, each_its_own
from ciel.executors.programs.python.evaluation.sharing import Sharing
from ciel.executors.programs.python.functions import Loaded, is_apart
from ciel.executors.programs.python.objects.inputs import Inputs
from ciel.executors.programs.python.objects.outputs import Outputs
from ciel.python import sessions
from ciel.python.calls import AS_PATH, AS_STREAM, Bundle, Call, Function, Mapped, Use, unpack_bundle
from ciel.python.contents import CUT, ERROR, MOVED, VALUE, Outcome, Times
from ciel.python.options import Options
from ciel.python.packing import PLAIN_TYPES, PROTOCOL, Packed, UnpackedError, unpack
from ciel.python.rows import each_with_its_own
from ciel.python.task_futures import DONE, Result, TaskFuture, WorkItem, read_outcome
from ciel.python.task_session import TaskSession

if TYPE_CHECKING:
    from ciel.executors.programs.python.program import Program

T = TypeVar("T")
_NO_OPTIONS = Options()
_ROWS_PER_LOOK = 16
"""So many rows of a map run at most between two looks at the clock."""


class _Given(Sequence[Any]):
    """The values of the futures of a call, each read anew whenever it is asked for."""

    def __init__(self, given: Callable[[Use, Call], Any], call: Call) -> None:
        self._given = given
        self._call = call

    def __getitem__(self, place: Any) -> Any:
        return self._given(self._call.uses[place], self._call)

    def __len__(self) -> int:
        return len(self._call.uses)


class _InputFailedError(Exception):
    """An argument could not be made: the call has the same outcome."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__("an argument has failed")
        self.outcome = outcome


class Run:
    """A task, from its start to its end."""

    def __init__(self, program: Program, told: dict[str, Any], paths: dict[str, str]) -> None:
        channel = program.channel
        self._program = program
        self._channel = channel
        self._inputs = Inputs(told["inputs"], paths, channel, program.kept)
        self._outputs = Outputs(channel)
        self._sharing = Sharing(
            channel, self._inputs, self._outputs, program.functions, program.clock
        )
        self._evaluator = self._sharing.evaluator = Evaluator(self._sharing)
        self._session = TaskSession(
            self._evaluator,
            program.functions.snapshot,
            program.surroundings.scratch,
            lambda: channel.reply("task", {}),
        )
        self._bundle = self._read_bundle(told)
        self._made: list[list[Outcome]] = [[] for _ in self._bundle.lots]
        self._next_lot, self._end_lot = 0, len(self._bundle.lots)
        self._surroundings = program.surroundings
        self._is_again = told.get("attempt", 1) > 1
        self._functions: dict[int, Loaded] = {}
        self._is_alone = [len(lot) for lot in self._bundle.lots] == [1]
        self._heir: TaskFuture[Any] | None = None  # who makes our result
        self._spans: list[tuple[float, float]] = []  # of calls, for a trace
        self._loading_s = 0.0  # spent on unpickling functions, since the lot began

    def _read_bundle(self, told: dict[str, Any]) -> Bundle:
        encoded = told.get("calls")
        if encoded is None:
            return unpack_bundle(bytes(self._inputs.content(self._inputs.arrays[-1])))
        return unpack_bundle(b64decode(encoded))

    # --- running ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Run it to its end."""
        bundle = self._bundle
        self._sharing.sending.places = bundle.places
        self._sharing.sending.moved = bundle.moved
        self._sharing.sending.log_level = bundle.log_level
        self._evaluator.locals_wanted = bundle.locals_wanted
        self._evaluator.is_careful = self._is_again
        self._program.add_places(bundle.places)
        self._outputs.expect(len(bundle.lots))
        sessions.enter(self._session)
        try:
            self._surroundings.move(*(bundle.moved or ("", {})))
            if bundle.log_level:
                self._surroundings.log_from(bundle.log_level)
            error = self._run_lots()
        finally:
            sessions.leave(self._session)
            self._evaluator.close()
            self._inputs.close()
        if error is not None:
            self._fail(error)
        else:
            values = self._outputs.values()
            self._made.clear()
            self._program.end(values, self._survivors())

    def _run_lots(self) -> bytes | None:
        """Run all lots that are ours; return the error of the only call, if it raised one."""
        if self._bundle.streams:
            return self._run_stream(self._bundle.lots[0][0])
        lots = self._bundle.lots
        is_alone = self._is_alone
        if is_alone and not self._bundle.raw:
            self._session.new_array = self._outputs.array
        if self._is_again and not is_alone:
            self._run_each_alone()
            return None
        if len(lots) > 1:
            self._sharing.lots = self
            self._sharing.arm()
        run_call = self._run_timed if self._bundle.timed else self._run_call
        while (number := self._take_lot()) is not None:
            self._loading_s, begun_s = 0.0, time.perf_counter()
            outcomes = self._made[number]
            for call in lots[number]:
                outcomes += run_call(call)
                if self._surroundings.is_changed:
                    self._surroundings.put_right()
                if self._sharing.has_works:
                    self._sharing.drop_all()
            if self._heir is not None:
                self._sharing.hand_on(self._heir)
                return None
            if is_alone and outcomes[0].kind == ERROR:
                return bytes(outcomes[0].packed.head)
            took_s = time.perf_counter() - begun_s - self._loading_s
            if self._bundle.raw:
                return self._publish_raw(outcomes[0])
            self._outputs.publish(number, outcomes, took_s, self._take_times())
        return None

    def _run_timed(self, call: Call) -> Sequence[Outcome]:
        """Run a call, and note its time for a trace; of a map each element is noted."""
        return self._run_call(call) if call.is_map else self._timed(self._run_call)(call)

    def _timed(self, function: Callable[..., T]) -> Callable[..., T]:
        """Return a function that notes when a call of another one ran."""

        def timed(*args: Any) -> T:
            begun_s = time.time()
            try:
                return function(*args)
            finally:
                self._spans.append((begun_s, time.time() - begun_s))

        return timed

    def _take_times(self) -> Times | None:
        """Return when the calls of the lot ran that has ended, if a trace was asked for."""
        if not self._bundle.timed:
            return None
        spans, self._spans = self._spans, []
        return Times(os.environ.get("CIEL_WORKER", ""), spans)

    def _run_stream(self, call: Call) -> bytes | None:
        """Run a call whose items are read meanwhile; return what it raised."""
        from ciel.executors.programs.python.objects.streams import Writing

        writing = Writing(self._channel, self._outputs)
        work = self._work(call)

        def put(item: Any) -> None:
            if not writing.is_open:
                self._sharing.close()
            writing.put(item)

        try:
            function = self._function(call).take().function
            args, kwargs = self._arguments(call)
            self._evaluator.take(work, function(*args, **kwargs), put)
            self._evaluator.evaluate(work)
            writing.finish(TaskFuture(self._evaluator, work).result())
        except _InputFailedError as failed:
            return bytes(failed.outcome.packed.head)
        except BaseException as error:  # whatever a function raises is its outcome
            if work.state is DONE and work.results[0].kind == ERROR:
                return bytes(work.results[0].payload)
            return self._evaluator.packed_error(error, 1, self._name(call))
        finally:
            writing.close()
        return None

    def _take_lot(self) -> int | None:
        with self._channel.lock:
            number = self._next_lot
            if number >= self._end_lot:
                return None
            self._next_lot = number + 1
            return number

    # --- lots that others take --------------------------------------------------------------------

    @property
    def may_be_shared(self) -> bool:
        """Whether there are lots that were not begun."""
        return self._next_lot < self._end_lot

    def hand_over(self, most: int) -> int:
        """Have others make some of the lots that were not begun; return how many. The channel's
        lock is held.
        """
        count = 0
        while count < most and self.may_be_shared:
            lot = self._end_lot - 1
            calls = self._bundle.lots[lot]
            uses = [use for call in calls for use in call.uses]
            if any(use.input < 0 and use.lot >= self._next_lot - 1 for use in uses):
                break  # it takes what is still to be made here
            told = told_of(self._bundle, calls, self._inputs.arrays, self._stored)
            told["takes"] = self._outputs.give_up((lot,))
            self._channel.tell("spawn", told)
            self._end_lot = lot
            count += 1
        return count

    def _stored(self, use: Use) -> tuple[int, int]:
        return self._sharing.sending.store_outcome(self._made[use.lot][use.place]), 0

    def _run_each_alone(self) -> None:
        """Have each call be a task of its own: the program has died of one of them. The results of
        the others died with it, so all are run (ADR 67).
        """
        works: list[list[WorkItem]] = []
        found: dict[tuple[int, int], tuple[WorkItem, int]] = {}
        for lot, calls in enumerate(self._bundle.lots):
            works.append([])
            for call in calls:
                told = told_of(
                    self._bundle,
                    (call,),
                    self._inputs.arrays,
                    lambda use: (found[use.lot, use.place][0].child, found[use.lot, use.place][1]),
                )
                work = self._work(call)
                self._sharing.create(work, {**told, "wanted": True})
                for place in range(call.returns):
                    found[lot, len(works[lot]) + place] = (work, place)
                works[lot] += [work] * call.returns
        self._evaluator.complete([work for row in works for work in row])
        for lot, row in enumerate(works):
            places = [found[lot, place] for place in range(len(row))]
            outcomes = [self._outcome(work, place) for work, place in places]
            self._outputs.publish(lot, outcomes, 0.0)

    # --- calls ------------------------------------------------------------------------------------

    def _run_call(self, call: Call) -> Sequence[Outcome]:
        """Return what becomes of a call."""
        try:
            loaded = self._function(call)
            copy = loaded.take()
            args, kwargs = self._arguments(call)
        except _InputFailedError as failed:
            return [failed.outcome] * call.returns
        except BaseException as error:  # of whatever was to be unpacked
            return self._failed(call, error, 0)
        if call.is_map:
            loaded.give_back(copy)
            rows, has_shared = args
            if has_shared:
                rows = each_with_its_own(rows, self._inputs.writable, _Given(self._given, call))
            return self._run_map(call, loaded, rows)
        try:
            value = copy.function(*args, **kwargs)
        except BaseException as error:  # whatever a function raises is its outcome
            return self._failed(call, error, 1)
        if type(value) in PLAIN_TYPES and call.returns == 1:
            loaded.give_back(copy)
            return (Outcome(VALUE, Packed(pickle.dumps(value, PROTOCOL))),)
        outcomes = self._outcomes(call, value)
        if is_apart(value, [outcome.packed for outcome in outcomes]):
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
        look_at, is_cut = 1, False
        try:
            for number, row in enumerate(rows):
                if number == look_at:
                    if is_cut := time.perf_counter() >= limit_s:
                        break
                    look_at += min(number, _ROWS_PER_LOOK)
                value = call_row(*row)
                is_plain = type(value) in PLAIN_TYPES
                if not is_plain:
                    value = self._evaluator.resolve(value, call.name)
                values.append(value)
                if self._surroundings.is_changed:
                    self._surroundings.put_right()
                # Any other value may refer to what the function does.
                if not serves_all and not (is_plain and copy.is_as_sent()):
                    copy = loaded.take()
                    call_row = self._timed(copy.function) if is_timed else copy.function
        except BaseException as raised:  # as above
            error = self._evaluator.packed_error(raised, 1, self._name(call))
        outcomes = self._outcomes(call, Mapped(values, error))
        return [*outcomes, Outcome(CUT, Packed(b"%d" % len(values)))] if is_cut else outcomes

    def _outcomes(self, call: Call, value: Any) -> Sequence[Outcome]:
        """Return what becomes of a call that has returned something."""
        work = self._work(call)
        self._evaluator.take(work, value)
        if work.state is not DONE:
            may_hand_on = self._is_alone and call.returns == 1 and not self._bundle.raw
            self._heir = self._evaluator.evaluate(work, may_hand_on=may_hand_on)
            if self._heir is not None:
                self._outputs.give_up_drafts()
                return ()
        return [self._outcome(work, place) for place in range(call.returns)]

    def _work(self, call: Call) -> WorkItem:
        options = _NO_OPTIONS
        if call.returns != 1 or call.name:
            options = Options(returns=call.returns, name=call.name)
        return WorkItem(_named, (), {}, options)

    def _outcome(self, work: WorkItem, place: int) -> Outcome:
        result: Result = TaskFuture(self._evaluator, work, place).wait()
        return self._sharing.sending.outcome_of(result)

    def _failed(self, call: Call, error: BaseException, skipped_frames: int) -> Sequence[Outcome]:
        packed = self._evaluator.packed_error(error, skipped_frames, self._name(call))
        return [Outcome(ERROR, Packed(packed))] * call.returns

    def _name(self, call: Call) -> str:
        """Name a call to people, as its client does."""
        loaded = self._functions.get(call.function)
        return call.name or ("" if loaded is None else loaded.name)

    # --- what calls are made with -----------------------------------------------------------------

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
            began_s = time.perf_counter()
            packed = listed.packed
            if packed is None:
                array = self._inputs.arrays[listed.input]
                packed = bytes(self._inputs.content(array, keeps=False))
            try:
                loaded = program.load(listed._replace(packed=packed, input=-1))
            except BaseException as error:  # of whatever is imported for it
                raise _not_here(f"the function {call.name}", error) from error
            self._loading_s += time.perf_counter() - began_s
        return loaded

    def _arguments(self, call: Call) -> Any:
        packed = call.arguments
        if call.with_object >= 0:
            outcome = self._inputs.outcome(self._inputs.arrays[call.with_object], 0)
            if outcome.kind != VALUE:
                raise _InputFailedError(outcome)
            packed = outcome.packed
        if not call.uses and not packed.buffers:
            return pickle.loads(packed.head)
        given = [self._given(use, call) for use in call.uses]
        try:
            buffers = map(self._inputs.writable, packed.buffers)
            args, kwargs = unpack(packed.head, buffers, given)
        except UnpackedError:
            raise
        except BaseException as error:  # of anybody's class
            raise _not_here(f"the arguments of {call.name}", error) from error
        streams = {
            id(value): use
            for use, value in zip(call.uses, given, strict=True)
            if use.how == AS_STREAM
        }
        if not streams:
            return args, kwargs
        own = each_its_own(streams, lambda use: self._given(use, call))
        if call.is_map:
            return ([[own(value) for value in row] for row in args[0]], args[1]), kwargs
        return [own(value) for value in args], {name: own(value) for name, value in kwargs.items()}

    def _given(self, use: Use, call: Call) -> Any:
        """Return what a function is given for a future."""
        if use.how == AS_STREAM and use.input >= 0:
            array = self._inputs.arrays[use.input]
            if array[0] != "err":
                from ciel.executors.programs.python.objects.streams import items_of

                return items_of(self._channel, array)
        if use.input < 0:
            outcome = self._made[use.lot][use.place]
        else:
            array = self._inputs.arrays[use.input]
            if use.raw:
                return self._raw(array, use.how)
            known = self._inputs.read_before(array, use.place)
            if known is not None:
                return known
            outcome = self._inputs.outcome(array, use.place)
        if outcome.kind == VALUE and not outcome.refs:
            try:
                buffers = map(self._inputs.writable, outcome.packed.buffers)
                value = unpack(outcome.packed.head, buffers)
                if use.input >= 0:
                    self._inputs.note_read(self._inputs.arrays[use.input], use.place, value)
                return value
            except BaseException as error:  # of anybody's class
                raise _not_here(f"an argument of {call.name}", error) from error
        if outcome.kind == ERROR:
            raise _InputFailedError(outcome)
        result = read_outcome(outcome, self._evaluator)
        if result.kind == MOVED:
            result = result.payload.wait()
            if result.kind == ERROR:
                raise _InputFailedError(Outcome(ERROR, Packed(result.payload)))
        work = WorkItem(None, (), {}, _NO_OPTIONS)
        work.results, work.state = [result], DONE
        return TaskFuture(self._evaluator, work).result()

    def _raw(self, array: list[Any], how: str) -> Any:
        if array[0] == "err":
            raise _InputFailedError(self._inputs.outcome(array, 0))
        if how == AS_PATH:
            return self._inputs.shown_path(array)
        known = self._inputs.read_before(array, 0)
        if known is None:
            known = bytes(self._inputs.content(array))
            self._inputs.note_read(array, 0, known)
        return known

    # --- the end ----------------------------------------------------------------------------------

    def _survivors(self) -> str:
        drafts = self._outputs.drafts
        if drafts is None or not drafts.has_survivors:
            return ""
        return "an array that lies in the store, and could still change it"

    def _publish_raw(self, outcome: Outcome) -> bytes | None:
        """Make the output of what a call has returned, as it is; return why that cannot be."""
        value = unpack(outcome.packed.head, outcome.packed.buffers)
        if isinstance(value, str):
            value = value.encode()
        try:
            content = memoryview(value).cast("B")
        except TypeError:
            text = f"what programs are to read must be bytes or a text, not {type(value).__name__}"
            return self._evaluator.packed_error(TypeError(text))
        self._outputs.publish_pieces(0, [content])
        return None

    def _fail(self, error: bytes) -> None:
        from ciel.python.failures import RAISED, failure_details

        self._program.fail(RAISED, failure_details(error))


def _named() -> None:
    """Stands for the function of a call of the bundle."""


def _not_here(what: str, error: BaseException) -> Exception:
    from ciel.python.failures import packing_error

    text = f"it cannot be unpickled by {sys.executable}: {type(error).__name__}: {error}"
    return packing_error(what, UnpackedError(text))
