"""The conversation with a program that runs small children of its task inline (docs/adr/0020).

It extends the conversation of all interactive programs:

- `spawn` with `here`: the child starts at once in the program. Until its `exit`, all calls belong
  to the child; afterwards calls belong to its parent again. The program does not wait for replies.
- `spawn` with `wanted`: the parent needs the child's output before the parent ends. With `level`,
  the parent is an enclosing task of the current one; 0 is the outermost.
- `cont_text` of a spawn: the continuation of a script, as text. The worker stores a short one in
  the task; a longer one becomes an object.
- The reply to a spawn with an invalid executor, option or argument is `{"error": text}`. A child
  that cannot run inline, a wrong `level` or a wrong `cont_text` fails the task instead.
- `exit` with `value`: the text of output 0.
- `error`, together with the following `exit`, fails the task, or only the current inline child. It
  may have a `reason` code. The program may stay running.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from ciel.core.refs import INLINE_MAX_BYTES, Future
from ciel.core.tasks import DEFAULT_NEEDS, undelayed
from ciel.execution.attempt import Attempt
from ciel.execution.conversation import Over
from ciel.execution.outputs import BadCallError
from ciel.executors.conversation import Conversation, read_spawn, take_name


class NestedConversation(Conversation):
    """The calls of one task, and of its children that run inline."""

    METHODS: ClassVar[dict[str, Callable[[Any, dict[str, Any]], None]]] = {}

    def __init__(self, attempt: Attempt, say: Callable[[str, Any], None]) -> None:
        super().__init__(attempt, say)
        self._enclosing: list[Attempt] = []
        self._fault: tuple[str, str] | None = None  # of the current task, if it failed

    def _spawn(self, args: dict[str, Any]) -> None:
        try:
            executor, needs, keywords = read_spawn(args)
            name = take_name(keywords)
        except BadCallError as error:
            self._refuse(error)
            return
        here, wanted = keywords.pop("here", False), keywords.pop("wanted", False)
        attempt = self._enclosing_attempt(keywords.pop("level", None))
        self._store_text(attempt, keywords)
        if here is True and attempt is self._attempt:
            outputs, within = attempt.spawn_within(executor, keywords, name)
            self._say("spawn", Future(outputs[0]))
            self._enclosing.append(attempt)
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
        """Reply with the error: the script is at fault, and the program can report its line."""
        self._say("spawn", {"error": str(error)})

    def _tail_spawn(self, args: dict[str, Any]) -> None:
        """Create a script's continuation; it keeps the script's name and `needs` by default."""
        executor, needs, keywords = read_spawn(args)
        self._store_text(self._attempt, keywords)
        spec = self._attempt.task.spec
        if needs == DEFAULT_NEEDS and executor == spec.executor:
            needs = undelayed(spec.needs)
        name = take_name(keywords) or spec.name
        self._attempt.spawn(executor, keywords, needs, delegates=True, name=name)

    def _enclosing_attempt(self, level: Any) -> Attempt:
        """Return the enclosing attempt at a level; 0 is the outermost."""
        if level is None or level == len(self._enclosing):
            return self._attempt
        if type(level) is not int or not 0 <= level < len(self._enclosing):
            raise BadCallError(f"'level' must be the level of a running task, not {level!r:.40}")
        return self._enclosing[level]

    def _store_text(self, attempt: Attempt, keywords: dict[str, Any]) -> None:
        text = keywords.get("cont_text")
        if text is None:
            return
        if not isinstance(text, str):
            raise BadCallError("'cont_text' must be a string")
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
                raise BadCallError("'value' must be a string")
            self._attempt.outputs.publish(0, value.encode())
        if self._enclosing:
            self._attempt.end_within(fault)
            self._attempt = self._enclosing.pop()
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
