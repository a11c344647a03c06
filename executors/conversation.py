"""The conversation between an interactive program and its worker (docs/programs.md).

The worker translates calls of the program into operations of the attempt, and sends replies. It
answers calls in order, so that a program need not wait for replies that it does not need. An
invalid call ends the task with an error text.
"""

from __future__ import annotations

import math
from binascii import a2b_base64
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from ciel.core.errors import CielError, InvalidNeedError
from ciel.core.events import TaskFault
from ciel.core.refs import (
    CONSUMABLE,
    REFERENCE_TYPES,
    Concrete,
    Failure,
    Fixed,
    Future,
    Reference,
    Sweetheart,
    Value,
)
from ciel.core.tasks import DEFAULT_NEEDS, Needs, read_needs
from ciel.execution.attempt import Attempt, Growth, OpenInput
from ciel.execution.conversation import Over
from ciel.execution.executor import BadArgumentsError, store_level
from ciel.execution.outputs import BadCallError
from ciel.executors.arguments import any_dependencies, extra_dependencies
from ciel.wire import codec
from ciel.wire.calls import Call
from ciel.wire.errors import WireError
from ciel.wire.packages import find_entry
from ciel.wire.references import to_json

BACKLOG_MAX = 100_000
"""How many calls may wait until an earlier call is answered."""

NAME_MAX_LENGTH = 200  # of a task's name


