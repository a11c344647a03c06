"""The public client: runs functions and programs as tasks, and returns futures of their results.

    with ciel.Client() as client:
        parts = [client.submit(count, path) for path in paths]
        print(client.submit(sum, parts).result())

Within a task, `Client()` is a `TaskClient`, whose calls are children of the task.
"""

from __future__ import annotations

import concurrent.futures
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, overload

from ciel.client.calls.map_results import call_each, chunks_of, results_of_map
from ciel.client.data.uploads import checked_copies
from ciel.client.errors import ClientClosedError, ContextError
from ciel.client.jobs.caller_context import Caller
from ciel.client.jobs.client import JobClient
from ciel.core.errors import CielError
from ciel.core.events import JobPrinted
from ciel.core.jobs import CallerContext
from ciel.core.refs import REFERENCE_TYPES, Reference
from ciel.core.refs import Future as FutureReference
from ciel.python import sessions
from ciel.python.failures import PackingError
from ciel.python.futures import Future, call_holding, futures_in, futures_of, require_future
from ciel.python.options import OptionError, Options, read_options
from ciel.python.showing import Shown
from ciel.python.tasks import name_of, split_task

if TYPE_CHECKING:
    from ciel.access.settings import MasterLocation
    from ciel.client.calls.calls import Calls
    from ciel.client.cluster.local import LocalCluster
    from ciel.client.jobs.job import Job
    from ciel.client.jobs.output_forwarding import Sink
    from ciel.client.services.handles import Handle
    from ciel.client.services.starting import Services
    from ciel.client.views.explanation import Explanation
    from ciel.memory.space import Space
    from ciel.python.calls import Mapped
    from ciel.python.tasks import Several
    from ciel.state.keyvalues import KeyValues

K = TypeVar("K")
T = TypeVar("T")
F = TypeVar("F")

_OF_FUNCTIONS: Final = {
    "returns": "'outputs=': the program writes these files itself",
    "python": "the interpreter as the first element of 'argv'",
}
"""Options of tasks that are not valid for programs, and what to use instead."""

Argument = str | int | Path | Reference | Future[Any]


