r"""The SDK for tasks in Python: this file needs only the standard library (3.8 or later).

    import ciel_task

    def run(task):
        words = sum(len(line.split()) for line in task.open(task.args[0]))
        task.publish(0, b"%d\n" % words)

    ciel_task.serve(run)

Run such a program as a task of the executor `proc`. These calls do not wait for a reply: `publish`,
`log`, `spawn`, `tail_spawn`, and closing an output or a stream. Replies arrive in order, so this
module reads a pending reply when it needs a later one. A `Ref` whose reply is pending can be used
like any other; it waits for the reply when a property of it is read. Only one thread may use this
module at a time.
"""

from __future__ import annotations

import binascii
import io
import json
import os
import sys
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:  # loading `typing` would take longer than many a task
    from collections.abc import Callable
    from typing import Any, BinaryIO, NoReturn

FRAME_MAX_BYTES = 16 << 20  # the worker's limit of a call
PUBLISH_MAX_BYTES = 64 << 10  # larger content is written to a file
UNANSWERED_MAX = 32  # pending replies, which fit into a pipe
UNSENT_MAX_BYTES = 64 << 10  # the capacity of a pipe
READ_BYTES = 64 << 10
TEXT_MAX_CHARACTERS = 64 << 10  # of log messages and error reports

_EXIT_WARM = b'["exit",{"keep_process":"may_keep"}]'
_ONE_OUTPUT = ("stdinout", "env", "environ", "sync")  # unless a spawn has `n_outputs`


class TaskError(Exception):
    """An error between a task and its worker."""


class StreamBrokenError(TaskError):
    """The producer of an object failed while this task was reading it."""


class WorkerGoneError(TaskError):
    """The worker has ended the conversation in the middle of a task."""


class Ref:
    """A reference to an object in its JSON form.

    The form is an array of a tag, the object's id, and the fields of the reference's kind.
    References to the same object are equal. Unknown kinds are passed through unchanged.
    """

    __slots__ = ("_answer", "_array", "_place")

    def __init__(self, array: list[Any]) -> None:
        self._array: list[Any] | None = array
        self._answer: _Answer | None = None
        self._place: str | int | None = None

    @classmethod
    def _of(cls, answer: _Answer, place: str | int | None) -> Ref:
        """Return a reference whose reply is pending; `place` is its place in the reply."""
        ref = cls.__new__(cls)
        ref._array, ref._answer, ref._place = None, answer, place
        return ref

    @property
    def array(self) -> list[Any]:
        """The JSON form; waits for the reply if it is pending."""
        if self._array is None:
            assert self._answer is not None
            value = self._answer.value()
            try:
                found = value if self._place is None else value[self._place]
                self._array = found.array
            except (AttributeError, LookupError, TypeError):
                raise TaskError(f"the worker's reply has no reference: {value!r:.200}") from None
            self._answer = None
        return self._array

    @property
    def id(self) -> str:
        return str(self.array[1])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return "Ref(pending)" if self._array is None else f"Ref({self._array!r:.200})"


def _plain(value: Any) -> Any:
    if isinstance(value, Ref):
        return {"__ref__": value.array}
    raise TypeError(f"{type(value).__name__} cannot be sent to a worker: {value!r:.80}")


def _referring(pairs: dict[str, Any]) -> Any:
    array = pairs.get("__ref__")
    return Ref(array) if isinstance(array, list) and len(array) > 1 else pairs


_encode = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain
).encode
_decode_plain = json.JSONDecoder().raw_decode  # faster, as it skips no surrounding blanks
_decode_referring = json.JSONDecoder(object_hook=_referring).raw_decode


def _decode(payload: bytes) -> tuple[str, Any]:
    """Return the method and the arguments of a frame."""
    try:
        text = str(payload, "utf-8")
        decode = _decode_referring if "__ref__" in text else _decode_plain
        (method, args), _ = decode(text)
    except (TypeError, ValueError):
        raise TaskError(
            f"the worker sent a frame that is not a method and arguments: {payload!r:.200}"
        ) from None
    return method, args


