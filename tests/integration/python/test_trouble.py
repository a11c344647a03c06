"""Tests Python tasks that damage themselves or others: the errors are clear, and both slots are
free afterwards.

The functions here are sent with their code: no program of a task can import this file.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import ciel
from ciel.testing.homes import wait_for

IS_LONG = os.environ.get("CIEL_LONG") == "1"
LARGE_BYTES = (4 << 30) + 1 if IS_LONG else (64 << 20) + 1
"""More than a 32-bit length can express; by default less, which is sent in the same way."""

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ciel.Client]:
    directory = tmp_path_factory.mktemp("trouble")
    with (
        ciel.LocalCluster(workers=1, slots=2, directory=directory) as cluster,
        ciel.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(autouse=True)
def _both_slots_work_afterwards(client: ciel.Client) -> Iterator[None]:
    yield
    gc.collect()  # dropped futures keep no call running
    both = ciel.task(slots=2, timeout_s=10)(os.getpid)
    assert both.spawn().result(20) > 0


def error_of(future: ciel.Future[Any]) -> BaseException:
    error = future.exception(30)
    assert error is not None
    return error


# --- values that cannot be pickled ----------------------------------------------------------------


def test_a_function_that_cannot_be_pickled_is_refused_at_once_with_the_cause(
    client: ciel.Client,
) -> None:
    guard = threading.Lock()

    def guarded() -> None:
        with guard:
            pass

    with pytest.raises(ciel.PackingError, match=r"guarded.*guard.*lock"):
        client.submit(guarded)


def test_an_argument_that_cannot_be_pickled_is_refused_at_once_and_named(
    client: ciel.Client,
) -> None:
    with pytest.raises(ciel.PackingError, match=r"arguments of len.*lock"):
        client.submit(len, {"a": [1, threading.Lock()]})


def test_a_result_that_cannot_be_pickled_is_named(client: ciel.Client) -> None:
    def locked() -> Any:
        return {"a": 1, "guard": threading.Lock()}

    error = error_of(client.submit(locked))
    assert isinstance(error, ciel.PackingError)
    assert "locked" in str(error)
    assert "guard" in str(error)


def test_a_value_that_contains_itself_can_be_an_argument(client: ciel.Client) -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    assert client.submit(lambda given: given[1] is given, ring).result(30)


def test_a_value_that_is_nested_too_deeply_is_refused(client: ciel.Client) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ciel.PackingError, match="nested too deeply"):
        client.submit(id, deep)
    while deep:  # otherwise it would be deallocated recursively
        deep = deep[0]


def test_a_returned_generator_becomes_a_list_of_its_items(client: ciel.Client) -> None:
    def up_to(count: int) -> Any:
        return (number for number in range(count))

    assert client.submit(up_to, 3).result(30) == [0, 1, 2]
    assert list(client.map(up_to, range(3))) == [[], [0], [0, 1]]


def test_a_result_that_is_an_open_connection_is_named(client: ciel.Client) -> None:
    error = error_of(client.submit(socket.socket))
    assert isinstance(error, ciel.PackingError)
    assert "socket" in str(error)


# --- changed arguments ----------------------------------------------------------------------------


def test_a_task_changes_only_its_copy_of_a_list(client: ciel.Client) -> None:
    def append(given: list[int]) -> list[int]:
        given.append(9)
        return given

    mine, shared = [1], client.put([2])
    assert client.submit(append, mine).result(30) == [1, 9]
    assert client.gather([client.submit(append, shared) for _ in range(3)]) == [[2, 9]] * 3
    assert (mine, shared.result()) == ([1], [2])


def test_an_array_in_the_store_is_not_changed_by_a_task(client: ciel.Client) -> None:
    def zero(given: Any) -> float:
        given[:1000] = 0
        return float(given.sum())

    array = client.put(np.ones(100_000))
    assert client.gather([client.submit(zero, array) for _ in range(3)]) == [99_000.0] * 3
    assert client.submit(np.sum, array).result(30) == 100_000


@pytest.mark.slow
def test_a_spawn_uses_its_arguments_at_the_moment_of_the_spawn(client: ciel.Client) -> None:
    @ciel.task
    def parent() -> list[list[int]]:
        given: list[int] = []
        children: list[ciel.Future[list[int]]] = []
        for number in range(3):
            given.append(number)
            children.append(ciel.spawn(list, given))
        return ciel.gather(children)

    assert parent.spawn().result(30) == [[0], [0, 1], [0, 1, 2]]


# --- exceptions -----------------------------------------------------------------------------------


class Guarded(Exception):
    """Contains a value that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("guarded")
        self.guard = threading.Lock()


