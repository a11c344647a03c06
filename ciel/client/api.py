"""The front door of the Python API: functions and programs become tasks, futures stand for what
they make.

    with ciel.Client() as client:
        parts = [client.submit(count, path) for path in paths]
        print(client.submit(sum, parts).result())
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

from ciel.client.client import Client as JobClient
from ciel.client.errors import ClientClosedError, ContextError
from ciel.core.events import JobPrinted, Message
from ciel.core.refs import REFERENCE_TYPES, Reference
from ciel.core.refs import Future as Unmade
from ciel.python import sessions
from ciel.python.failures import PackingError
from ciel.python.futures import Future, call_holding, futures_in, futures_of, require_future
from ciel.python.options import OptionError, Options, read_options
from ciel.python.showing import Shown
from ciel.python.tasks import name_of, split_task

if TYPE_CHECKING:
    from ciel.access.settings import MasterLocation
    from ciel.client.caller import Caller
    from ciel.client.calling import Calls
    from ciel.client.cluster import LocalCluster
    from ciel.client.errors import ClientError
    from ciel.client.explaining import Explanation
    from ciel.client.jobs import Job
    from ciel.client.prints import Sink
    from ciel.python.calls import Mapped
    from ciel.python.tasks import Several

K = TypeVar("K")
T = TypeVar("T")
F = TypeVar("F")

_OF_FUNCTIONS: Final = {
    "returns": "'outputs=', files that it writes itself",
    "python": "its interpreter in 'argv', in front",
}
"""Options of tasks that mean nothing to a program, and what does instead."""

Argument = str | int | Path | Reference | Future[Any]


class Client(Shown, JobClient):
    """A client of a cluster: the one at `address` (see `client.Client`), the one that is found, or
    one of its own, which ends with it.

    Usable from any number of threads, and in `async` code: futures can be awaited. While it is
    open, and no later one is, `f.spawn()` and `ciel.wait` and the like use it. What is not done
    when it is closed is cancelled. `locals`: remote tracebacks show local variables. `prints`: what
    its tasks print appears on `sys.stdout`, or in the file that is given (`client.prints` says what
    is promised).

    Programs and calls run in the working directory of this process and with its environment
    (docs/where-programs-run.md). `cwd`: in another directory; `scratch`: each in a private one.
    `env`: with the environment of their workers and these variables, instead of ours.

    Within a task, `Client()` without an address is that task's own cluster: see `client.in_task`.
    """

    is_of_task = False

    def __new__(cls, address: Any = None, *args: Any, **options: Any) -> Self:
        if cls is Client and address is None and sessions.of_task() is not None:
            from ciel.client.in_task import TaskClient

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
        self._locals = locals
        self._is_closed = False
        self._wants_prints = prints
        self._listeners: list[Callable[[], None]] = []
        self.print_label: Callable[[JobPrinted], str] | None = None
        """What stands in brackets before each line that a task prints; None: its name."""
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
        """Cancel what is not done, hang up, and end the cluster if it was started for us."""
        sessions.leave(self)
        self._is_closed = True
        if (tracing := sys.modules.get("ciel.client.trace")) is not None:
            tracing.closing(self)
        try:
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
        """Close in a thread, while the event loop goes on."""
        import asyncio

        await asyncio.to_thread(self.close)

    @property
    def calls(self) -> Calls:
        """The calls of this client, and what became of them."""
        if self._calls is None:
            if self._is_closed:
                raise ClientClosedError
            from ciel.client.calling import Calls

            with self._calls_lock:
                if self._calls is None:
                    calls = Calls(self, locals_wanted=self._locals)
                    self.is_delivered = calls.take_news
                    self._calls = calls
        return self._calls

    @property
    def open_calls(self) -> Calls | None:
        """The same, but None before the first."""
        return self._calls

    def caller(self) -> Caller:
        """Return where calls run, as things stand now; raises ContextError."""
        from ciel.client.caller import Caller

        return Caller(self._cwd, scratch=self._scratch, env=self._env)

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
        """Make a task of a call, and return what stands for its result. Arguments may be, or hold
        at any depth, futures: the task runs when they are there and gets their values. A call whose
        future is dropped before a worker has it does not run; see `ciel.fire_and_forget`.

        Raises PackingError for a function or an argument that has no bytes, ConnectionLostError,
        ClientClosedError, ForkedError. A function made by `ciel.task` runs as that says.
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
        """Make a task of a call with these options; with `returns`, return a tuple of futures."""
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
        """Yield the results of calls with one element of each of the iterables, in order. What a
        call raises is raised in its place. `chunksize`: so many calls make one task; by itself,
        many small ones do. `buffersize`: the iterables, which may be endless, are read only so far
        ahead of the results that are taken; by default to their ends, now. Raises TimeoutError
        `timeout` seconds after the call of `map`.
        """
        from ciel.client.executor import results_of_map

        def begin(rows: list[tuple[Any, ...]], size: int | None) -> list[Future[Mapped]]:
            return self.map_parts(function, rows, size)

        return results_of_map(begin, iterables, timeout, chunksize, buffersize)

    def map_parts(
        self,
        function: Callable[..., Any],
        rows: Sequence[tuple[Any, ...]],
        chunksize: int | None = None,
    ) -> list[Future[Mapped]]:
        """Submit a call for each row of arguments, `chunksize` rows in a task; return the futures
        of these tasks. Once one is done, its `rest` are the futures of further tasks, whose results
        follow.
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
        """Make a task of a program; return the future of its standard output, as bytes.

        Futures in `argv` become paths of files that hold their values, `stdin` is a future, or
        several, one after the other; `files` lie under these relative names in a private directory,
        where it then runs. Otherwise it runs as the client says, in `cwd`, or with `scratch` in a
        private directory; `env` are additional variables. Values of functions are written as they
        are (bytes, or a text in UTF-8); `put` makes a future of anything. With `outputs` of two or
        more, the program writes them itself: `OUTPUT_FILES` names a text file with a path a line;
        returned is a list of futures. `options`: those of `ciel.task` but `returns` and `python`.
        Raises OptionError, ContextError and as `submit`.
        """
        if isinstance(argv, str | bytes) or not isinstance(argv, Sequence) or not argv:
            raise OptionError(
                "argv", f"it is a list of the program and its arguments, not {argv!r:.80}"
            )
        if outputs < 1:
            raise OptionError("outputs", f"it must be at least 1, not {outputs}")
        for option, instead in _OF_FUNCTIONS.items():
            if options.get(option) is not None:
                raise OptionError(option, f"it is for functions; a program has {instead}")
        chosen = read_options(Options(name=str(argv[0])[:200]), options)
        line = [self._argument(item) for item in argv]
        inputs = [] if stdin is None else stdin if isinstance(stdin, list | tuple) else [stdin]
        given = [self._object(item) for item in inputs]
        named = {name: self._object(item) for name, item in (files or {}).items()}
        directory = _directory(cwd, scratch=scratch, has_files=bool(named))

        def add(job: Job) -> Sequence[Unmade]:
            moved_to, variables = self.calls.caller.moved() or ("", {})
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
        return futures[0] if outputs == 1 else futures

    def _argument(self, item: Any) -> Any:
        if hasattr(item, "__ciel_future__"):
            return self._object(item)
        return os.fspath(item) if isinstance(item, os.PathLike) else item

    def _object(self, item: Any) -> Reference:
        """Return an object that a program can read."""
        if isinstance(item, REFERENCE_TYPES):
            return item
        if isinstance(item, bytes | bytearray | memoryview | str):
            content = item.encode() if isinstance(item, str) else bytes(item)
            return self.upload_content(content, "an input")
        if isinstance(item, os.PathLike):
            return self.upload(os.fspath(item))
        if not hasattr(item, "__ciel_future__"):
            raise TypeError(
                f"a program reads futures, bytes, texts and paths of files, not {item!r:.80}"
            )
        raw = self.calls.as_bytes(item)
        self.calls.send(raw)
        if raw.lot is None:
            raise raw.unsent_error()
        return raw.lot.ref

    # --- values -----------------------------------------------------------------------------------

    def put(self, value: T) -> Future[T]:
        """Store a value once, and return what stands for it; tasks that are given that read what
        lies in the store. Raises PackingError, UploadError, ClientClosedError.
        """
        found: Future[T] = self.calls.put(value)
        return found

    def get(self, futures: Any, timeout: float | None = None) -> Any:
        """Return the value of a future, or those of a list, a tuple or a dict of futures."""
        if isinstance(futures, dict):
            return dict(zip(futures, self.get(list(futures.values()), timeout), strict=True))
        if isinstance(futures, list | tuple):
            until_s = None if timeout is None else time.monotonic() + timeout
            self._await_all(futures, timeout)
            return type(futures)(future.result(_left_s(until_s)) for future in futures)
        require_future(futures)
        return futures.result(timeout)

    def _await_all(self, futures: Sequence[Any], timeout: float | None = None) -> None:
        """Wait until all are done, or raise what the first one raises that has failed by then."""
        done, _ = self.wait(futures, timeout, concurrent.futures.FIRST_EXCEPTION)
        if len(done) < len(set(futures)):
            failed = [f for f in futures if f.done() and f.exception() is not None]
            if not failed:
                raise TimeoutError(f"not all values were there after {timeout} s")
            failed[0].result()

    @overload
    def gather(self, futures: dict[K, Any], /, *, errors: str = ...) -> dict[K, Any]: ...

    @overload
    def gather(self, *futures: Any, errors: str = ...) -> list[Any]: ...

    def gather(self, *futures: Any, errors: str = sessions.RAISE) -> Any:
        """Return the values of futures, in order, or those of a dictionary; see `ciel.gather`."""

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
        """Yield futures as they are done; raises TimeoutError when all of it takes longer."""
        return self.calls.as_completed(futures, timeout)

    def cancel(self, futures: Any) -> None:
        """Call off a future, or several; what runs for them alone is stopped."""
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
        """Say why a future's task runs, waits, or does not run; see `Explanation`. Asks the master;
        raises as `ask` does, and TypeError for what is no future.
        """
        from ciel.client.explaining import explain

        return explain(self, future)

    def follow_prints(self, job: Job) -> None:
        """Have what the tasks of a job print appear, if that is wanted at all."""
        if self._wants_prints is not False:
            sink = None if self._wants_prints is True else self._wants_prints
            self.show_prints(job, sink, self.print_label)

    def listen(self, listener: Callable[[], None], *, listens: bool = True) -> None:
        """Have a function called after each delivery, or no more; it must not wait."""
        if listens:
            self._listeners.append(listener)
        else:
            self._listeners.remove(listener)

    def _deliver(self, messages: list[Message]) -> None:
        super()._deliver(messages)
        for listener in self._listeners:
            listener()

    def _on_lost(self, error: ClientError) -> None:
        super()._on_lost(error)
        if self._calls is not None:
            self._calls.lose(self._lost or error)


def _checked(
    cwd: str | os.PathLike[str] | None, *, scratch: bool, env: Mapping[str, str] | None
) -> tuple[str | None, bool, Mapping[str, str] | None]:
    """Return where calls are to run, checked before anything is begun; raises ContextError."""
    directory = _directory(cwd, scratch=scratch)
    for name, text in (env or {}).items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise TypeError(f"env: names and values are texts, not {name!r}: {text!r:.40}")
        if not name or "=" in name or "\0" in name + text:
            raise ContextError(f"env: {name!r} cannot be set in an environment")
    return directory or None, scratch, env


def _directory(
    cwd: str | os.PathLike[str] | None, *, scratch: bool, has_files: bool = False
) -> str | None:
    """Return the directory that a caller names; "": a private one; None: it names none."""
    if cwd is not None and (scratch or has_files):
        other = "'scratch'" if scratch else "'files'"
        raise ContextError(f"cwd: with {other} a program runs in a private directory; choose one")
    if cwd is None:
        return "" if scratch else None
    return os.path.abspath(os.fspath(cwd))


def _left_s(until_s: float | None) -> float | None:
    return None if until_s is None else max(0.0, until_s - time.monotonic())


def client_of_task(name: str) -> Client:
    """Return what a client becomes that travels to a task, as a global variable of a function: that
    task's own. Raises TypeError elsewhere.
    """
    if sessions.of_task() is None:
        raise TypeError(
            "a ciel.Client cannot be copied or sent to another process: it is a connection; open "
            "one there. (Within a task of ciel it would become that task's own.)"
        )
    return Client(name=name)