class _Answer:
    """A reply, which may not have been read yet."""

    __slots__ = ("_channel", "_value", "method", "payload")

    def __init__(self, channel: Channel, method: str) -> None:
        self._channel = channel
        self._value: Any = None
        self.method = method
        self.payload: bytes | None = None

    def value(self) -> Any:
        """Wait for the reply and return its arguments."""
        if self.payload is None:
            self._channel.flush()
            while self.payload is None:
                self._channel.read_answer()
        if self._value is None:
            self._value = _decode(self.payload)[1]
        return self._value


def _pipes() -> Any:
    """Return an object that reads and writes the FIFOs: `os`, unless the worker offers rings."""
    if "CIEL_CHANNEL" in os.environ:
        from importlib import import_module

        try:
            return import_module("ciel.executors.sdk.ciel_ring").Pipes()
        except (ImportError, ValueError):
            pass  # this file is used without the package
    return os


class Channel:
    """This program's end of the two FIFOs."""

    __slots__ = ("_buffer", "_pipes", "_reads", "_unanswered", "_unsent", "_writes")

    def __init__(self, write_fifo: str, read_fifo: str) -> None:
        self._writes = os.open(write_fifo, os.O_WRONLY)  # in the same order as the worker
        self._reads = os.open(read_fifo, os.O_RDONLY)
        self._pipes = _pipes()
        self._buffer = bytearray()
        self._unsent = bytearray()
        self._unanswered: deque[_Answer] = deque()

    def send(self, payload: bytes) -> None:
        """Queue a call; it is sent at the latest by the next `flush`."""
        size_bytes = len(payload)
        if size_bytes > FRAME_MAX_BYTES:
            raise ValueError(f"a call of {size_bytes} bytes; at most {FRAME_MAX_BYTES} can be sent")
        self._unsent += size_bytes.to_bytes(4, "big")
        self._unsent += payload
        if len(self._unsent) > UNSENT_MAX_BYTES:
            self.flush()

    def ask(self, method: str, payload: bytes) -> _Answer:
        """Send a call that has a reply."""
        if len(self._unanswered) >= UNANSWERED_MAX:
            self.flush()
            self.read_answer()
        self.send(payload)
        answer = _Answer(self, method)
        self._unanswered.append(answer)
        return answer

    def flush(self) -> None:
        """Send all queued calls."""
        unsent = self._unsent
        try:
            while unsent:
                del unsent[: self._pipes.write(self._writes, unsent)]
        except BrokenPipeError:
            raise WorkerGoneError("the worker accepts no more calls of this task") from None

    def read_answer(self) -> None:
        """Wait for the next reply."""
        answer = self._unanswered[0]
        payload = self._frame()
        if payload is None:
            raise WorkerGoneError(f"the worker ended before it replied to {answer.method}")
        if not payload.startswith(f'["{answer.method}"'.encode()):  # most need no decoding
            method, _ = _decode(payload)
            if method != answer.method:
                raise TaskError(f"{method!r} was received instead of a reply to {answer.method!r}")
        answer.payload = payload
        self._unanswered.popleft()

    def next_task(self) -> Task | None:
        """Wait for a task; None: there are no more tasks, and this program should end."""
        self.flush()
        try:
            while self._unanswered:
                self.read_answer()
        except WorkerGoneError:
            return None
        payload = self._frame()
        if payload is None:
            return None
        method, args = _decode(payload)
        if method not in ("start_task", "die"):
            raise TaskError(f"{method!r} was received instead of a task")
        return Task(self, args) if method == "start_task" else None

    def _frame(self) -> bytes | None:
        """Wait for a frame; None at the end."""
        buffer = self._buffer
        while True:
            if len(buffer) >= 4:
                end = 4 + int.from_bytes(buffer[:4], "big")
                if len(buffer) >= end:
                    payload = bytes(buffer[4:end])
                    del buffer[:end]
                    return payload
            piece = self._pipes.read(self._reads, READ_BYTES)
            if not piece:
                return None
            buffer += piece