class Picky(Exception):
    """Cannot be recreated from its arguments."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")


class Silent(Exception):
    """Raises when it is printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Odd(ValueError):
    """An exception class of this file."""


def raise_it(make: Callable[[], BaseException]) -> None:
    raise make()


@pytest.mark.slow
def test_an_exception_that_cannot_be_pickled_is_reported(client: ciel.Client) -> None:
    error = error_of(client.submit(raise_it, Guarded))
    assert isinstance(error, ciel.RemoteError)
    assert error.kind.endswith("Guarded")
    assert "guarded" in str(error)
    assert "raise_it" in str(error)  # the traceback


@pytest.mark.parametrize(
    "make, kind",
    [
        (lambda: Odd("is odd"), Odd),
        (lambda: KeyError("is odd"), KeyError),
        (lambda: ExceptionGroup("is odd", [Odd(), KeyError()]), ExceptionGroup),
        (lambda: StopIteration("is odd"), StopIteration),
        (lambda: Silent("is odd"), Silent),
        (lambda: Picky(7, "is odd"), Picky),
        (lambda: ValueError("is odd" + "x" * (1 << 20)), Exception),
    ],
)
def test_an_exception_keeps_its_class_wherever_the_class_is_defined(
    client: ciel.Client, make: Callable[[], BaseException], kind: type[BaseException]
) -> None:
    error = error_of(client.submit(raise_it, make))
    assert isinstance(error, kind), type(error)
    assert "is odd" in str(error.args)
    assert "raise_it" in str(error.__cause__ or error)