class Conversation:
    """The calls of one task, from `start_task` to `exit` or `error`.

    `called` processes received calls. `over` is set once the conversation has ended; then the
    worker sends no further replies.
    """

    METHODS: ClassVar[dict[str, Callable[[Any, dict[str, Any]], None]]] = {}
    """The handler of each method."""

    def __init__(self, attempt: Attempt, say: Callable[[str, Any], None]) -> None:
        self.over: Over | None = None
        self._attempt = attempt
        self._say = say
        self._backlog: deque[Call] = deque()
        self._sweethearts: set[int] = set()  # outputs whose readers should run on this worker
        self._pending = ""  # the method of a call whose reply is not ready yet
        self._is_answering = False

    def called(self, calls: Iterable[Call]) -> None:
        """Answer calls in order; a call waits until all earlier ones are answered."""
        self._backlog.extend(calls)
        if len(self._backlog) > BACKLOG_MAX:
            self._fail(f"it sent more than {BACKLOG_MAX} calls without waiting for a reply")
        self._answer_backlog()

    @property
    def subject(self) -> str:
        """The subject of error messages; empty: the program's command."""
        return ""

    def died(self, fault: TaskFault, how: str, *, was_ended: bool = False) -> TaskFault:
        """Return the fault of a task whose program has died.

        `how` describes the program's end. `was_ended`: the worker has killed the program because
        of this task.
        """
        return fault

    def _answer_backlog(self) -> None:
        if self._is_answering:  # a call was answered at once: the outer invocation continues
            return
        self._is_answering = True
        try:
            while self._backlog and not self._pending and self.over is None:
                self._answer(*self._backlog.popleft())
        finally:
            self._is_answering = False
        if self.over is not None and self._backlog and self.over.fault is None:
            self.over = self.over._replace(keep="no")  # the program has sent calls after `exit`

    def _answer(self, method: str, args: Any) -> None:
        answer = self.METHODS.get(method)
        if answer is None:
            self._fail(f"it called {method!r:.60}, which is not a method of this protocol")
        elif type(args) is not dict:
            self._fail(f"the arguments of its {method!r} are not an object")
        else:
            try:
                answer(self, args)
            except BadCallError as error:
                self._fail(f"its call of {method!r} is wrong: {error}")
            except KeyError as lacking:
                self._fail(f"its call of {method!r} lacks {lacking}")

    def _fail(self, text: str) -> None:
        self.over = Over(("RUNTIME_ERROR", text))

    def _deferred_reply(self, method: str) -> Callable[[Any], None]:
        """Return a function that replies to the current call later, then answers the next calls."""
        self._pending = method

        def reply(args: Any) -> None:
            self._pending = ""
            if self.over is None:
                self._say(method, args)
                self._answer_backlog()

        return reply

    # --- inputs -----------------------------------------------------------------------------------

    def _open_ref(self, args: dict[str, Any]) -> None:
        ref = self._input(args)
        if isinstance(ref, Value) and args.get("accept_string") is True:
            self._say("open_ref", {"strdata": ref.encoded})
        elif ref is not None:
            reply = self._deferred_reply("open_ref")
            in_file = args.get("in_file") is True
            self._attempt.open_whole(ref, lambda path: reply({"filename": path}), in_file=in_file)
        elif self.over is None:
            self._say("open_ref", {"error": "EWOULDBLOCK"})

    def _open_ref_async(self, args: dict[str, Any]) -> None:
        _size(args, "chunk_size", required=True)
        ref = self._input(args)
        if ref is None:
            if self.over is None:
                self._say("open_ref_async", {"error": "EWOULDBLOCK"})
            return
        socket = _text(args, "fd_socket_name")
        reply = self._deferred_reply("open_ref_async")

        def opened(found: OpenInput) -> None:
            reply(
                {
                    "sending_fd": socket is not None,
                    "filename": found.path,
                    "blocking": found.blocks or found.growth.is_whole,
                    "done": found.growth.is_whole,
                    "size": found.growth.size_bytes,
                }
            )
            if socket is not None and self.over is None:
                self._send(socket, found.path, writes=False)

        self._attempt.open_growing(ref, args.get("must_block") is True, opened)

    def _input(self, args: dict[str, Any]) -> Reference | None:
        """Return the local reference of the input that a call names.

        None: the input is not available yet, or the task has failed because of it.
        """
        ref = args["ref"]
        if not isinstance(ref, REFERENCE_TYPES):
            raise BadCallError("'ref' is not a reference")
        found = self._attempt.resolve(ref)
        if isinstance(found, Failure):
            self._fail(f"its input {found.id} has failed ({found.reason}): {found.text}")
            return None
        if isinstance(found, Fixed):
            raise BadCallError(
                f"{found.id} identifies a suspended process, so that it has no content to read"
            )
        if type(found) not in CONSUMABLE:
            return None
        if args.get("make_sweetheart") is True:
            self._attempt.prefer(found)
        return found

    def _wait_stream(self, args: dict[str, Any]) -> None:
        object_id = _required_text(args, "id")
        at_least = math.inf if "eof" in args else _size(args, "bytes", required=True)
        reply = self._deferred_reply("wait_stream")

        def grown(growth: Growth) -> None:
            if growth.is_broken:
                reply({"success": False})
            else:
                reply({"size": growth.size_bytes, "done": growth.is_whole, "success": True})

        self._attempt.await_growth(object_id, at_least or 0, grown)

    def _close_stream(self, args: dict[str, Any]) -> None:
        self._attempt.close_growing(_required_text(args, "id"))

    def _package_lookup(self, args: dict[str, Any]) -> None:
        key = _required_text(args, "key")
        package = self._attempt.task.arguments.get("package_ref")
        if not isinstance(package, REFERENCE_TYPES):
            self._say("package_lookup", {"value": None})
            return
        reply = self._deferred_reply("package_lookup")

        def read(content: bytes) -> None:
            try:
                entry = find_entry(content, key)
            except (WireError, CielError) as error:
                self._fail(f"the package of its job cannot be read: {error}")
                return
            reply({"value": entry})

        self._attempt.read(self._attempt.resolve(package), read)

    # --- outputs ----------------------------------------------------------------------------------

    def _allocate_output(self, args: dict[str, Any]) -> None:
        prefix = _text(args, "prefix") or ""
        self._say("allocate_output", {"index": self._attempt.outputs.allocate(prefix)})

    def _publish_string(self, args: dict[str, Any]) -> None:
        outputs = self._attempt.outputs
        try:
            content = a2b_base64(args["str"], strict_mode=True)
        except (TypeError, ValueError):
            raise BadCallError("'str' is not base64") from None
        index = outputs.index(args["index"])
        self._set_level(index, args)
        ref = outputs.publish(index, content)
        self._say("publish_string", {"ref": ref})

    def _set_level(self, index: int, args: dict[str, Any]) -> None:
        """Set the store level of an output, if the call specifies one."""
        try:
            level = store_level(args.get("store"))
        except BadArgumentsError as error:
            raise BadCallError(str(error)) from None
        if level:
            self._attempt.outputs.levels[index] = level

    def _open_output(self, args: dict[str, Any]) -> None:
        index = self._attempt.outputs.index(args.get("index"))
        streams = args.get("may_stream") is True
        if args.get("may_pipe") is True and not streams:
            raise BadCallError("'may_pipe' needs 'may_stream': a pipe without a reader never ends")
        socket = _text(args, "fd_socket_name")
        self._set_level(index, args)
        path = self._attempt.open_output(index, streams)
        if socket is None:
            self._say("open_output", {"sending_fd": False, "filename": path})
        else:
            self._say("open_output", {"sending_fd": True})
            self._send(socket, path, writes=True)
        if args.get("make_local_sweetheart") is True:
            self._sweethearts.add(index)

    def _send(self, socket: str, path: str, *, writes: bool) -> None:
        try:
            self._attempt.send_descriptor(socket, path, writes=writes)
        except OSError as error:
            self._fail(
                f"the worker cannot send a descriptor to socket {socket!r:.100}: {error.strerror}"
            )

    def _close_output(self, args: dict[str, Any]) -> None:
        index = self._attempt.outputs.index(args.get("index"))
        ref = self._attempt.close_output(index, _size(args, "size"))
        if index in self._sweethearts and isinstance(ref, Concrete):
            preferred = min(ref.locations)
            ref = Sweetheart(ref.id, preferred, ref.size_bytes, ref.locations)
            self._attempt.outputs.published[index] = ref
        self._say("close_output", {"ref": ref})

    def _roll_back_output(self, args: dict[str, Any]) -> None:
        self._attempt.roll_back_output(self._attempt.outputs.index(args.get("index")))
        self._say("rollback_output", {"ref": None})

    def _advert(self, args: dict[str, Any]) -> None:
        size_bytes = _size(args, "size", required=True)
        self._attempt.note_growth(self._attempt.outputs.index(args["index"]), size_bytes or 0)

    # --- children and the end ---------------------------------------------------------------------

    def _spawn(self, args: dict[str, Any]) -> None:
        executor, needs, keywords = read_spawn(args)
        name = take_name(keywords)
        outputs, form = self._attempt.spawn(executor, keywords, needs, name=name)
        refs = [Future(object_id) for object_id in outputs]
        self._say("spawn", refs if form.as_list or len(refs) != 1 else refs[0])

    def _tail_spawn(self, args: dict[str, Any]) -> None:
        executor, needs, keywords = read_spawn(args)
        if keywords.pop("is_fixed", False) is True:
            try:
                dependencies, choice = extra_dependencies(keywords), any_dependencies(keywords)
            except BadArgumentsError as error:
                raise BadCallError(str(error)) from None
            self._attempt.go_on_later(executor, dependencies, choice)
        else:
            name = take_name(keywords)
            self._attempt.spawn(executor, keywords, needs, delegates=True, name=name)

    def _log(self, args: dict[str, Any]) -> None:
        self._attempt.log(str(args["message"]))

    def _error(self, args: dict[str, Any]) -> None:
        report = args["report"]
        self._fail(report if isinstance(report, str) else codec.encode(to_json(report)).decode())

    def _exit(self, args: dict[str, Any]) -> None:
        keep = args["keep_process"]
        if keep not in ("no", "may_keep", "must_keep"):
            raise BadCallError(
                f"'keep_process' must be no, may_keep or must_keep, not {keep!r:.40}"
            )
        if keep == "must_keep" and self._attempt.fixed is None:
            raise BadCallError("'must_keep' needs a 'tail_spawn' with 'is_fixed' before it")
        keys = args.get("soft_cache_keys") or ()
        try:
            soft_keys = tuple([frozenset(map(str, ids)) for ids, _ in keys])
        except (TypeError, ValueError):
            raise BadCallError("'soft_cache_keys' must be a list of [[id, …], tag]") from None
        self.over = Over(None, keep, soft_keys)