class Output(io.BufferedWriter):
    """An open output, a binary file.

    Closing it publishes it, unless an exception ends its `with` block.
    """

    def __init__(self, task: Task, index: int, path: str) -> None:
        super().__init__(io.FileIO(path, "w"), READ_BYTES)
        self._task = task
        self._index = index
        self.ref: Ref  # the published reference, once it is closed

    def close(self) -> None:
        if self.closed:
            return
        self.flush()
        size_bytes = os.fstat(self.fileno()).st_size
        super().close()
        if self._task._outputs.pop(self._index, None) is self:
            reply = self._task._ask("close_output", {"index": self._index, "size": size_bytes})
            self.ref = Ref._of(reply, "ref")

    def roll_back(self) -> None:
        """Discard the written data; the output may be opened again."""
        if self._task._outputs.pop(self._index, None) is self:
            self._task._ask("rollback_output", {"index": self._index})
        try:
            super().close()
        except OSError:
            pass  # the data is discarded in any case

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if kind is None:
            self.close()
        else:
            self.roll_back()


class _Growing(io.RawIOBase):
    """An object that may still be growing; at the end of its file, reading queries the worker."""

    def __init__(self, task: Task, ref: Ref, chunk_size: int, opened: dict[str, Any]) -> None:
        self._task = task
        self._ref = ref
        self._chunk_size = chunk_size
        self._file = io.FileIO(opened["filename"])
        self._is_announced = not opened["done"]  # `close` must be reported to the worker
        self._ends_here = opened["done"] or opened["blocking"]  # end of file is the real end
        self._size_bytes = opened.get("size") or 0  # known to be available
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            count = self._file.readinto(buffer) or 0
            self._position += count
            if count:
                return count
            if self._ends_here:
                break
            wanted = self._position + self._chunk_size
            grown = self._task.call("wait_stream", id=self._ref.id, bytes=wanted)
            if not grown["success"]:
                raise StreamBrokenError(f"{self._ref.id} broke off after {self._position} bytes")
            self._size_bytes, self._ends_here = grown["size"], grown["done"]
        if self._position < self._size_bytes:
            read = f"{self._position} of {self._size_bytes} bytes"
            raise StreamBrokenError(f"{self._ref.id} ended after {read}")
        return 0

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        self._file.close()
        if self._is_announced and not self._task.is_over:
            self._task.tell("close_stream", id=self._ref.id, chunk_size=self._chunk_size)