def test_an_exception_in_a_map_is_raised_at_its_position(client: ciel.Client) -> None:
    def half(number: int) -> int:
        if number == 150:
            raise Odd(number)
        return number // 2

    results = client.map(half, range(1000), chunksize=100)
    assert [next(results) for _ in range(150)] == [number // 2 for number in range(150)]
    with pytest.raises(Odd):
        next(results)


def test_a_result_that_cannot_be_pickled_in_a_map_raises_at_its_position(
    client: ciel.Client,
) -> None:
    def lock_or(number: int) -> Any:
        return threading.Lock() if number == 70 else number

    results = client.map(lock_or, range(100), chunksize=50)
    assert [next(results) for _ in range(70)] == list(range(70))
    with pytest.raises(ciel.PackingError, match=r"the result of .*lock_or: _thread\.lock cannot"):
        next(results)


def test_an_argument_that_cannot_be_pickled_in_a_map_is_named(client: ciel.Client) -> None:
    with pytest.raises(ciel.PackingError, match=r"argument 2 of a call of the map: _thread\.lock"):
        client.map(divmod, [1, 2], [3, threading.Lock()])


# --- processes ------------------------------------------------------------------------------------


def exit_at_once(status: int) -> None:
    os._exit(status)


def kill_itself(signal_number: int) -> None:
    os.kill(os.getpid(), signal_number)
    time.sleep(60)


@pytest.mark.parametrize(
    "call, argument, text",
    [
        (exit_at_once, 3, "3"),
        (exit_at_once, 0, "0"),
        (kill_itself, signal.SIGKILL, "SIGKILL"),
        (kill_itself, signal.SIGSEGV, "SIGSEGV"),
    ],
)
def test_a_task_that_ends_its_process_fails_with_the_cause(
    client: ciel.Client, call: Callable[[int], None], argument: int, text: str
) -> None:
    error = error_of(client.submit(call, argument))
    assert type(error) is ciel.TaskKilledError
    assert text in str(error)


def test_of_bundled_calls_only_the_one_that_ends_its_process_fails(
    client: ciel.Client,
) -> None:
    def same_or_exit(number: int) -> int:
        if number == 60:
            os._exit(3)
        return number

    futures = [client.submit(same_or_exit, number) for number in range(200)]
    ciel.wait(futures, 60)
    failed = [number for number, future in enumerate(futures) if future.exception() is not None]
    assert failed == [60]
    assert isinstance(futures[60].exception(), ciel.TaskKilledError)
    assert [future.result() for future in futures[:60]] == list(range(60))


def test_threads_that_a_task_leaves_do_not_delay_its_result(client: ciel.Client) -> None:
    def leave_threads(count: int) -> int:
        for _ in range(count):
            threading.Thread(target=time.sleep, args=(60,)).start()
        return threading.active_count()

    assert client.submit(leave_threads, 50).result(30) > 50
    assert client.submit(pow, 2, 3).result(30) == 8


def test_a_thread_that_fails_later_does_no_harm(client: ciel.Client) -> None:
    def leave_a_fault() -> str:
        def fail() -> None:
            time.sleep(0.05)
            raise RuntimeError("nobody asked")

        threading.Thread(target=fail).start()
        return "left"

    assert client.submit(leave_a_fault).result(30) == "left"
    assert list(client.map(abs, range(100), chunksize=1)) == list(range(100))


def test_a_forked_child_that_returns_reports_nothing(client: ciel.Client) -> None:
    def fork() -> str:
        return "parent" if os.fork() else "child"

    assert [client.submit(fork).result(30) for _ in range(4)] == ["parent"] * 4
    assert client.submit(pow, 2, 3).result(30) == 8


def test_a_forked_child_that_stays_does_not_delay_the_result(client: ciel.Client) -> None:
    def fork() -> int:
        child = os.fork()
        if not child:
            os.setsid()
            time.sleep(60)
            os._exit(0)
        return child

    child = client.submit(fork).result(30)
    with contextlib.suppress(ProcessLookupError):  # its parent may have ended
        os.kill(child, signal.SIGKILL)


def test_a_pool_of_processes_works_in_a_task(client: ciel.Client) -> None:
    def pooled() -> list[int]:
        import multiprocessing

        with multiprocessing.get_context("fork").Pool(2) as pool:
            return pool.map(abs, [-1, -2, -3])

    assert client.submit(pooled).result(30) == [1, 2, 3]


def test_a_task_does_not_run_in_a_directory_that_another_entered(client: ciel.Client) -> None:
    before = set(client.gather([client.submit(os.getcwd) for _ in range(4)]))
    client.gather([client.submit(os.chdir, "/") for _ in range(4)])
    assert "/" not in before
    assert "/" not in client.gather([client.submit(os.getcwd) for _ in range(4)])


def test_a_task_that_closes_every_descriptor_fails_alone(client: ciel.Client) -> None:
    def close_all() -> str:
        os.closerange(0, 256)
        return "closed"

    future = client.submit(close_all)
    assert isinstance(error_of(future), ciel.TaskError)


def test_output_and_input_of_a_task_do_not_disturb_the_protocol(
    client: ciel.Client,
) -> None:
    def chat() -> tuple[str, str]:
        os.write(1, b'\0\0\0\x10["exit", {}]' * 100)
        print("x" * 100_000)
        return sys.stdin.read(), os.read(0, 100).decode()

    assert client.submit(chat).result(30) == ("", "")


# --- endless calls --------------------------------------------------------------------------------


def test_endless_recursion_raises_as_in_the_client(client: ciel.Client) -> None:
    def again(n: int) -> int:
        return again(n + 1)

    assert isinstance(error_of(client.submit(again, 0)), RecursionError)


def test_endless_delegation_ends_when_it_is_cancelled(client: ciel.Client) -> None:
    @ciel.task
    def again(n: int) -> int:
        return ciel.call(again, n + 1)

    future = again.spawn(0)
    time.sleep(0.2)
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result(30)


def test_endlessly_nested_waits_end_when_they_are_cancelled(client: ciel.Client) -> None:
    @ciel.task
    def again(n: int) -> int:
        return again.spawn(n + 1).result() + 1

    future = again.spawn(0)
    with contextlib.suppress(TimeoutError):
        assert isinstance(future.exception(1), RecursionError)
    future.cancel()


@pytest.mark.slow
def test_a_task_that_never_ends_is_killed_when_it_is_cancelled(client: ciel.Client) -> None:
    def spin(place: str) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path(place).write_text(str(os.getpid()))
        while True:
            pass

    place = Path(str(client.cluster.directory)) / "spinning"  # type: ignore[union-attr]  # not None
    future = client.submit(spin, str(place))
    wait_for(lambda: place.exists() and place.read_text(), "the task")
    assert future.cancel()
    pid = int(place.read_text())
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "its end")


