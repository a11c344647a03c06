"""What a Python task has others do: works that it gives away now and then, since somebody may have
time for them, and what it has to wait for.

A thread looks on while there is something to share: the function that runs need not help. Whatever
both of them change is guarded by the lock of the channel.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

from ciel.core.tasks import TIMEOUT_MAX_S
from ciel.executors.programs.python.evaluation.submission import Sending, item_of
from ciel.executors.programs.python.functions import Functions
from ciel.python.contents import ERROR
from ciel.python.task_futures import (
    DONE,
    PENDING,
    PLAIN,
    REMOTE,
    RUNNING,
    Result,
    TaskFuture,
    WorkItem,
    read_outcome,
    result_of,
)

if TYPE_CHECKING:
    from ciel.executors.programs.python.channel import Channel
    from ciel.executors.programs.python.evaluation.evaluator import Evaluator
    from ciel.executors.programs.python.evaluation.share_timer import Clock
    from ciel.executors.programs.python.objects.inputs import Inputs
    from ciel.executors.programs.python.objects.outputs import Outputs
    from ciel.python.packing import Buffer

AWAY_MAX = 64
"""So many works of a task are given away at a time, as far as it knows."""
HOMES_MAX = 1000

Home = dict[int, "weakref.ref[WorkItem]"]


class Sharing:
    """What one task shares."""

    evaluator: Evaluator

    def __init__(
        self, channel: Channel, inputs: Inputs, outputs: Outputs, functions: Functions, clock: Clock
    ) -> None:
        self.lock = channel.lock
        self._thread = get_ident()
        self.is_armed = False
        self.is_closed = False  # an output is open: the task cannot wait for others any more
        self.lots: Any = None  # who has lots that were not begun
        self._channel = channel
        self._inputs = inputs
        self._outputs = outputs
        self.sending = Sending(self, channel, outputs, functions)
        self._clock = clock
        self._homes: list[Home] = []  # of works that nobody has begun, the oldest body's first
        self._away: dict[WorkItem, None] = {}
        self._given_at_once = 1
        self.done_count = 0  # works that were done here since the last look

    def writable(self, buffer: Buffer) -> Buffer:
        """Return the bytes of a buffer in memory of their own."""
        return self._inputs.writable(buffer)

    # --- what is held -----------------------------------------------------------------------------

    def new_home(self) -> Home:
        """Make a place for the works of a body; the lock is held."""
        if len(self._homes) >= HOMES_MAX:
            self._homes = [home for home in self._homes if home]
        home: Home = {}
        self._homes.append(home)
        return home

    def forget(self, work: WorkItem) -> None:
        """Take a work from where it waits; the lock is held."""
        home, work.scope = work.scope, None
        if home is not None:
            home.pop(id(work), None)
            self.done_count += 1
            if not home and self._homes and self._homes[-1] is home:
                self._homes.pop()  # its body makes another one when it needs it

    def close(self) -> None:
        """Share nothing any more: an output is open, and so the task must end here."""
        with self.lock:
            self.is_closed = True

    @property
    def has_works(self) -> bool:
        """Whether something may be held that nobody needs any more."""
        return bool(self._homes)

    def drop_all(self) -> None:
        """Forget what nobody has needed."""
        with self.lock:
            self._homes.clear()

    def note_within(self) -> None:
        """Have the worker know that we run what others could."""
        with self.lock:
            self._channel.tell("within", {})
            self._channel.flush()

    # --- now and then -----------------------------------------------------------------------------

    def arm(self) -> None:
        """Have the thread look on."""
        self.is_armed = True
        self._clock.watch(self)

    def share(self) -> bool:
        """Give something away; return whether there may be more. The lock is held."""
        if self.is_closed:
            return False
        room = self._channel.reply("room", {})["slots"]
        if room == 0:
            return self._has_any
        left = self._give_now() if room is None else room
        if self.lots is not None:
            left -= self.lots.hand_over(left)
        while left and (work := self._next_held()) is not None:
            left -= self.give(work, wanted=True)
        self._channel.flush()
        return self._has_any

    @property
    def _has_any(self) -> bool:
        return bool(self._homes) or (self.lots is not None and self.lots.may_be_shared)

    def _give_now(self) -> int:
        """Say how much is given away where nobody knows who has room."""
        if self.done_count:
            self._given_at_once = 1
        else:  # what runs takes long, and so may the rest
            self._given_at_once = 2 * self._given_at_once
        self.done_count = 0
        return max(0, min(self._given_at_once, AWAY_MAX - len(self._away)))

    def _next_held(self) -> WorkItem | None:
        """Take the work that its body will come to last, of the oldest body that has any."""
        while self._homes:
            home = self._homes[0]
            while home:
                work = home.popitem()[1]()
                if work is not None and work.state is PENDING:
                    work.scope = None
                    return work
            del self._homes[0]
        return None

    # --- works become tasks -----------------------------------------------------------------------

    def give(self, work: WorkItem, *, wanted: bool) -> bool:
        """Make a task of a work, and of those that it takes; the lock is held. False if that cannot
        be done (now): it is run here.
        """
        pending = [work]
        while pending:
            top = pending[-1]
            if top.state is not PENDING:
                pending.pop()
                continue
            held = [
                f.target().work
                for f in top.dependencies
                if f.target().work.state in (PENDING, RUNNING)
            ]
            if any(other.state is RUNNING for other in held):
                return False
            if held:
                pending += held
                continue
            pending.pop()
            if not self._create(top, wanted):
                return False
        return True

    def _create(self, work: WorkItem, wanted: bool) -> bool:
        for future in work.dependencies:
            outcome = future.outcome()
            if outcome is not None and outcome.kind == ERROR:
                self.evaluator.settle_away(work, [outcome] * work.options.returns)
                return True
        try:
            told = self.sending.told(work)
        except Exception:  # of anybody's __reduce__: whoever needs it learns of that
            return False
        if wanted:
            told["wanted"] = True
        self.create(work, told)
        return True

    def create(self, work: WorkItem, told: dict[str, Any]) -> None:
        """Have others do a work: it is spawned as `told`."""
        with self.lock:
            work.child = self._outputs.made_count
            self._outputs.made_count += 1
            self._channel.tell("spawn", told)
            work.state = REMOTE
            work.args, work.kwargs, work.packed, work.dependencies = (), {}, None, ()
            self._away[work] = None

    def handed_on(self, future: TaskFuture[Any]) -> TaskFuture[Any] | None:
        """See to it that others make what a future stands for; None if they cannot, or if whoever
        takes it over would have to know more of it.
        """
        work = future.work
        with self.lock:
            if work.state is PENDING:
                self.give(work, wanted=False)
            return (
                future if work.state is REMOTE and not work.is_stream and not work.is_raw else None
            )

    def hand_on(self, future: TaskFuture[Any]) -> None:
        """Have the result of the task be what others make."""
        work = future.work
        is_all = work.function is not None and work.options.returns == 1
        told = {"forward": item_of(work), "place": None if is_all else future.place}
        self._channel.tell("tail_spawn", told)

    # --- waiting ----------------------------------------------------------------------------------

    def look(self, works: Sequence[WorkItem]) -> bool:
        """Find out, without waiting, whether all of these are done that others do."""
        away = [work for work in works if work.state is REMOTE]
        with self.lock:
            reply = self._channel.reply("look", {"items": [item_of(work) for work in away]})
            for work, ref in zip(away, reply["refs"], strict=True):
                self._learn(work, ref["__ref__"])
        return all(work.state is DONE for work in works)

    @property
    def may_wait(self) -> bool:
        """Whether this task can wait here, in no slot."""
        return not self.is_closed and get_ident() == self._thread

    def wait(
        self, works: Sequence[WorkItem], *, any_one: bool = False, timeout_s: float | None = None
    ) -> None:
        """Wait, in no slot, until all works are done that cannot be done here; or one of them; or,
        with a time-out, until that is over or more of them is done.
        """
        if timeout_s is not None and timeout_s >= TIMEOUT_MAX_S:
            timeout_s = None
        if get_ident() != self._thread:
            raise RuntimeError(
                "what runs elsewhere can be waited for only in the thread in which a task began"
            )
        if self.is_closed:
            self.look([work for work in works if work.state is REMOTE])
            are_done = [work.state is DONE for work in works]
            if any(are_done) if any_one else all(are_done):
                return
            raise RuntimeError(
                "a task that has yielded an item cannot wait for what runs elsewhere: do so before"
            )
        with self.lock:
            works = [self._others_work(work) for work in works if work.state is not DONE]
            works = [work for work in works if work.state is not DONE]
            if not works:
                return
            if self.look(works) or (any_one and any(work.state is DONE for work in works)):
                return
            works = [work for work in works if work.state is not DONE]
            while (held := self._next_held()) is not None:
                if not self.give(held, wanted=True):
                    break
            self._park(works, any_one, timeout_s)

    def _others_work(self, work: WorkItem) -> WorkItem:
        """Have others do a work that cannot be done here; the lock is held."""
        if work.state is RUNNING:  # below us, so that it cannot go on before we do
            work = work.copy(self.evaluator)
        if work.state is PENDING and not self.give(work, wanted=True):
            self.evaluator.fail_to_give(work)
        return work

    def _park(self, works: Sequence[WorkItem], any_one: bool, timeout_s: float | None) -> None:
        """Have this process go on when works are done; what else is away goes on meanwhile."""
        self._outputs.give_up_drafts()
        listed = list(dict.fromkeys([*works, *self._away]))
        count = 0 if any_one or timeout_s is not None else len(set(works))
        items = [item_of(work) for work in listed]
        told: dict[str, Any] = {"is_fixed": True, "needed": items[:count], "others": items[count:]}
        if timeout_s is not None:
            told["timeout_s"] = timeout_s
        self._channel.tell("tail_spawn", told)
        self._channel.tell("exit", {"keep_process": "must_keep"})
        started = self._channel.next_start()
        if started is None:
            os._exit(0)  # nobody needs what is waited for
        resumed, paths = started
        self._inputs.add_paths(paths)
        self._outputs.begin_anew()
        if not self.evaluator.is_careful:
            self._channel.tell("within", {})
        self.sending.begin_anew()
        arrays = [item["__ref__"] for item in resumed["inputs"]]
        for work, array in zip(listed, arrays, strict=False):
            work.child, work.ref = -1, array
            if array[0] == "s2":
                array = ["c2", *array[1:]]  # it is read as it grows: to its end
            self._learn(work, array)

    def _learn(self, work: WorkItem, array: list[Any]) -> None:
        """Take in what became of a work that others do, if that is known."""
        if array[0] == "err":
            from ciel.executors.programs.python.objects.inputs import failed

            results = [Result(ERROR, failed(array).packed.head)] * work.options.returns
        elif array[0] in ("val", "c2", "<3"):
            if work.is_stream:
                from ciel.executors.programs.python.objects.streams import all_items

                results = [result_of(all_items(self._channel, work.ref or array))]
            elif work.is_raw:
                results = [Result(PLAIN, bytes(self._inputs.content(array)))]
            else:
                outcomes = self._inputs.outcomes(array)
                results = [read_outcome(outcome, self.evaluator) for outcome in outcomes]
        else:
            return
        self._away.pop(work, None)
        self.evaluator.settle_away(work, results)