class Task:
    """One task: its arguments and operations."""

    __slots__ = ("_channel", "_outputs", "args", "is_over", "kwargs", "private", "soft_cache_keys")

    def __init__(self, channel: Channel, private: dict[str, Any]) -> None:
        self._channel = channel
        self._outputs: dict[int, Output] = {}
        self.is_over = False
        self.private = private
        """All arguments of `start_task`."""
        self.args: list[Any] = private.get("proc_pargs") or []
        self.kwargs: dict[str, Any] = private.get("proc_kwargs") or {}
        self.soft_cache_keys: list[tuple[list[str], str]] = []
        """Objects that this program has in its cache for later tasks: their ids, and a tag."""

    def call(self, method: str, **arguments: Any) -> Any:
        """Call any method of the protocol, and wait for the reply."""
        return self._ask(method, arguments).value()

    def tell(self, method: str, **arguments: Any) -> None:
        """Call a method without a reply; it is sent at the latest when the task waits."""
        self._require_running()
        self._channel.send(_encode([method, arguments]).encode())

    def _ask(self, method: str, arguments: dict[str, Any]) -> _Answer:
        self._require_running()
        return self._channel.ask(method, _encode([method, arguments]).encode())

    def _require_running(self) -> None:
        if self.is_over:
            raise TaskError("this task has ended")

    def path(self, ref: Ref) -> str:
        """Return the path of an object, for reading; wait for it like `block_on`."""
        return str(self._opened("open_ref", {"ref": ref})["filename"])

    def open(self, ref: Ref) -> BinaryIO:
        """Open an object for reading; wait for it like `block_on`."""
        return open(self.path(ref), "rb")

    def read(self, ref: Ref) -> bytes:
        """Return the content of an object; wait for it like `block_on`."""
        if ref.array[0] == "val":
            return binascii.a2b_base64(ref.array[2])
        opened = self._opened("open_ref", {"ref": ref, "accept_string": True})
        if "strdata" in opened:
            return binascii.a2b_base64(opened["strdata"])
        with open(opened["filename"], "rb") as file:
            return file.read()

    def open_stream(self, ref: Ref, chunk_size: int = 1, **options: bool) -> BinaryIO:
        """Open an object that may still be growing; wait until its producer has started it.

        Reading waits until `chunk_size` more bytes are available, or the object is complete. It
        raises StreamBrokenError if the producer fails; then the data read so far is incomplete.
        Options are `sole_consumer` and `must_block`.
        """
        arguments = {"ref": ref, "chunk_size": chunk_size, **options}
        opened = self._opened("open_ref_async", arguments)
        return io.BufferedReader(_Growing(self, ref, chunk_size, opened), READ_BYTES)

    def _opened(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        while True:
            reply: dict[str, Any] = self._ask(method, arguments).value()
            error = reply.get("error")
            if error is None:
                return reply
            if error != "EWOULDBLOCK":
                raise TaskError(f"{arguments['ref'].id} cannot be opened: {error}")
            self.block_on(arguments["ref"])

    def block_on(self, *refs: Ref) -> None:
        """Suspend this process until objects are available, or started as streams.

        Meanwhile the task takes no slot of the worker. Afterwards a new task continues in this
        process. It cannot use outputs that were allocated before, but must still produce the
        outputs for which the task was started.
        """
        if self._outputs:
            raise TaskError(f"close outputs {sorted(self._outputs)} before you wait for an object")
        if not refs:
            return
        self.tell("tail_spawn", executor_name="proc", extra_dependencies=list(refs), is_fixed=True)
        self.tell("exit", keep_process="must_keep")
        if self._channel.next_task() is None:
            raise WorkerGoneError("the worker ended while this task waited for objects")

    def publish(self, index: int, content: bytes) -> Ref:
        """Publish the whole content of an output."""
        if len(content) > PUBLISH_MAX_BYTES:
            with self.open_output(index) as output:
                output.write(content)
            return output.ref
        self._require_running()
        encoded = binascii.b2a_base64(content, newline=False)
        payload = b'["publish_string",{"index":%d,"str":"%b"}]' % (index, encoded)
        return Ref._of(self._channel.ask("publish_string", payload), "ref")

    def open_output(self, index: int = 0, may_stream: bool = False, **options: bool) -> Output:
        """Open an output for writing; use it in a `with` block.

        `may_stream`: other tasks may read it from now on, as far as it is flushed. Options are
        `may_pipe` and `make_local_sweetheart`.
        """
        reply = self.call("open_output", index=index, may_stream=may_stream, **options)
        output = self._outputs[index] = Output(self, index, reply["filename"])
        return output

    def allocate(self, prefix: str = "") -> int:
        """Add an output, which other tasks can get only by its reference; return its index."""
        return int(self.call("allocate_output", prefix=prefix)["index"])

    def spawn(self, executor: str, **keywords: Any) -> Any:
        """Create a task, and return references to its outputs.

        The result is a `Ref` for the executor `proc` with one output, otherwise a list.
        """
        answer = self._ask("spawn", {**keywords, "executor_name": executor})
        self._channel.flush()
        count = _output_count(executor, keywords)
        if count is None:
            return answer.value()
        if count == 1 and executor == "proc":
            return Ref._of(answer, None)
        return [Ref._of(answer, place) for place in range(count)]

    def tail_spawn(self, executor: str, **keywords: Any) -> None:
        """Create a task that takes over the outputs of this one."""
        self.tell("tail_spawn", **{**keywords, "executor_name": executor})

    def package(self, key: str) -> Ref | None:
        """Return the entry of a key in the package of the job; None if there is none."""
        found: Ref | None = self.call("package_lookup", key=key)["value"]
        return found

    def log(self, text: str) -> None:
        """Add a line to the log of the job."""
        self.tell("log", message=_printable(text))
        self._channel.flush()

    def fail(self, text: str) -> NoReturn:
        """Fail the task, and end the program."""
        self._outputs.clear()  # do not publish incomplete outputs
        self.tell("error", report=_printable(text))
        self._end()
        raise SystemExit(1)

    def exit(self, keep: str = "no") -> None:
        """End the task successfully; `keep`: `may_keep` if this program can run further tasks."""
        for output in list(self._outputs.values()):
            output.close()
        if keep == "may_keep" and not self.soft_cache_keys:
            self._require_running()
            self._channel.send(_EXIT_WARM)
        else:
            self.tell("exit", keep_process=keep, soft_cache_keys=self.soft_cache_keys)
        self._end()

    def _end(self) -> None:
        if sys.stdout is not None:
            sys.stdout.flush()  # so that the output is not attributed to the next task
        self._channel.flush()
        self.is_over = True


def _output_count(executor: str, keywords: dict[str, Any]) -> int | None:
    """Return the number of references in the reply to a spawn; None: unknown here."""
    if executor == "proc":
        forced = keywords.get("force_n_outputs")
        count = 1 + keywords.get("n_extra_outputs", 0) if forced is None else forced
    else:
        count = keywords.get("n_outputs", 1 if executor in _ONE_OUTPUT else None)
    return count if type(count) is int else None


def _printable(text: str) -> str:
    """Omit the middle of a long text, and escape invalid Unicode, such as in file names."""
    if len(text) > TEXT_MAX_CHARACTERS:
        half = TEXT_MAX_CHARACTERS // 2
        text = f"{text[:half]}\n[...]\n{text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()


def connect() -> Channel:
    """Open the FIFOs; the last four arguments or, in an attached process, variables name them."""
    write_flag, write_fifo, read_flag, read_fifo = ["", "", "", "", *sys.argv][-4:]
    if (write_flag, read_flag) == ("--write-fifo", "--read-fifo"):
        return Channel(write_fifo, read_fifo)
    try:
        fifos = os.environ["CIEL_PIPE_TO_WORKER"], os.environ["CIEL_PIPE_FROM_WORKER"]
    except KeyError:
        usage = (
            "only a worker of ciel can start it, with --write-fifo PATH --read-fifo PATH at the end"
        )
        raise SystemExit(f"{sys.argv[0]} is a task: {usage}") from None
    return Channel(*fifos)


def serve(function: Callable[[Task], object], keep: bool = True) -> None:
    """Call a function for each task that the worker sends; return when there are no more.

    An exception fails the task, with its traceback. With `keep`, the program stays running for
    further tasks with the same command, so that it need not load its modules and data again.
    """
    channel = connect()
    while True:
        task = channel.next_task()
        if task is None:
            return
        try:
            function(task)
            if not task.is_over:
                task.exit("may_keep" if keep else "no")
        except Exception as error:
            _report(task, error)
        finally:
            task._outputs.clear()  # do not publish incomplete outputs
        if not keep:
            return


def _report(task: Task, error: Exception) -> NoReturn:
    import traceback

    if task.is_over or isinstance(error, WorkerGoneError):
        raise error  # it cannot be reported to the worker
    trace = error.__traceback__
    trace = trace.tb_next if trace is not None else None  # without the frame of this file
    task.fail("".join(traceback.format_exception(type(error), error, trace)))