Conversation.METHODS = {
    "open_ref": Conversation._open_ref,
    "open_ref_async": Conversation._open_ref_async,
    "wait_stream": Conversation._wait_stream,
    "close_stream": Conversation._close_stream,
    "spawn": Conversation._spawn,
    "tail_spawn": Conversation._tail_spawn,
    "allocate_output": Conversation._allocate_output,
    "publish_string": Conversation._publish_string,
    "open_output": Conversation._open_output,
    "close_output": Conversation._close_output,
    "rollback_output": Conversation._roll_back_output,
    "advert": Conversation._advert,
    "package_lookup": Conversation._package_lookup,
    "log": Conversation._log,
    "error": Conversation._error,
    "exit": Conversation._exit,
}
_UNUSED_KEYS = ("executor_name", "small_task", "scheduling_class", "scheduling_type")


def read_spawn(args: dict[str, Any]) -> tuple[str, Needs, dict[str, Any]]:
    """Split the arguments of a spawn into executor, needs, and the executor's keywords."""
    executor = _required_text(args, "executor_name")
    keywords = {key: value for key, value in args.items() if key not in _UNUSED_KEYS}
    given = {key: keywords.pop(key) for key in Needs._fields if key in keywords}
    if not given:
        return executor, DEFAULT_NEEDS, keywords
    try:
        return executor, read_needs(given), keywords
    except InvalidNeedError as error:
        raise BadCallError(f"{error.name!r} {error.reason}") from None


def take_name(keywords: dict[str, Any]) -> str:
    """Remove and return the display name of a child."""
    name = _text(keywords, "name") or ""
    keywords.pop("name", None)
    return name[:NAME_MAX_LENGTH]


def _text(args: dict[str, Any], key: str) -> str | None:
    return None if args.get(key) is None else _required_text(args, key)


def _required_text(args: dict[str, Any], key: str) -> str:
    value = args[key]
    if not isinstance(value, str):
        raise BadCallError(f"{key!r} must be a string, not {value!r:.40}")
    return value


def _size(args: dict[str, Any], key: str, *, required: bool = False) -> int | None:
    value = args[key] if required else args.get(key)
    if value is None and not required:
        return None
    if type(value) is float and value.is_integer():
        value = int(value)  # encoders without integers write 1024.0
    if type(value) is not int or value < 0:
        raise BadCallError(f"{key!r} must be a number of bytes, not {value!r:.40}")
    return value
