"""The conversation with programs of the executor `python`.

It extends the conversation of all interactive programs by these calls:

- `taken`, an argument of `start_task`: the numbers of the outputs that tasks of an earlier attempt
  produce, which this one doesn't.
- `input`: the worker sends it before `start_task`, with the path of an input that is in the store.
- `spawn` and `tail_spawn` create calls, and have no reply. An input may be a reference; or a number
  that counts the objects of this task's `spawn`, `put` and `create` calls in order; or
  `{"output": n}`, an output of this task. `takes`: the outputs of this task that the child takes
  over. `wanted`: this task needs the child before it ends. `apart`: the numbers of inputs that the
  child reads in parts.
- `put` creates an object from bytes. `create` opens an object of known size and digest for writing;
  if this task has created it already, `filename` is null. The ids of both derive from the content.
- `parts` opens objects of other hosts in parts. `items` is a list of pairs: a reference, and the
  pairs of offset and size that the program will read. The reply lists a file for each, which has
  at least these parts.
- `open_output` with `at`, the address of another worker of this host: the program opens the output
  in the store of that worker, whose daemon listens at the abstract name `socket`, and commits it
  there as the object `id` before `close_output`. `filename` is null.
- `join_states` joins a group of `size` tasks under a `number`; the reply has the path of its board.
  `set_state` says that this member has changed its state there.
- With `in_file`, `open_output` and `open_ref` give the path of a file. Without it, the store may
  give a place in its memory (`ObjectReader.place`), here and in `input` and `create`. The program
  writes and commits the output there, or falls back on a file.
- `lose` reports that an input is missing at the path that the worker gave. The attempt ends, as
  if the worker could not fetch this input.
- The reply to `made` contains references to the `items`; the reply to `look` contains the most
  recent references that the worker knows.
- `within`: from now on the program may run calls inline that other workers could run. If the
  program dies in the task's first attempt, the task is re-executed. Its second attempt knows its
  number, and should run no calls inline.
- The reply to `task` contains the id, attempt, name and job of this task.
- The reply to `room` contains the number of idle slots, or null if the worker does not know it.
- `tail_spawn` with `is_fixed` suspends this program until all `needed` objects are available;
  meanwhile this task wants the `others`, too. If `needed` is empty, the program continues once one
  of the `others` is available, or after `timeout_s`. After a timeout the last of its inputs is
  available, by which the program detects the timeout.
- `exit` with `values`: the contents of outputs, each with its number.
- `error`, together with the following `exit`, ends the task; its report may be an object.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Any, ClassVar

from ciel.core.events import RECALLED, TaskFault
from ciel.core.ids import ObjectId
from ciel.core.naming import DIGEST_BYTES
from ciel.core.refs import REFERENCE_TYPES, Concrete, Future, Reference, Sweetheart
from ciel.core.tasks import Needs
from ciel.execution.attempt import Attempt
from ciel.execution.conversation import Over
from ciel.execution.executor import Task
from ciel.execution.outputs import BadCallError
from ciel.executors.conversation import Conversation, read_spawn, take_name
from ciel.shm.credentials import socket_of_worker

_DIGEST = re.compile("[0-9a-f]{32}")


def taken_batches(task: Task) -> list[int]:
    """Return the numbers of the last batches that tasks of an earlier attempt run.

    A task hands over its last batches; they may use the results of earlier ones. A task that
    continues in a waiting process has handed over nothing yet.
    """
    first = len(task.spec.outputs)
    if "fixed" in task.arguments:
        return []
    while first - 1 in task.taken and first > 1:
        first -= 1
    return list(range(first, len(task.spec.outputs)))


class PythonConversation(Conversation):
    """The calls of one task; the module's docstring describes them."""

    METHODS: ClassVar[dict[str, Callable[[Any, dict[str, Any]], None]]] = {}

    def __init__(self, attempt: Attempt, say: Callable[[str, Any], None]) -> None:
        super().__init__(attempt, say)
        self._created: list[ObjectId] = []
        self._fault: tuple[str, Any] | None = None
        self._has_run_inline = False
        self._is_starting = True
        attempt.handed_over.update(taken_batches(attempt.task))
        attempt.maps_files = attempt.names_by_content = True
        for ref in attempt.task.inputs.values():
            if isinstance(ref, Concrete | Sweetheart) and ref.id not in attempt.at_hand:
                if attempt.is_here(ref) or ref.id not in attempt.task.spec.apart:
                    attempt.open_whole(ref, partial(self._give_input, ref.id))
        self._is_starting = False

    def _give_input(self, object_id: ObjectId, path: str) -> None:
        """Send the path of an input, unless it comes too late: then the program asks for it."""
        if self._is_starting:
            self._say("input", {"id": object_id, "filename": path})

    # --- objects ----------------------------------------------------------------------------------

    def _put(self, args: dict[str, Any]) -> None:
        outputs = self._attempt.outputs
        content = _content(args["value"])
        index = outputs.allocate_named(
            "put", blake2b(content, digest_size=DIGEST_BYTES).hexdigest()
        )
        self._created.append(outputs.ids[index])
        if index not in outputs.published:
            outputs.publish(index, content)

    def _create(self, args: dict[str, Any]) -> None:
        outputs = self._attempt.outputs
        index = outputs.allocate_named("put", _digest(args))
        self._created.append(outputs.ids[index])
        path = None
        if index not in outputs.published:
            path = self._attempt.open_output(index, False, _size(args))
        self._say("create", {"index": index, "filename": path})

    def _open_output(self, args: dict[str, Any]) -> None:
        attempt = self._attempt
        index = attempt.outputs.index(args.get("index"))
        netloc = args.get("at")
        if netloc not in (None, attempt.netloc):
            if type(netloc) is not str:
                raise BadCallError(f"'at' must be the address of a worker, not {netloc!r:.40}")
            object_id, cluster_id = attempt.lend_output(index, netloc)
            socket = socket_of_worker(cluster_id, netloc)
            self._say("open_output", {"filename": None, "id": object_id, "socket": socket})
            return
        streams, in_file = args.get("may_stream") is True, args.get("in_file") is True
        path = attempt.open_output(index, streams, _size(args), in_file=in_file)
        self._say("open_output", {"filename": path})

    def _join_states(self, args: dict[str, Any]) -> None:
        path = self._attempt.join_states(*_state(args, "size", "number"))
        self._say("join_states", {"path": path})

    def _set_state(self, args: dict[str, Any]) -> None:
        self._attempt.has_set_state(*_state(args, "number"))

    def _reply_made(self, args: dict[str, Any]) -> None:
        self._say("made", {"refs": [self._ref(item) for item in args["items"]]})

    def _resolve_items(self, args: dict[str, Any]) -> None:
        resolve = self._attempt.resolve
        self._say("look", {"refs": [resolve(self._ref(item)) for item in args["items"]]})

    def _open_parts(self, args: dict[str, Any]) -> None:
        attempt = self._attempt
        wanted = []
        for item, parts in _pairs(args["items"]):
            ref = attempt.resolve(self._ref(item))
            wanted.append((ref, _parts(ref, parts)))
        if not wanted:
            raise BadCallError("'items' must not be empty")
        paths = [""] * len(wanted)
        reply = self._deferred_reply("parts")

        def opened(number: int, path: str) -> None:
            paths[number] = path
            if all(paths):
                reply({"filenames": paths})

        for number, (ref, parts) in enumerate(wanted):
            attempt.open_parts(ref, parts, partial(opened, number))

    def _lose(self, args: dict[str, Any]) -> None:
        self._attempt.lose_input(str(args["id"]), str(args["details"]))

    def _ref(self, item: Any) -> Reference:
        """Return the reference for an item of a call."""
        if isinstance(item, REFERENCE_TYPES):
            return item
        outputs = self._attempt.outputs
        if isinstance(item, dict):
            object_id = outputs.ids[outputs.index(item.get("output"))]
        elif type(item) is int and 0 <= item < len(self._created):
            object_id = self._created[item]
        else:
            raise BadCallError(f"{item!r:.60} is neither a reference nor an output of this task")
        return outputs.reference(object_id) or Future(object_id)

    def _enter_inline(self, args: dict[str, Any]) -> None:
        self._has_run_inline = True

    @property
    def subject(self) -> str:
        return self._attempt.where

    def died(self, fault: TaskFault, how: str, *, was_ended: bool = False) -> TaskFault:
        task = self._attempt.task
        is_first = not was_ended and task.attempt <= 1
        if is_first and (self._has_run_inline or task.spec.needs.retries):  # ADR 67
            text = f"ciel: the process of {task.spec.name} {how}: all calls that it ran run again"
            self._attempt.log(text, is_stderr=True)
        if not is_first or not self._has_run_inline:
            return TaskFault(fault.reason, f"its process {how}") if how else fault
        text = (
            "its program died, maybe because of a child that it ran inline: children will run in "
            "other programs"
        )
        return TaskFault(RECALLED, text)

    def _reply_room(self, args: dict[str, Any]) -> None:
        self._say("room", {"slots": self._attempt.room()})

    def _reply_task(self, args: dict[str, Any]) -> None:
        task = self._attempt.task
        spec, attempt = task.spec, max(task.attempt, 1)
        message = {"id": spec.id, "attempt": attempt, "name": spec.name, "job": spec.job}
        self._say("task", message)

    # --- children and the end ---------------------------------------------------------------------

    def _spawn(self, args: dict[str, Any]) -> None:
        executor, needs, keywords = read_spawn({**args, "executor_name": "python"})
        name = take_name(keywords)
        takes = keywords.pop("takes", None)
        wanted = True if keywords.pop("wanted", False) is True else None
        self._read_inputs(keywords)
        python = self._attempt.task.arguments.get("python")
        if python is not None:
            keywords.setdefault("python", python)
        if takes is not None:
            keywords["n_outputs"] = len(takes)
        outputs, _ = self._attempt.spawn(
            executor, keywords, needs, wanted=wanted, name=name, takes=takes
        )
        if takes is None:
            self._created += outputs

    def _read_inputs(self, keywords: dict[str, Any]) -> None:
        keywords["inputs"] = [self._ref(item) for item in keywords.get("inputs", ())]
        if "forward" in keywords:
            keywords["forward"] = self._ref(keywords["forward"])

    def _tail_spawn(self, args: dict[str, Any]) -> None:
        attempt = self._attempt
        if args.get("is_fixed") is True:
            needed = [self._ref(item) for item in args.get("needed", ())]
            others = [self._ref(item) for item in args.get("others", ())]
            # An alternative that exists already, so that the task does not wait for `others`.
            if needed and others:
                others.append(attempt.outputs.publish(attempt.outputs.allocate("there"), b""))
            if "timeout_s" in args:
                others.append(self._timer(float(args["timeout_s"])))
            attempt.go_on_later("python", needed, others, sees_errors=True)
            return
        executor, needs, keywords = read_spawn({**args, "executor_name": "python"})
        self._read_inputs(keywords)
        name = take_name(keywords) or attempt.task.spec.name
        attempt.spawn(executor, keywords, needs, delegates=True, name=name)

    def _timer(self, timeout_s: float) -> Reference:
        """Spawn a task that only waits, without a slot; return its output."""
        attempt = self._attempt  # part of the arguments, so that each attempt has its own timer
        of = [attempt.task.spec.id, attempt.task.attempt, attempt.life]
        keywords = {"args": {"inputs": [], "of": of}, "n_outputs": 1}
        # The timer has the priority of the waiting task.
        needs = Needs(priority=self._attempt.task.spec.needs.priority, delay_s=timeout_s)
        outputs, _ = self._attempt.spawn("sync", keywords, needs, name="timer")
        return Future(outputs[0])

    def _error(self, args: dict[str, Any]) -> None:
        report = args["report"]
        if isinstance(report, dict):
            report = {**report, "where": self._attempt.where}
        else:
            report = str(report)
        self._fault = (str(args.get("reason") or "RUNTIME_ERROR"), report)

    def _exit(self, args: dict[str, Any]) -> None:
        if self._fault is None:
            outputs = self._attempt.outputs
            for index, text in args.get("values", ()):
                outputs.publish(outputs.index(index), _content(text))
        super()._exit(args)
        if self._fault is not None and self.over is not None:
            self.over = Over(self._fault, self.over.keep, self.over.soft_keys)