# --- other versions -------------------------------------------------------------------------------


def test_calls_of_another_version_are_refused_in_one_line(
    client: ciel.Client, tmp_path: Path
) -> None:
    """Use an interpreter that has another version of ciel."""
    line = refusal_of(another_python(tmp_path, "import ciel\nciel.__version__ = '0.0.9'\n"))
    assert f"it has ciel 0.0.9, but the worker has ciel {ciel.__version__}" in line


@pytest.mark.parametrize("version", ["3, 6", "3, 9", "3, 10"])
def test_an_interpreter_that_is_too_old_is_refused_with_the_reason(
    client: ciel.Client, tmp_path: Path, version: str
) -> None:
    """The message is the same whether ciel is there or not, because it could not be installed."""
    begins = f"import sys\nsys.version_info = ({version}, 18, 'final', 0)\n"
    for blocked in ("", "sys.modules['ciel'] = None\n"):
        line = refusal_of(another_python(tmp_path, begins + blocked))
        found = version.replace(", ", ".")
        assert f"(Python {found}) cannot run tasks: ciel needs" in line
        assert "Python 3.11 or later; name another interpreter by 'python='" in line


def test_an_interpreter_of_another_version_is_refused_without_advice_to_install_ciel(
    client: ciel.Client, tmp_path: Path
) -> None:
    begins = "import sys\nsys.version_info = (3, 99, 1, 'final', 0)\nsys.modules['ciel'] = None\n"
    line = refusal_of(another_python(tmp_path, begins))
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert "(Python 3.99) cannot run tasks" in line
    assert f"the call was packed by Python {here}; name such an interpreter by 'python='" in line
    assert "install" not in line


def another_python(place: Path, begins: str) -> str:
    """Return an interpreter that first runs some lines."""
    (place / "sitecustomize.py").write_text(begins)
    other = place / "python"
    other.write_text(f'#!/bin/sh\nPYTHONPATH={place} exec {sys.executable} "$@"\n')
    other.chmod(0o755)
    return str(other)


def refusal_of(python: str) -> str:
    """Return the line with which an interpreter is refused."""
    error = error_of(ciel.task(python=python)(os.getpid).spawn())
    assert isinstance(error, ciel.TaskError)
    (line,) = str(error).splitlines()
    return line


def test_a_missing_interpreter_is_named(client: ciel.Client) -> None:
    error = error_of(ciel.task(python="/no/such/python")(os.getpid).spawn())
    assert isinstance(error, ciel.TaskError)
    assert "/no/such/python" in str(error)


@pytest.mark.slow
def test_an_interpreter_without_ciel_is_named(client: ciel.Client, tmp_path: Path) -> None:
    other = tmp_path / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    other.symlink_to(tmp_path / "bare" / "bin" / "python")
    bare = str(tmp_path / "bare" / "bin" / "python")
    error = error_of(ciel.task(python=bare)(os.getpid).spawn())
    assert isinstance(error, ciel.TaskError)
    assert "ciel" in str(error)
    assert bare in str(error)


# --- sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [b"", "", (), None, bytearray(), np.empty(0), np.empty((0, 5), "i4"), {}]
)
def test_empty_values_can_be_arguments_and_results(client: ciel.Client, value: Any) -> None:
    for given in (value, client.put(value)):
        found = client.submit(lambda argument: argument, given).result(30)
        assert type(found) is type(value)
        assert np.array_equal(found, value) if isinstance(value, np.ndarray) else found == value
        if isinstance(value, np.ndarray):
            assert (found.shape, found.dtype) == (value.shape, value.dtype)


@pytest.mark.slow
def test_a_program_may_have_empty_input_and_output(client: ciel.Client) -> None:
    out = client.run(["cat"], stdin=client.put(b""))
    assert client.submit(len, out).result(30) == 0
    assert client.run(["cat"], stdin=b"").result(30) == b""


@pytest.mark.slow
def test_an_argument_may_be_very_large(client: ciel.Client) -> None:
    content = np.zeros(LARGE_BYTES, np.uint8)
    content[-1] = 7

    def look(given: Any) -> tuple[int, int]:
        return len(given), int(given[-1])

    assert client.submit(look, content).result(200) == (LARGE_BYTES, 7)