class Client(Shown, JobClient):
    """A client of the cluster at `address`.

    Without an address it finds a cluster, or starts a new one, which ends with the client (see
    `JobClient`). Thread-safe, and usable in `async` code: futures can be awaited. `f.spawn()`,
    `ciel.wait` and so on use the client that was opened last. Closing the client cancels all
    unfinished calls. `locals`: remote tracebacks show local variables. `prints`: the client writes
    the output of its tasks to `sys.stdout`, or to `prints` if that is a file (for guarantees see
    `jobs.output_forwarding`).

    Programs and calls run in the working directory of this process and with its environment
    (docs/where-programs-run.md). With `cwd` they run in another directory, with `scratch` each in a
    private one. With `env` they have the environment of their workers and these variables.

    Within a task, `Client()` without an address returns a `TaskClient`.
    """

    is_of_task = False

    def __new__(cls, address: Any = None, *args: Any, **options: Any) -> Self:
        if cls is Client and address is None and sessions.of_task() is not None:
            return object.__new__(TaskClient)  # type: ignore[return-value]  # it is a Client
        return object.__new__(cls)

    def __init__(
        self,
        address: str | LocalCluster | MasterLocation | None = None,
        *,
        access: str | None = None,
        name: str = "",
        environ: Mapping[str, str] = os.environ,
        cluster_options: Mapping[str, Any] | None = None,
        locals: bool = False,
        prints: bool | Sink = True,
        cwd: str | os.PathLike[str] | None = None,
        scratch: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._cwd, self._scratch, self._env = _checked(cwd, scratch=scratch, env=env)
        self._calls_lock = threading.Lock()
        self._calls: Calls | None = None
        self._services: Services | None = None
        self._locals = locals
        self._is_closed = False
        self._wants_prints = prints
        self.print_label: Callable[[JobPrinted], str] | None = None
        """Returns the text in brackets before each line that a task prints; None: its name."""
        super().__init__(
            address,
            access=access,
            name=name or os.path.basename(sys.argv[0]) or "python",
            environ=environ,
            cluster_options=cluster_options,
        )
        sessions.enter(self)

    def __reduce__(self) -> Any:
        return client_of_task, (self.name,)

    def __enter__(self) -> Self:
        sessions.leave(self)
        sessions.enter(self)
        return self

    def close(self) -> None:
        """Cancel unfinished calls, and close the connection.

        If the client has started the cluster, close the cluster as well.
        """
        sessions.leave(self)
        self._is_closed = True
        if (tracing := sys.modules.get("ciel.client.views.trace")) is not None:
            tracing.closing(self)
        try:
            if self._services is not None:
                self._services.close()
            if self._calls is not None:
                self._calls.close()
        finally:
            super().close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the client in a thread, so that the event loop is not blocked."""
        import asyncio

        await asyncio.to_thread(self.close)

    @property
    def calls(self) -> Calls:
        """The calls of this client."""
        if self._calls is None:
            if self._is_closed:
                raise ClientClosedError
            from ciel.client.calls.calls import Calls

            with self._calls_lock:
                if self._calls is None:
                    calls = Calls(self, self.caller, self._open_job, locals_wanted=self._locals)
                    self.on_delivery = calls.take_settled
                    self.on_lost = calls.lose
                    self._calls = calls
        return self._calls

    @property
    def open_calls(self) -> Calls | None:
        """The calls of this client; None before the first."""
        return self._calls

    def caller(self) -> Caller:
        """Return the current directory and environment of calls; raises ContextError."""
        return Caller(self._cwd, scratch=self._scratch, env=self._env)

    def _open_job(self, context: CallerContext) -> Job:
        """Open the job of the calls."""
        job = self.job(self.name, context=context)
        self.follow_prints(job)
        return job

    # --- functions --------------------------------------------------------------------------------

    @overload
    def submit(self, function: Several[..., Any, F], /, *args: Any, **kwargs: Any) -> F: ...

    @overload
    def submit(
        self, function: Callable[..., Coroutine[Any, Any, T]], /, *args: Any, **kwargs: Any
    ) -> Future[T]: ...

    @overload
    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]: ...

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Submit a call as a task, and return the future of its result.

        Arguments may be futures, or contain them at any depth: the task runs when their values
        exist, and receives the values. If the program drops the future before a worker has the
        call, the call does not run; see `ciel.fire_and_forget`. `ciel.task` sets the options of a
        function.

        Raises PackingError for a function or an argument that cannot be pickled,
        ConnectionLostError, ClientClosedError, ForkedError.
        """
        called, options = split_task(function)
        return self.call(called, args, kwargs, options)

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options,
    ) -> Any:
        """Submit a call with these options; with `returns`, return a tuple of futures."""
        try:
            return self.calls.call(function, args, kwargs, options)
        except PackingError:
            if not (held := futures_of(function)):
                raise
        named = options._replace(name=name_of(function, options))
        return self.calls.call(call_holding, (self.put(function), args, kwargs, held), {}, named)

    def map(
        self,
        function: Callable[..., T],
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """Call a function with one element of each iterable; yield the results in order.

        If a call fails, its error is raised in the place of its result. `chunksize`: how many calls
        run as one task; by default the client chooses, and sends many short calls as one task.
        `buffersize`: how many elements are read ahead of the results that the caller has taken, so
        that the iterables may be endless; by default they are read completely at once. Raises
        TimeoutError `timeout` seconds after the call of `map`.
        """

        def begin(rows: list[tuple[Any, ...]], size: int | None) -> list[Future[Mapped]]:
            return self.map_parts(function, rows, size)

        return results_of_map(begin, iterables, timeout, chunksize, buffersize)

    def map_parts(
        self,
        function: Callable[..., Any],
        rows: Sequence[tuple[Any, ...]],
        chunksize: int | None = None,
    ) -> list[Future[Mapped]]:
        """Submit a call for each row of arguments, `chunksize` rows in a task.

        Return the futures of the tasks. When a future is done, its `rest` contains the futures of
        further tasks, whose results follow its own.
        """
        if chunksize is not None and chunksize < 1:
            raise ValueError(f"chunksize must be at least 1, not {chunksize}")
        called, options = split_task(function)
        if options.returns != 1:
            raise ValueError("the functions of a map return one value each")
        if not rows:
            return []
        try:
            return list(self.calls.map_parts(called, rows, options, chunksize))
        except PackingError:
            if not (held := futures_of(called)):
                raise
        options = options._replace(name=name_of(called, options))
        stored = self.put(called)
        rows = [(stored, row, {}, held) for row in rows]
        return list(self.calls.map_parts(call_holding, rows, options, chunksize))

    # --- programs ---------------------------------------------------------------------------------

    def run(
        self,
        argv: Sequence[Argument],
        *,
        stdin: Any = None,
        files: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        scratch: bool = False,
        outputs: int = 1,
        **options: Any,
    ) -> Any:
        """Submit a program as a task; return the future of its standard output, as bytes.

        Futures in `argv` become paths of files with their values. `stdin` is a future, or a list of
        futures whose values are concatenated. With `files` the program runs in a private directory
        that contains them under these relative names; otherwise it runs in the directory of the
        client, in `cwd`, or with `scratch` in a private directory. `env` adds variables. The result
        of a function must be bytes or a string, which is written as UTF-8. With two or more
        `outputs` the program writes them itself, and a list of futures is returned: the variable
        `OUTPUT_FILES` names a text file with the path of an output on each line. `options`: as for
        `ciel.task`, except `returns` and `python`. Raises OptionError, ContextError, and the errors
        of `submit`.
        """
        if isinstance(argv, str | bytes) or not isinstance(argv, Sequence) or not argv:
            raise OptionError(
                "argv", f"it must be a list of a program and its arguments, not {argv!r:.80}"
            )
        if outputs < 1:
            raise OptionError("outputs", f"it must be at least 1, not {outputs}")
        for option, instead in _OF_FUNCTIONS.items():
            if options.get(option) is not None:
                raise OptionError(option, f"it is for functions; for a program use {instead}")
        chosen = read_options(Options(name=str(argv[0])[:200]), options)
        # The client releases the object of a future that is dropped. So these futures must exist
        # until the task that reads their objects is added.
        held: list[Any] = []
        line = [self._argument(item, held) for item in argv]
        inputs = [] if stdin is None else stdin if isinstance(stdin, list | tuple) else [stdin]
        given = [self._object(item, held) for item in inputs]
        named = {name: self._object(item, held) for name, item in (files or {}).items()}
        directory = _directory(cwd, scratch=scratch, has_files=bool(named))

        def add(job: Job) -> Sequence[FutureReference]:
            moved_to, variables = self.calls.moved_caller()
            variables = {**variables, **(env or {})}
            where = directory if directory is not None or named or not moved_to else moved_to
            if outputs == 1:
                return [
                    job.run(
                        line, inputs=given, files=named, env=variables, cwd=where,
                        needs=chosen.needs, name=chosen.name,
                    )
                ]  # fmt: skip
            arguments = {"command_line": line, "inputs": given, "files": named, "env": variables}
            args: dict[str, Any] = {key: value for key, value in arguments.items() if value}
            if where is not None:
                args["cwd"] = where
            return job.add(
                "env", {"args": args, "n_outputs": outputs},
                n_outputs=outputs, needs=chosen.needs, name=chosen.name,
            )  # fmt: skip

        futures = self.calls.run(add, chosen.name)
        held.clear()
        return futures[0] if outputs == 1 else futures

    def _argument(self, item: Any, held: list[Any]) -> Any:
        if hasattr(item, "__ciel_future__"):
            return self._object(item, held)
        return os.fspath(item) if isinstance(item, os.PathLike) else item

    def _object(self, item: Any, held: list[Any]) -> Reference:
        """Return an object that a program can read; append its future to `held`."""
        if isinstance(item, REFERENCE_TYPES):
            return item
        if isinstance(item, bytes | bytearray | memoryview | str):
            content = item.encode() if isinstance(item, str) else bytes(item)
            return self.upload_content(content, "an input")
        if isinstance(item, os.PathLike):
            return self.upload(os.fspath(item))
        if not hasattr(item, "__ciel_future__"):
            raise TypeError(
                f"a program reads futures, bytes, strings and paths of files, not {item!r:.80}"
            )
        raw = self.calls.as_bytes(item)
        held.append(raw)
        self.calls.send(raw)
        if raw.lot is None:
            raise raw.unsent_error()
        return raw.lot.ref

    # --- values -----------------------------------------------------------------------------------

    def memory(self, name: str, timeout_s: float = 2.0, cache_bytes: int = 0) -> Space:
        """Open the address space of a volume over the memory of other machines.

        `timeout_s`: its calls raise SpaceError if servers do not answer for so long. `cache_bytes`:
        the space keeps pages of so many bytes, and reads ahead; it does not notice the writes of
        other programs then. Close it after use, before the client.
        """
        from ciel.client.memory import open_space

        return open_space(self, name, timeout_s, cache_bytes)

    def kv(self, name: str, *, job_id: str = "") -> KeyValues:
        """Open the rows of a name in the key-value base of the cluster: state that tasks and
        clients share, and may change. Close it after use. Raises KvError.

        `job_id`: the rows of a job, which are removed with it.
        """
        from ciel.client.state import open_kv

        return open_kv(self, name, job_id)

    # --- services ---------------------------------------------------------------------------------

    @property
    def services(self) -> Services:
        """The services of this client."""
        if self._services is None:
            if self._is_closed:
                raise ClientClosedError
            from ciel.client.services.starting import Services

            with self._calls_lock:
                self._services = self._services or Services(self)
        return self._services

    def start(
        self,
        cls: type,
        /,
        *args: Any,
        replicas: int = 1,
        name: str = "",
        detached: bool = False,
        **kwargs: Any,
    ) -> Handle:
        """Start a service: objects of a class, each in a process of the cluster; return its handle.

        Each replica creates `cls(*args, **kwargs)`; futures in the arguments become their values.
        `ciel.service` sets the options of a class. The replicas end with the client, unless the
        service is `detached`: then any client finds it by its `name`, until one stops it. Returns
        at once; calls wait until a replica runs.

        Raises PackingError, OptionError, ServiceError, ClientError.
        """
        return self.services.start(cls, args, kwargs, replicas, name, detached=detached)

    def service(self, name: str) -> Handle:
        """Return the handle of a running service. Raises ServiceError if there is none."""
        return self.services.find(name)

    def stop(self, service: Handle) -> None:
        """Stop a service, of any client, and wait until its processes have ended."""
        self.services.stop(service)

    def put(self, value: T, *, copies: int | None = None) -> Future[T]:
        """Store a value once, and return its future, to be an argument of many tasks.

        With `copies`, from 1 to 8, so many workers hold the value when `put` returns, or all
        workers if there are fewer. As long as the program has the future, other workers copy the
        value again whenever one of them is lost. By default, two workers hold the value, and a lost
        copy is not replaced. The master holds values of less than about 1,000 bytes itself.

        Raises PackingError, UploadError, ClientClosedError.
        """
        number = None if copies is None else checked_copies(copies)
        found: Future[T] = self.calls.put(value, number)
        return found

    def get(self, futures: Any, timeout: float | None = None) -> Any:
        """Return the value of a future, or the values of a list, a tuple or a dict of futures."""
        if isinstance(futures, dict):
            return dict(zip(futures, self.get(list(futures.values()), timeout), strict=True))
        if isinstance(futures, list | tuple):
            until_s = None if timeout is None else time.monotonic() + timeout
            self._await_all(futures, timeout)
            return type(futures)(future.result(_left_s(until_s)) for future in futures)
        require_future(futures)
        return futures.result(timeout)

    def _await_all(self, futures: Sequence[Any], timeout: float | None = None) -> None:
        """Wait until all are done, or until one has failed; raise the error of that one."""
        done, _ = self.wait(futures, timeout, concurrent.futures.FIRST_EXCEPTION)
        if len(done) < len(set(futures)):
            failed = [f for f in futures if f.done() and f.exception() is not None]
            if not failed:
                raise TimeoutError(f"not all values were produced within {timeout} s")
            failed[0].result()

    @overload
    def gather(self, futures: dict[K, Any], /, *, errors: str = ...) -> dict[K, Any]: ...

    @overload
    def gather(self, *futures: Any, errors: str = ...) -> list[Any]: ...

    def gather(self, *futures: Any, errors: str = sessions.RAISE) -> Any:
        """Wait for futures; return their values in a list or a dictionary: see `ciel.gather`."""

        def wait(listed: list[Any]) -> None:
            if errors == sessions.RAISE:
                self._await_all(listed)
            else:
                self.wait(listed)

        return sessions.gathered(wait, futures, errors)

    def wait(
        self,
        futures: Iterable[Any],
        timeout: float | None = None,
        return_when: str = sessions.ALL_COMPLETED,
    ) -> tuple[set[Any], set[Any]]:
        """Wait as `concurrent.futures.wait` does."""
        return self.calls.wait(futures, timeout, return_when)

    def as_completed(self, futures: Iterable[Any], timeout: float | None = None) -> Iterator[Any]:
        """Yield futures as they are done; raises TimeoutError after `timeout` seconds."""
        return self.calls.as_completed(futures, timeout)

    def cancel(self, futures: Any) -> None:
        """Cancel one or more futures; tasks that run only for them are stopped."""
        for future in [futures] if isinstance(futures, Future) else futures_in(futures):
            future.cancel()

    # --- for people -------------------------------------------------------------------------------

    def _facts(self) -> Iterator[tuple[str, Any]]:
        yield "", self.location.url
        if self.cluster is not None:
            yield "cluster", self.cluster.describe().partition(";")[0]
        yield "", "closed" if self._is_closed else "lost" if self._lost is not None else None
        if self._calls is not None:
            tallies = list(self._calls.functions.tallies.values())
            yield "calls", sum(tally.submitted for tally in tallies)
            yield "done", sum(tally.done for tally in tallies)
            yield "failed", sum(tally.failed for tally in tallies) or None

    def explain(self, future: Any) -> Explanation:
        """Query the master why a future's task runs, waits, or does not run; see `Explanation`.

        Raises the errors of `ask`, and TypeError if the argument is not a future.
        """
        from ciel.client.views.explanation import explain

        relocated = self.cluster.relocated if self.cluster is not None else str
        return explain(self.ask, relocated, future)

    def follow_prints(self, job: Job) -> None:
        """Forward the output of a job's tasks, unless the client was opened without `prints`."""
        if self._wants_prints is not False:
            sink = None if self._wants_prints is True else self._wants_prints
            self.show_prints(job, sink, self.print_label)


def _checked(
    cwd: str | os.PathLike[str] | None, *, scratch: bool, env: Mapping[str, str] | None
) -> tuple[str | None, bool, Mapping[str, str] | None]:
    """Check the options about the directory and the environment of calls; raises ContextError.

    The client does this before it connects.
    """
    directory = _directory(cwd, scratch=scratch)
    for name, text in (env or {}).items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise TypeError(f"env: names and values must be strings, not {name!r}: {text!r:.40}")
        if not name or "=" in name or "\0" in name + text:
            raise ContextError(
                f"env: {name!r} cannot be set: a name must not be empty or contain '=', and "
                "neither name nor value may contain a NUL character"
            )
    return directory or None, scratch, env


def _directory(
    cwd: str | os.PathLike[str] | None, *, scratch: bool, has_files: bool = False
) -> str | None:
    """Return the directory of a program; "": a private one; None: the client's directory."""
    if cwd is not None and (scratch or has_files):
        other = "'scratch'" if scratch else "'files'"
        raise ContextError(
            f"cwd: with {other} a program runs in a private directory; leave out one of the two"
        )
    if cwd is None:
        return "" if scratch else None
    return os.path.abspath(os.fspath(cwd))


def _left_s(until_s: float | None) -> float | None:
    return None if until_s is None else max(0.0, until_s - time.monotonic())


def client_of_task(name: str) -> Client:
    """Unpickle a client, such as a global variable of a function: it becomes the task's own client.

    Raises TypeError outside of a task.
    """
    if sessions.of_task() is None:
        raise TypeError(
            "a ciel.Client cannot be copied or sent to another process, since it is a connection; "
            "open another client there. (A client that is sent to a task of ciel becomes the "
            "task's own client.)"
        )
    return Client(name=name)


# --- within a task --------------------------------------------------------------------------------

_OFFERED: Final = frozenset(
    (
        "aclose", "as_completed", "call", "cancel", "close", "gather", "get", "kv", "map", "name",
        "put", "submit", "wait",
    )
)  # fmt: skip


class InTaskError(CielError, AttributeError):
    """A method of a client does not exist within a task."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"client.{name} does not exist within a task, where a client spawns children of the "
            f"task and opens no jobs; it has {', '.join(sorted(_OFFERED))}. Use client.{name} in "
            "the program that opened the client, or return from the task what it needs there"
        )


class NoTaskError(CielError, RuntimeError):
    """A client that was opened within a task was used when no task ran."""

    def __init__(self) -> None:
        super().__init__(
            "this client was opened within a task, and no task is running now: a thread may have "
            "used it after its task had ended; use it before the task ends"
        )


class TaskClient(Client):
    """The client within a task, whose calls are children of the task.

    It belongs to the task that is running when it is used, so several tasks can use a module that
    opens one client (ADR 73). Calls run in the directory and with the environment of the task; the
    arguments of `Client` have no effect.
    """

    def __init__(self, address: None = None, *, name: str = "", **options: Any) -> None:
        self.name = name

    def __getattribute__(self, name: str) -> Any:
        if name[0] != "_" and name not in _OFFERED:
            raise InTaskError(name)
        return super().__getattribute__(name)

    def __enter__(self) -> Self:
        _session()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Do nothing, as `close`."""

    def close(self) -> None:
        """Do nothing: a task has no connection, and children end with their task at the latest."""

    async def aclose(self) -> None:
        """Do nothing, as `close`."""

    def call(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
    ) -> Any:
        return _session().call(function, args, kwargs, options)

    def map(
        self,
        function: Any,
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        buffersize: int | None = None,
    ) -> Iterator[Any]:
        called, options = split_task(function)
        if options.returns != 1:
            raise ValueError("the functions of a map return one value each")

        def begin(rows: list[tuple[Any, ...]], size: int | None) -> list[Any]:
            chunks = chunks_of(rows, size or 1)
            return [self.call(call_each, (called, chunk), {}, options) for chunk in chunks]

        return results_of_map(begin, iterables, timeout, chunksize, buffersize)

    def kv(self, name: str, *, job_id: str = "") -> KeyValues:
        from ciel.state.here import rows_here

        return rows_here(name, job_id)

    def put(self, value: Any, *, copies: int | None = None) -> Any:
        if copies is not None:
            checked_copies(copies)  # without effect: the task can store the value again
        return _session().put(value)

    def wait(
        self,
        futures: Iterable[Any],
        timeout: float | None = None,
        return_when: str = sessions.ALL_COMPLETED,
    ) -> tuple[set[Any], set[Any]]:
        return _session().wait(futures, timeout, return_when)

    def as_completed(self, futures: Iterable[Any], timeout: float | None = None) -> Iterator[Any]:
        return _session().as_completed(futures, timeout)

    def _facts(self) -> Iterator[tuple[str, Any]]:
        yield "", f"of a task, in process {os.getpid()}"


def _session() -> sessions.Session:
    found = sessions.of_task()
    if found is None:
        raise NoTaskError
    return found
