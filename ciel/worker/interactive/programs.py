"""Programs that talk: each serves one attempt at a time, and may then wait for the next, or in the
middle of a task.

    fresh ──▶ busy ──▶ idle (may_keep) ──▶ busy …
                  ├──▶ waits (must_keep), under the name of a fixed object ──▶ busy
                  └──▶ leaves (no)

An attempt that talks is told to the owner once its conversation is over; if its program is to leave
or has failed, when nothing of that runs any more.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from twisted.internet.threads import deferToThread
from twisted.logger import Logger

from ciel.core.errors import CielError
from ciel.core.events import RECALLED, TaskFault
from ciel.core.ids import ObjectId
from ciel.core.tasks import TaskSpec
from ciel.execution.executor import Executor, Talk, Task
from ciel.launch import LaunchSpecError
from ciel.launch.messages import ProgramExited, ProgramFailed
from ciel.net.turns import DelayedCall
from ciel.storage.errors import ObjectNotFoundError, StorageError
from ciel.storage.interface import DISK
from ciel.wire.calls import Call, encode_call, frame_call
from ciel.wire.errors import EncodeError, WireError
from ciel.worker.attempts.faults import (
    arguments_fault,
    executor_fault,
    lacking_fault,
    preparation_fault,
    serving_fault,
    storing_fault,
)
from ciel.worker.attempts.kept_files import keep_files
from ciel.worker.attempts.workplace import Workplace
from ciel.worker.interactive.attached import Guest
from ciel.worker.interactive.attempt import Talked
from ciel.worker.interactive.channel import ProgramChannel
from ciel.worker.interactive.outgoing import Telling
from ciel.worker.interactive.process import (
    End,
    Patience,
    Process,
    fault_at_end,
    kind_of,
    start,
    take_in,
)
from ciel.worker.limits.growth import Growing as GrowingFiles
from ciel.worker.state.orders import Key, StartAttempt
from ciel.worker.state.pool import Pool

GRACE_S = 0.25
"""Between the polite signal and the one that cannot be ignored."""
_LAST_WORDS_S = 0.5  # between the end of a channel and the end of its program

_GIVEN_BACK = TaskFault(RECALLED, "the program that ran it ended, in the middle of a child")

log = Logger(__name__)  # compiled, it cannot be found out


class Talking:
    """All programs that talk on this worker."""

    def __init__(
        self,
        place: Workplace,
        told: Callable[[Key, TaskFault, float, int | None], None],
        patience: Patience,
    ) -> None:
        self._place = place
        self._patience = patience
        self._told = told  # whom a fault goes to
        self._processes: dict[int, Process] = {}
        self._guests: dict[int, Process] = {}  # of these
        self._by_channel: dict[ProgramChannel, Process] = {}
        self._busy: dict[Key, Process] = {}
        self._fixed: dict[ObjectId, Process] = {}
        self._pool = Pool(patience.idle_s)
        self._count = 0
        self._telling = Telling(place.reactor, place.turns)
        self._reaping: DelayedCall | None = None

    @property
    def waiting_count(self) -> int:
        """How many more programs the launcher has than attempts talk: less than 0 for guests."""
        return len(self._processes) - len(self._busy) - len(self._guests)

    # --- starting ---------------------------------------------------------------------------------

    def begin(
        self, order: StartAttempt, task: Task, executor: Executor, talk: Talk, level: str = ""
    ) -> None:
        """Have an attempt served and its end told, whatever happens; `level`: as `Talked` says."""
        talked = Talked(order, task, executor, self._place, self, level=level)
        if talk.fixed is not None:
            process = self._fixed.pop(talk.fixed, None)
            if process is None:
                losses = ((talk.fixed, self._place.netloc),)
                text = f"the program that waited on worker {self._place.worker} is gone"
                self._place.owner.inputs_gone(talked.key, losses, text)
                return
        else:
            number = self._pool.take(kind_of(talked, talk), task.inputs)
            process = None if number is None else self._processes[number]
        if process is None:
            process = self._start(talked, talk)
            if process is None:
                return
        self._serve(process, talked, talk)

    def _serve(self, process: Process, talked: Talked, talk: Talk) -> None:
        executor: Any = talked.executor
        process.stack = [talked]
        process.is_called_off = process.has_begun = False
        self._busy[talked.key] = process
        talked.scratch, talked.at_hand = process.scratch, process.holds
        talked.attached = None if process.guest is None else process.guest.id
        try:
            process.conversation = executor.converse(talked, partial(self._telling.say, process))
            process.subject = process.conversation.subject
            if talk.encoded is None:
                frame = encode_call("start_task", talk.arguments)
            else:
                frame = frame_call("start_task", talk.encoded)
            self._telling.say_frame(process, frame)
        except EncodeError as error:
            self._fail(process, arguments_fault(executor.name, error))
        except Exception as error:  # an executor may be anybody's
            self._fail(process, executor_fault(talked.executor, error))
        process.limit_memory(self._place.memory)

    def _start(self, talked: Talked, talk: Talk) -> Process | None:
        place = self._place
        self._count += 1
        try:
            process = start(
                self._count, talked, talk, place, self, self._process_started, self._process_ended
            )
        except ObjectNotFoundError as error:
            losses = ((ObjectId(error.object_id), place.netloc),)
            place.owner.inputs_gone(talked.key, losses, f"on worker {place.worker}: {error}")
            return None
        except (StorageError, LaunchSpecError, OSError) as error:
            self._told(talked.key, preparation_fault(place.worker, error), 0.0, None)
            return None
        self._processes[process.number] = process
        self._by_channel[process.channel] = process
        paths = (process.scratch.stdout_path, process.scratch.stderr_path)
        growing = GrowingFiles(paths, {}, process.log_lines)
        place.growth.add(process.key, growing)
        process.due = place.reactor.callLater(self._patience.first_call_s, self._silent, process)
        return process

    def attach(self, guest: Guest) -> None:
        """Have a process that was there before wait for a task, as guest. Raises OSError."""
        self._count += 1
        process = take_in(self._count, guest, self._place, self)
        self._processes[self._count] = self._guests[self._count] = self._fixed[guest.id] = process
        self._by_channel[process.channel] = process
        guest.watch(lambda left: self._process_ended(process, left))

    def guests(self) -> list[tuple[Guest, ProgramChannel]]:
        """List the processes that are attached, with what is said to each by."""
        return [(each.guest, each.channel) for each in self._guests.values() if each.guest]

    def _process_started(self, process: Process, pid: int) -> None:
        process.pid = pid
        process.limit_memory(self._place.memory)

    def _silent(self, process: Process) -> None:
        """A new program had its time to take its first task."""
        process.due = None
        if not process.channel.has_spoken and not process.channel.has_listened:
            text = f"it did not read its first task within {self._patience.first_call_s:g} s"
            self._fail(process, TaskFault("RUNTIME_ERROR", text))

    # --- what programs say ------------------------------------------------------------------------

    def calls_came(self, channel: ProgramChannel, calls: list[Call]) -> None:
        """As `ChannelOwner` says."""
        process = self._by_channel[channel]
        if process.talked is not None:
            process.has_begun = True
            self.go_on(process.talked, partial(process.conversation.called, calls))
        else:
            log.warn("{command} spoke unasked", command=process.called)
            process.broke = "it spoke before it was given a task"
            self._kill(process)

    def go_on(self, talked: Talked, step: Callable[[], None]) -> None:
        """Have something come into a conversation, and see what it came to."""
        process = self._busy.get(talked.key)
        if process is None or process.talked is not talked or process.fault is not None:
            return
        try:
            step()
        except StorageError as error:
            self._fail(process, storing_fault(self._place.worker, process.argv, error))
        except (CielError, WireError) as error:
            self._fail(process, TaskFault("RUNTIME_ERROR", str(error)))
        except OSError as error:
            self._fail(process, serving_fault(self._place.worker, error))
        except Exception as error:  # as above
            log.failure("a call was not understood")
            self._fail(process, executor_fault(talked.executor, error))
        else:
            self._see(process, process.talked or talked)

    def entered(self, outer: Talked, inner: Talked) -> None:
        """As `TalkedOwner` says."""
        process = self._busy[inner.key] = self._busy[outer.key]
        process.stack.append(inner)

    def left(self, inner: Talked, fault: tuple[str, str] | None) -> None:
        """As `TalkedOwner` says."""
        process = self._busy.pop(inner.key)
        process.stack.pop()
        inner.close()
        published = tuple(inner.outputs.published.values()) if fault is None else ()
        run_s = self._place.reactor.seconds() - inner.begun_s
        ended = None if fault is None else TaskFault(*fault)
        self._place.owner.ended_within(inner.key, published, ended, run_s)

    def _see(self, process: Process, talked: Talked) -> None:
        """See whether the task has come to an end."""
        if talked.lost is not None:
            self._fail(process, TaskFault("MISSING_INPUT", talked.lost[1]))
            return
        over = process.conversation.over
        if over is None:
            return
        if (fault := fault_at_end(talked, over, self._place.worker)) is not None:
            self._fail(process, fault)
        else:
            self._finish(process, talked, over)

    def _finish(self, process: Process, talked: Talked, over: Any) -> None:
        fault = None if over.fault is None else TaskFault(*over.fault)  # though it is still well
        try:
            if fault is None:
                talked.close_outputs()
            else:
                talked.roll_back_outputs()
        except StorageError as error:
            self._fail(process, storing_fault(self._place.worker, process.argv, error))
            return
        if fault is not None and talked.outputs.lacked_room:
            fault = lacking_fault(self._place.worker, fault)
        process.verdict, published = fault, talked.outputs.published.values()
        process.published = tuple(published) if fault is None else ()
        process.run_s = self._place.reactor.seconds() - talked.begun_s
        is_kept = over.keep == "must_keep" or (over.keep == "may_keep" and process.guest is None)
        if not is_kept or process.is_called_off:
            self._leave(process)
            if process.end is not None:
                self._settle(process)
            return
        self._let_go(process, talked)
        process.is_warm = True
        if talked.fixed is not None:
            self._fixed[talked.fixed] = process
        else:
            process.scratch.drop_inputs()
            process.holds = frozenset().union(*over.soft_keys)
            now_s = self._place.reactor.seconds()
            for number in self._pool.put(process.number, process.kind, over.soft_keys, now_s):
                self._dismiss(self._processes[number], "others are needed more")
            self._reap_later()
        self._tell(process, talked)

    def _tell(self, process: Process, talked: Talked) -> None:
        """Tell of an attempt whose program is well."""
        fault = process.verdict
        if fault is None or not self._again_on_disk(process, talked, fault):
            self._place.owner.attempt_ended(talked.key, process.published, fault, process.run_s)

    def _let_go(self, process: Process, talked: Talked) -> None:
        """An attempt is over; what it had open is closed, and its complaints are logged."""
        self._place.memory.remove(talked.key)
        talked.close()
        del self._busy[talked.key]
        process.stack, process.conversation = [], None
        process.log_rest(talked)

    # --- ends -------------------------------------------------------------------------------------

    def channel_broke(self, channel: ProgramChannel, why: str) -> None:
        """As `ChannelOwner` says."""
        process = self._by_channel.pop(channel)
        process.broke = why
        self._forget_idle(process)
        is_served = process.talked is not None and process.fault is None
        if is_served and channel.is_misused:
            self._fail(process, TaskFault("RUNTIME_ERROR", why))
        elif process.end is not None:
            self._settle(process)
        elif not is_served:
            self._kill(process)
        else:  # how it ended says more
            lost = process.lost_fault()
            self._due_in(process, _LAST_WORDS_S, lambda: self._fail(process, lost))

    def _process_ended(self, process: Process, event: End) -> None:
        self._forget_idle(process)
        if process.broke or not process.channel.will_break:
            process.end = event
            self._settle(process)
        else:  # unless somebody else keeps it open
            self._due_in(process, self._patience.leave_s, lambda: self._settle(process))
            process.end = event

    def _settle(self, process: Process) -> None:
        """Nothing of a program is left: tell of the attempt that it served."""
        talked = process.talked
        self._forget(process)
        if talked is None:
            self._clean(process)
            if process.guest is not None:
                place = self._place
                place.owner.guest_left(process.guest, process.desertion(place.worker))
            return
        self._put_aside(process)
        try:
            self._tell_end(process, talked)
        except Exception as error:  # of ours; it must cost neither its slot nor other attempts
            log.failure("the end of a program was not understood")
            self._busy.pop(talked.key, None)
            text = f"a bug of ours on worker {self._place.worker}: {error!r}; its log has more"
            self._tell_fault(process, talked, TaskFault("WORKER_FAULT", text), 0.0)

    def _put_aside(self, process: Process) -> None:
        """Whoever a program talked about last has to do with its end, unless that was our doing;
        those that were to go on after that are to begin again, with their children elsewhere.
        """
        if process.is_called_off and len(process.stack) > 1:
            process.fault = process.fault or _GIVEN_BACK
            process.stack[-1].roll_back_outputs()
        process.aside = process.stack[-2::-1]
        del process.stack[:-1]
        for outer in process.aside:
            outer.roll_back_outputs()
            outer.close()
            del self._busy[outer.key]

    def _tell_fault(self, process: Process, talked: Talked, fault: TaskFault, run_s: float) -> None:
        """Tell of whoever has to do with it first: the others will look what became of that."""
        status = None
        if isinstance(process.end, ProgramExited):
            status = os.waitstatus_to_exitcode(process.end.status)
        self._told(talked.key, fault, run_s, status)
        self._give_back(process)

    def _give_back(self, process: Process) -> None:
        for outer in process.aside:
            self._told(outer.key, _GIVEN_BACK, 0.0, None)

    def _tell_end(self, process: Process, talked: Talked) -> None:
        if not process.is_done and process.is_stale:
            self._let_go(process, talked)
            self._clean(process)
            log.info("{who} was gone; another is started", who=process.called)
            self._again(talked)
            return
        if process.is_done:
            self._let_go(process, talked)
            self._clean(process)
            self._tell(process, talked)
            return
        fault = process.fault
        if fault is None:
            talked.roll_back_outputs()
            fault = process.end_fault(self._place.worker)
            if process.conversation is not None:
                was_ended = process.is_called_off
                fault = process.conversation.died(fault, process.how_it_ended, was_ended=was_ended)
        tail = process.tail()
        self._let_go(process, talked)
        if talked.lost is not None:
            self._clean(process)
            self._place.owner.inputs_gone(talked.key, *talked.lost)
            self._give_back(process)
            return
        self._report(process, talked, fault, tail)

    def _again_on_disk(self, process: Process, talked: Talked, fault: TaskFault) -> bool:
        """Have an attempt served once more that found no room in memory for what it wrote; False if
        it has failed of something else, or that would not help.
        """
        is_over = process.is_called_off or process.guest is not None
        if is_over or fault.reason != "NO_SPACE" or not talked.may_run_on_disk:
            return False
        log.info("memory was full while {who} wrote; its task is begun anew", who=process.called)
        self._again(talked, DISK)
        return True

    def _again(self, talked: Talked, level: str = "") -> None:
        action = talked.executor.begin(talked.task)
        assert isinstance(action, Talk)
        self.begin(talked.order, talked.task, talked.executor, action, level)

    def _report(self, process: Process, talked: Talked, fault: TaskFault, tail: str) -> None:
        place = self._place
        run_s = place.reactor.seconds() - talked.begun_s
        if talked.outputs.lacked_room:
            fault = lacking_fault(place.worker, fault)
        if self._again_on_disk(process, talked, fault):
            self._clean(process)
            return
        text = fault.details
        if not isinstance(process.end, ProgramFailed):
            text = process.failure_text(place.worker, text, tail)
        if process.guest is not None or isinstance(process.end, ProgramFailed):  # left no files
            self._clean(process)
            self._tell_fault(process, talked, TaskFault(fault.reason, text), run_s)
            return

        def told(what: str) -> None:
            self._tell_fault(process, talked, TaskFault(fault.reason, f"{text}\n{what}"), run_s)

        def not_kept(failure: Any) -> None:
            why = getattr(failure.value, "strerror", None) or failure.getErrorMessage()
            self._clean(process)
            told(f"its files could not be kept: {why}")

        name = f"{talked.key[0]}.{talked.key[1]}"
        keeping = deferToThread(keep_files, place.kept, name, process.scratch, None)
        keeping.addCallbacks(told, not_kept)

    # --- ending programs --------------------------------------------------------------------------

    def kill(self, key: Key, *, force: bool) -> bool:
        """Send the program of an attempt the polite signal, or the one that cannot be ignored;
        False if no such attempt talks.
        """
        process = self._busy.get(key)
        if process is None:
            return False
        process.is_called_off = True
        self._send(process, signal.SIGKILL if force else signal.SIGTERM)
        return True

    def _send(self, process: Process, number: int) -> None:
        """Send a program a signal; whoever was there before us is only left alone."""
        if process.guest is None:
            self._place.launching.kill(process.launch_id, number)
        else:
            process.channel.close()
            process.guest.cut_off()

    def spec_of(self, key: Key) -> TaskSpec | None:
        """Return the task of an attempt that talks, if it does."""
        process = self._busy.get(key)
        return process.stack[0].task.spec if process is not None and process.stack else None

    def fail(self, key: Key, fault: TaskFault) -> bool:
        """End an attempt with a fault of its program's; False if no such attempt talks."""
        process = self._busy.get(key)
        if process is None:
            return False
        self._send(process, signal.SIGKILL)
        self._fail(process, fault)
        return True

    def end_fixed(self, objects: Iterable[ObjectId]) -> None:
        """End programs that wait in the middle of a task which nobody needs any more."""
        for object_id in objects:
            process = self._fixed.pop(object_id, None)
            if process is not None:
                self._kill(process)

    def _fail(self, process: Process, fault: TaskFault) -> None:
        if process.fault is not None or process.talked is None:
            return
        process.fault = fault
        for talked in process.stack:
            talked.roll_back_outputs()
        if process.end is not None:
            self._settle(process)
        else:
            self._kill(process)

    def _kill(self, process: Process) -> None:
        self._forget_idle(process)
        self._send(process, signal.SIGTERM)
        self._due_in(process, GRACE_S, lambda: self._send(process, signal.SIGKILL))

    def _leave(self, process: Process) -> None:
        """Have a program end that has done its work."""
        self._by_channel.pop(process.channel, None)
        process.broke = process.broke or "closed"
        self._telling.speak_to(process)
        process.channel.close()
        leave_s = self._patience.leave_s if process.guest is None else 0.0  # a guest lives on
        self._due_in(process, leave_s, lambda: self._kill(process))

    def _dismiss(self, process: Process, reason: str) -> None:
        self._telling.say(process, "die", {"reason": reason})
        self._leave(process)

    def _due_in(self, process: Process, delay_s: float, call: Callable[[], None]) -> None:
        if process.due is not None and process.due.active():
            process.due.cancel()
        process.due = self._place.reactor.callLater(delay_s, call) if process.end is None else None

    def _forget(self, process: Process) -> None:
        self._processes.pop(process.number, None)
        self._guests.pop(process.number, None)
        self._by_channel.pop(process.channel, None)
        self._place.growth.remove(process.key)
        process.close()
        if process.guest is not None:
            process.guest.close()
        self._forget_idle(process)
        if process.due is not None and process.due.active():
            process.due.cancel()

    def _forget_idle(self, process: Process) -> None:
        """Give no task to a program any more that waits for one."""
        self._pool.remove(process.number)
        for object_id in [o for o, waiting in self._fixed.items() if waiting is process]:
            del self._fixed[object_id]

    def _clean(self, process: Process) -> None:
        deferToThread(process.scratch.remove).addErrback(
            lambda failure: log.failure("scratch could not be removed", failure)
        )

    def _reap_later(self) -> None:
        due_s = self._pool.due_s()
        if due_s is not None and (self._reaping is None or not self._reaping.active()):
            delay_s = max(due_s - self._place.reactor.seconds(), 0.0) + 0.01
            self._reaping = self._place.reactor.callLater(delay_s, self._reap)

    def _reap(self) -> None:
        for number in self._pool.expired(self._place.reactor.seconds()):
            self._dismiss(self._processes[number], "Garbage collected")
        self._reap_later()

    def close(self) -> None:
        """Forget all programs; they end with the launcher."""
        if self._reaping is not None and self._reaping.active():
            self._reaping.cancel()
        for process in list(self._processes.values()):
            for talked in process.stack:
                talked.roll_back_outputs()
                talked.close()
            self._forget(process)
