"""The program of the executor `swi`: runs scripts, task by task.

A script stops when it needs the output of a child. If possible, the program runs the child inline
and then resumes the script. Otherwise it writes a continuation of the script, and delegates to a
task that waits for the missing objects. Then it does the same for each enclosing inline task.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from ciel.core.refs import Future, Reference
from ciel.executors.programs.channel import Channel, printable
from ciel.executors.programs.references import Promise, decode, encode
from ciel.executors.programs.task_host import TaskHost
from ciel.executors.sdk import ciel_task
from ciel.skywriting import continuation, script
from ciel.skywriting.errors import (
    ContinuationError,
    ScriptError,
    SkywritingError,
)
from ciel.skywriting.evaluation.code import Frame
from ciel.skywriting.evaluation.running import Finished, Outcome, Stopped
from ciel.skywriting.evaluation.values import INTEGER_MAX_DIGITS, UNREAD, Lazy

NESTED_MAX = 1000
"""How many tasks may run nested in each other. Before a deeper one runs, all of these end."""

Step = Callable[[], Outcome]


class _NoReturnError(Exception):
    """A script has ended without a `return`."""


class NestedTask:
    """One of the tasks that run nested in this program; each waits for the next one.

    `promise`: its output; None for the outermost task. `is_script`: it must return a value.
    """

    def __init__(self, promise: Promise | None) -> None:
        self.promise = promise
        self.is_script = False
        self.stopped: Stopped | None = None


class Run:
    """A task of the worker, with the children that run inline."""

    def __init__(self, channel: Channel, private: dict[str, Any]) -> None:
        self._private = private
        self._channel = channel
        self._host = TaskHost(channel, private)
        self._stack = [NestedTask(None)]
        self._is_session = "session" in private
        self._session: Frame | None = None  # the variables of a prompt
        channel.share = self._share

    def run(self) -> None:
        """Run the task until it has ended or failed, or is delegated to its continuation."""
        step: Step | None = self._first
        while self._stack:
            try:
                if step is not None:
                    self._take(step)
                step = self._next()
            except SkywritingError as error:
                self._fail(str(error), "RUNTIME_ERROR")
                step = None
            except _NoReturnError:
                text = "the script has ended without a 'return', so it has no value"
                self._fail(text, "NO_RETURN_VALUE")
                step = None

    def _take(self, step: Step) -> None:
        outcome = step()
        if isinstance(outcome, Finished):
            self._finish(self._stack[-1], outcome)
        else:
            self._stack[-1].stopped = outcome

    def _next(self) -> Step | None:
        """Return the next step, after a script has stopped or ended."""
        while self._stack:
            task = self._stack[-1]
            stopped = task.stopped
            assert stopped is not None
            missing = [ref for ref in stopped.refs if not _is_done(ref)]
            if not missing or (stopped.is_any and len(missing) < len(stopped.refs)):
                task.stopped = None
                return lambda: stopped.resume(self._host)
            child = self._child(stopped, missing)
            if child is not None:
                return self._start_child(child)
            self._leave(task, stopped)
        return None

    # --- start ------------------------------------------------------------------------------------

    def _first(self) -> Outcome:
        private, host = self._private, self._host
        text: str | bytes | None = private.get("cont_text")
        if text is None and private.get("cont") is not None:
            text = self._read(private["cont"])
        if text is not None:
            return self._go_on(_parsed(text))
        ref = private["swfile_ref"]
        origin = {"ref": Future(ref.id)}
        if "sw_file_name" in private:
            origin["name"] = private["sw_file_name"]
        env, argv = private.get("start_env") or {}, private.get("start_args") or []
        if not self._is_session:
            self._stack[0].is_script = True
            return script.start(host.unit(origin, self._read(ref)), env, argv, host)
        before = private["session"]["ref"]
        frame = None if before is None else self._variables(_parsed(self._read(before)))
        self._session = {"env": env, "argv": argv} if frame is None else frame
        entry = host.entry(self._read(ref), private.get("sw_file_name") or "entry")
        return script.start_with(entry, self._session, host)

    def _go_on(self, written: Any) -> Outcome:
        read = continuation.decode(written, self._host.load_unit)
        if read.call is not None:
            return script.call(read.call, self._host)
        stopped = read.stopped
        if stopped is None:
            raise ContinuationError("the continuation has variables of a prompt, but no script")
        if self._is_session and "session" in written:
            self._session = self._variables(written["session"])
        elif self._is_session:
            self._session = stopped.activations[0].frame
        elif stopped.activations:
            self._stack[0].is_script = stopped.activations[0].code.number == 0
        return stopped.resume(self._host)

    def _variables(self, written: Any) -> Frame | None:
        return continuation.decode(written, self._host.load_unit).frame

    def _read(self, ref: Reference) -> bytes:
        content = self._host.read(ref)
        if content is None:
            raise ScriptError(f"{ref.id} is not available, though the task has waited for it")
        return content

    def _child(self, stopped: Stopped, missing: list[Reference]) -> Promise | None:
        """Return a child to run inline, so that the stopped script can continue later.

        None: no such child can run inline, or the script also needs objects that no task produces
        yet. Then other programs would idle meanwhile.
        """
        here = [ref for ref in missing if type(ref) is Promise and ref.call is not None]
        if not here or len(self._stack) >= NESTED_MAX or not self._host.may_hold:
            return None
        if len(here) < len(missing) and not stopped.is_any:
            return None
        return here[0] if all(map(self._host.needs_no_request, _starred(stopped))) else None

    def _start_child(self, child: Promise) -> Step:
        """Start a child inline."""
        with self._channel.no_signals:
            assert child.call is not None
            written = child.call.value
            self._host.create(child, here=True)
            self._host.held.append({})
            self._stack.append(NestedTask(child))

        def step() -> Outcome:
            call = continuation.decode(written, self._host.load_unit).call
            assert call is not None
            return script.call(call, self._host)

        return step

    # --- end --------------------------------------------------------------------------------------

    def _finish(self, task: NestedTask, outcome: Finished) -> None:
        if task.is_script and not outcome.has_returned:
            raise _NoReturnError
        try:
            text = encode(outcome.value)
            content = text.encode()
        except ValueError as error:
            raise ScriptError(f"its value has no JSON form: {error}") from None
        with self._channel.no_signals:
            self._host.create_all()
            arguments = {"keep_process": "may_keep"}
            if len(content) <= ciel_task.PUBLISH_MAX_BYTES:
                arguments["value"] = text
            else:
                self._host.publish(0, text)
            if self._session is not None and task.promise is None:
                left = continuation.encode_frame(self._session).value
                self._host.publish(1, encode(left))
            self._channel.tell("exit", arguments)
            if task.promise is not None:
                task.promise.content = content
            self._pop()

    def _leave(self, task: NestedTask, stopped: Stopped) -> None:
        """Delegate a task's outputs to a new task that continues it, and end it."""
        with self._channel.no_signals:
            written = continuation.encode(stopped)
            self._host.create_all()
            if self._session is not None and task.promise is None and not stopped.activations:
                written.value["session"] = continuation.encode_frame(self._session).value
            arguments = {"executor_name": "swi", "small_task": True}
            arguments |= self._host.arguments_for(written)
            if self._is_session and task.promise is None:
                arguments["session_ref"] = None
            self._channel.tell("tail_spawn", arguments)
            self._channel.tell("exit", {"keep_process": "may_keep"})
            self._pop()

    def _fail(self, text: str, reason: str) -> None:
        with self._channel.no_signals:
            text = printable(text)
            self._channel.tell("error", {"report": text, "reason": reason})
            self._channel.tell("exit", {"keep_process": "may_keep"})
            promise = self._stack[-1].promise
            if promise is not None:
                promise.failure = text
            self._pop()

    def _pop(self) -> None:
        self._stack.pop()
        self._host.held.pop()

    # --- sharing ----------------------------------------------------------------------------------

    def _share(self) -> bool:
        """Spawn the children that the outermost task needs next; return whether more may follow."""
        for task, held in zip(self._stack[:-1], self._host.held, strict=False):
            if held and task.stopped is not None:
                needed = [ref for ref in _starred(task.stopped) if id(ref) in held]
                for promise in needed:
                    assert type(promise) is Promise
                    with suppress(ScriptError):  # the script gets the error when it needs the child
                        self._host.create(promise, wanted=True)
                if needed:
                    break
        return len(self._stack) > 1