def _content(text: Any) -> bytes:
    try:
        return a2b_base64(text, strict_mode=True)
    except (TypeError, ValueError):
        raise BadCallError("the published content is not base64") from None


def _digest(args: dict[str, Any]) -> str:
    digest = args.get("digest")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise BadCallError(f"'digest' must be 32 hexadecimal digits, not {digest!r:.40}")
    return digest


def _pairs(listed: Any) -> list[tuple[Any, Any]]:
    try:
        return [(one, other) for one, other in listed]
    except (TypeError, ValueError):
        raise BadCallError(f"{listed!r:.60} is no list of pairs") from None


def _parts(ref: Reference, listed: Any) -> list[tuple[int, int]]:
    whole_bytes = getattr(ref, "size_bytes", None) or 0
    parts = _pairs(listed)
    for at, size_bytes in parts:
        is_whole_number = type(at) is int and type(size_bytes) is int
        if not is_whole_number or not 0 <= at < at + size_bytes <= whole_bytes:
            raise BadCallError(
                f"{at!r:.30} and {size_bytes!r:.30} are no offset and size of a part of {ref.id}, "
                f"which has {whole_bytes} bytes"
            )
    return parts


def _size(args: dict[str, Any]) -> int | None:
    size_bytes = args.get("size")
    if size_bytes is not None and (type(size_bytes) is not int or size_bytes < 0):
        raise BadCallError(f"'size' must be a number of bytes, not {size_bytes!r:.40}")
    return size_bytes


def _state(args: dict[str, Any], *numbers: str) -> tuple[Any, ...]:
    """Return the name of a group, and these numbers."""
    found = args.get("name"), *[args.get(number) for number in numbers]
    if type(found[0]) is not str or any(type(number) is not int for number in found[1:]):
        raise BadCallError(f"a group has a name, and its members have numbers: {found!r:.100}")
    return found


PythonConversation.METHODS = Conversation.METHODS | {
    "put": PythonConversation._put,
    "create": PythonConversation._create,
    "open_output": PythonConversation._open_output,
    "join_states": PythonConversation._join_states,
    "set_state": PythonConversation._set_state,
    "made": PythonConversation._reply_made,
    "look": PythonConversation._resolve_items,
    "lose": PythonConversation._lose,
    "parts": PythonConversation._open_parts,
    "room": PythonConversation._reply_room,
    "task": PythonConversation._reply_task,
    "within": PythonConversation._enter_inline,
    "spawn": PythonConversation._spawn,
    "tail_spawn": PythonConversation._tail_spawn,
    "error": PythonConversation._error,
    "exit": PythonConversation._exit,
}
