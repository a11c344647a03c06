"""The program behind `swi`: runs scripts, one task after the other, and stays warm.

A script that stops for what a child of its own will make has that child run here, within it, if it
may; then it goes on in memory. Otherwise what is left of it is written down, for a task that waits
for what is missing, and this one ends; so do those that it runs within, one after the other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from ciel.core.refs import Future, Reference
from ciel.executors.programs.calls import Channel, shown
from ciel.executors.programs.references import Promise, decode, encode
from ciel.executors.programs.surroundings import Surroundings
from ciel.executors.sdk import ciel_task
from ciel.skywriting import continuation, script
from ciel.skywriting.errors import ContinuationError, ScriptError, SkywritingError
from ciel.skywriting.host import ReferenceFailedError
from ciel.skywriting.running import Finished, Outcome, Stopped
from ciel.skywriting.values import INTEGER_MAX_DIGITS, UNREAD, Frame, Lazy

WITHIN_MAX_DEPTH = 1000
"""Tasks that run within each other; one more runs elsewhere, and all of these end first."""

Step = Callable[[], Outcome]


class _NoReturnError(Exception):
    """A script has ended and returned nothing."""


class Within:
    """One of the tasks that run in this program, each within the one before it. `made`: what it is
    to make; None for the first. `is_script`: it is to return something.
    """

    def __init__(self, made: Promise | None) -> None:
        self.made = made
        self.is_script = False
        self.stopped: Stopped | None = None


class Run:
    """A task of the worker's, with all that run within it."""

    def __init__(self, channel: Channel, private: dict[str, Any]) -> None:
        self._private = private
        self._channel = channel
        self._host = Surroundings(channel, private)
        self._stack = [Within(None)]
        self._is_session = "session" in private
        self._session: Frame | None = None  # the variables of a prompt
        channel.share = self._share

    def run(self) -> None:
        """Run it to its end, whatever that is."""
        step: Step | None = self._first
        while self._stack:
            try:
                if step is not None:
                    self._take(step)
                step = self._next()
            except (SkywritingError, ReferenceFailedError) as error:
                self._fail(str(error), "RUNTIME_ERROR")
                step = None
            except _NoReturnError:
                text = "the script has ended without a 'return', so there is nothing to give back"
                self._fail(text, "NO_RETURN_VALUE")
                step = None

    def _take(self, step: Step) -> None:
        outcome = step()
        if isinstance(outcome, Finished):
            self._finish(self._stack[-1], outcome)
        else:
            self._stack[-1].stopped = outcome

    def _next(self) -> Step | None:
        """Return what is to be done after whoever ran last has stopped or ended."""
        while self._stack:
            within = self._stack[-1]
            stopped = within.stopped
            assert stopped is not None
            missing = [ref for ref in stopped.refs if not _is_made(ref)]
            if not missing or (stopped.is_any and len(missing) < len(stopped.refs)):
                within.stopped = None
                return lambda: stopped.resume(self._host)
            child = self._child(stopped, missing)
            if child is not None:
                return self._begin(child)
            self._leave(within, stopped)
        return None

    # --- begin ------------------------------------------------------------------------------------

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
            raise ContinuationError("what is to be gone on with are the variables of a prompt")
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
            raise ScriptError(f"{ref.id} is not there, though it was waited for")
        return content

    def _child(self, stopped: Stopped, missing: list[Reference]) -> Promise | None:
        """Return a child that can run here so that whoever has stopped can go on, sooner or later;
        None if others could be at work for it meanwhile, who do not know yet that they should.
        """
        here = [ref for ref in missing if type(ref) is Promise and ref.call is not None]
        if not here or len(self._stack) >= WITHIN_MAX_DEPTH or not self._host.may_hold:
            return None
        if len(here) < len(missing) and not stopped.is_any:
            return None
        return here[0] if all(map(self._host.is_under_way, _starred(stopped))) else None

    def _begin(self, child: Promise) -> Step:
        """Begin a child within the task that runs."""
        with self._channel.quiet:
            assert child.call is not None
            written = child.call.value
            self._host.create(child, here=True)
            self._host.held.append({})
            self._stack.append(Within(child))

        def step() -> Outcome:
            call = continuation.decode(written, self._host.load_unit).call
            assert call is not None
            return script.call(call, self._host)

        return step

    # --- end --------------------------------------------------------------------------------------

    def _finish(self, within: Within, outcome: Finished) -> None:
        if within.is_script and not outcome.has_returned:
            raise _NoReturnError
        try:
            text = encode(outcome.value)
            content = text.encode()
        except ValueError as error:
            raise ScriptError(f"what it returns has no form in JSON: {error}") from None
        with self._channel.quiet:
            self._host.create_all()
            arguments = {"keep_process": "may_keep"}
            if len(content) <= ciel_task.PUBLISH_MAX_BYTES:
                arguments["value"] = text
            else:
                self._host.publish(0, text)
            if self._session is not None and within.made is None:
                left = continuation.encode_frame(self._session).value
                self._host.publish(1, encode(left))
            self._channel.tell("exit", arguments)
            if within.made is not None:
                within.made.content = content
            self._pop()

    def _leave(self, within: Within, stopped: Stopped) -> None:
        """Have another task go on with what is left of this one."""
        with self._channel.quiet:
            written = continuation.encode(stopped)
            self._host.create_all()
            if self._session is not None and within.made is None and not stopped.activations:
                written.value["session"] = continuation.encode_frame(self._session).value
            arguments = {"executor_name": "swi", "small_task": True, **self._host.told(written)}
            if self._is_session and within.made is None:
                arguments["session_ref"] = None
            self._channel.tell("tail_spawn", arguments)
            self._channel.tell("exit", {"keep_process": "may_keep"})
            self._pop()

    def _fail(self, text: str, reason: str) -> None:
        with self._channel.quiet:
            text = shown(text)
            self._channel.tell("error", {"report": text, "reason": reason})
            self._channel.tell("exit", {"keep_process": "may_keep"})
            made = self._stack[-1].made
            if made is not None:
                made.failure = text
            self._pop()

    def _pop(self) -> None:
        self._stack.pop()
        self._host.held.pop()

    # --- meanwhile --------------------------------------------------------------------------------

    def _share(self) -> bool:
        """Give away what the oldest task here will need next; return whether there may be more."""
        for within, held in zip(self._stack[:-1], self._host.held, strict=False):
            if held and within.stopped is not None:
                needed = [ref for ref in _starred(within.stopped) if id(ref) in held]
                for promise in needed:
                    assert type(promise) is Promise
                    with suppress(ScriptError):  # it is told when it cannot be helped
                        self._host.create(promise, wanted=True)
                if needed:
                    break
        return len(self._stack) > 1


def _is_made(ref: Reference) -> bool:
    return type(ref) is Promise and (ref.content is not None or ref.failure is not None)


def _starred(stopped: Stopped) -> Iterator[Reference]:
    """List what is to be read, and is not yet."""
    for activation in stopped.activations:
        held = [value for _, values in activation.entries for value in values]
        for value in [*activation.frame.values(), *held]:
            if type(value) is Lazy and value.value is UNREAD:
                yield value.ref


def _parsed(text: str | bytes) -> Any:
    try:
        return decode(text)
    except ValueError as error:
        raise ContinuationError(f"this is no continuation: {error}") from None


def main() -> None:
    """Run scripts, as a worker tells."""
    sys.set_int_max_str_digits(INTEGER_MAX_DIGITS)
    write_flag, write_fifo, read_flag, read_fifo = ["", "", "", "", *sys.argv][-4:]
    if (write_flag, read_flag) != ("--write-fifo", "--read-fifo"):
        raise SystemExit("a worker of ciel starts it, with --write-fifo PATH --read-fifo PATH")
    channel = Channel(write_fifo, read_fifo)
    with script.roomy():
        while (private := channel.next_start()) is not None:
            Run(channel, private).run()


if __name__ == "__main__":
    main()