def _is_done(ref: Reference) -> bool:
    return type(ref) is Promise and (ref.content is not None or ref.failure is not None)


def _starred(stopped: Stopped) -> Iterator[Reference]:
    """Yield the references that the script will read (`*x`), and has not read yet."""
    for activation in stopped.activations:
        held = [value for _, values in activation.entries for value in values]
        for value in [*activation.frame.values(), *held]:
            if type(value) is Lazy and value.value is UNREAD:
                yield value.ref


def _parsed(text: str | bytes) -> Any:
    try:
        return decode(text)
    except ValueError as error:
        raise ContinuationError(f"this is not a continuation: {error}") from None


def main() -> None:
    """Run the tasks that the worker sends."""
    sys.set_int_max_str_digits(INTEGER_MAX_DIGITS)
    write_flag, write_fifo, read_flag, read_fifo = ["", "", "", "", *sys.argv][-4:]
    if (write_flag, read_flag) != ("--write-fifo", "--read-fifo"):
        raise SystemExit(
            "only a worker of ciel can start this program, with --write-fifo PATH --read-fifo PATH"
        )
    channel = Channel(write_fifo, read_fifo)
    with script.roomy():
        while (private := channel.next_start()) is not None:
            Run(channel, private).run()


if __name__ == "__main__":
    main()
