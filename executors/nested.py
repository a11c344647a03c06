"""The conversation with a program of ours that runs small children of its task within itself (see
docs/adr/0020).

Beyond what every program may call:

- `spawn` with `here`: the child begins at once, in the program. All calls that follow are the
  child's, up to its own `exit`; then they are its parent's again. Nobody waits for any reply.
- `spawn` with `wanted`: the parent needs the child's output before its own end. With `level`, the
  parent is one of those that the present task runs within, 0 the outermost.
- `cont_text` of a spawn is text that rides in the task if it is short; else it becomes an object.
- A spawn of what cannot be is answered with `{"error": text}`.
- `exit` with `value`: the text of output 0.
- `error` ends the task, or only the child that runs within it, with the `exit` that follows it; it
  may have a `reason`, a word. A program that keeps itself stays warm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from ciel.core.refs import INLINE_MAX_BYTES, Future
from ciel.core.tasks import USUAL_NEEDS, undelayed
from ciel.execution.attempt import Attempt
from ciel.execution.conversation import Over
from ciel.execution.outputs import BadCallError
from ciel.executors.conversation import Conversation, read_spawn, take_name


class NestedConversation(Conversation):
    """One task's calls, and those of its children that run within it."""

    METHODS: ClassVar[dict[str, Callable[[Any, dict[str, Any]], None]]] = {}

    def __init__(self, attempt: Attempt, say: Callable[[str, Any], None]) -> None:
        super().__init__(attempt, say)
        self._outer: list[Attempt] = []
        self._fault: tuple[str, str] | None = None  # the present task has failed with it

    def _spawn(self, args: dict[str, Any]) -> None:
        try:
            executor, needs, keywords = read_spawn(args)
            name = take_name(keywords)
        except BadCallError as error:
            self._refuse(error)
            return
        here, wanted = keywords.pop("here", False), keywords.pop("wanted", False)
        attempt = self._attempt_at(keywords.pop("level", None))
        self._store_text(attempt, keywords)
        if here is True and attempt is self._attempt:
            outputs, within = attempt.spawn_within(executor, keywords, name)
            self._say("spawn", Future(outputs[0]))
            self._outer.append(attempt)
            self._attempt = within
            return
        wanted = wanted is True and attempt.task.may_run_children
        try:
            outputs, form = attempt.spawn(executor, keywords, needs, wanted=wanted, name=name)
        except BadCallError as error:
            self._refuse(error)
            return
        refs = [Future(object_id) for object_id in outputs]
        self._say("spawn", refs if form.as_list or len(refs) != 1 else refs[0])

    def _refuse(self, error: BadCallError) -> None:
        """Say that there can be no such task: the script is at fault, and its program knows where
        that stands in it.
        """
        self._say("spawn", {"error": str(error)})

    def _tail_spawn(self, args: dict[str, Any]) -> None:
        """What a script goes on with is what it was: under the same name, with the same needs."""
        executor, needs, keywords = read_spawn(args)
        self._store_text(self._attempt, keywords)
        spec = self._attempt.task.spec
        if needs == USUAL_NEEDS and executor == spec.executor:
            needs = undelayed(spec.needs)
        name = take_name(keywords) or spec.name
        self._attempt.spawn(executor, keywords, needs, delegates=True, name=name)

    def _attempt_at(self, level: Any) -> Attempt:
        """Return who is meant of those that the present one runs within, the outermost first."""
        if level is None or level == len(self._outer):
            return self._attempt
        if type(level) is not int or not 0 <= level < len(self._outer):
            raise BadCallError(f"'level' must be that of a task that runs, not {level!r:.40}")
        return self._outer[level]

    def _store_text(self, attempt: Attempt, keywords: dict[str, Any]) -> None:
        text = keywords.get("cont_text")
        if text is None:
            return
        if not isinstance(text, str):
            raise BadCallError("'cont_text' must be a text")
        content = text.encode()
        if len(content) > INLINE_MAX_BYTES:
            outputs = attempt.outputs
            del keywords["cont_text"]
            keywords["cont_ref"] = outputs.publish(outputs.allocate("cont"), content)

    def _error(self, args: dict[str, Any]) -> None:
        self._fault = (str(args.get("reason") or "RUNTIME_ERROR"), str(args["report"]))

    def _exit(self, args: dict[str, Any]) -> None:
        fault, self._fault = self._fault, None
        value = args.get("value")
        if value is not None and fault is None:
            if not isinstance(value, str):
                raise BadCallError("'value' must be a text")
            self._attempt.outputs.publish(0, value.encode())
        if self._outer:
            self._attempt.end_within(fault)
            self._attempt = self._outer.pop()
            return
        super()._exit(args)
        if fault is not None and self.over is not None:
            self.over = Over(fault, self.over.keep, self.over.soft_keys)


NestedConversation.METHODS = Conversation.METHODS | {
    "spawn": NestedConversation._spawn,
    "tail_spawn": NestedConversation._tail_spawn,
    "error": NestedConversation._error,
    "exit": NestedConversation._exit,
}
