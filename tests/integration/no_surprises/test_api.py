"""Tests expectations of other engines' users for the Python API: a client within a task, bounded
maps, and results when some calls fail.
"""

from __future__ import annotations

import asyncio
import gc
import io
import itertools
import logging
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import ciel

cloudpickle.register_pickle_by_value(sys.modules[__name__])

WITHIN_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[ciel.LocalCluster]:
    with ciel.LocalCluster(workers=1, slots=2) as found:
        yield found


@pytest.fixture
def client(cluster: ciel.LocalCluster) -> Iterator[ciel.Client]:
    with ciel.Client(cluster, environ={}) as found:
        yield found


def same(value: int) -> int:
    return value


def double(value: int) -> int:
    return 2 * value


# --- a client within a task -----------------------------------------------------------------------


def square_sum(count: int) -> int:
    with ciel.Client() as client:
        futures = [client.submit(pow, number, 2) for number in range(count)]
        done, missing = client.wait(futures)
        assert len(done) == count
        assert not missing
        assert client.gather(futures) == [number**2 for number in range(count)]
        assert {future.result() for future in client.as_completed(futures)} == {
            number**2 for number in range(count)
        }
        total: int = client.submit(sum, futures).result()
    assert client.submit(same, client.put(3)).result() == 3  # a task does not close its client
    return total


def test_a_client_in_a_task_uses_its_cluster_and_waiting_takes_no_slot(
    client: ciel.Client,
) -> None:
    futures = [client.submit(square_sum, 4) for _ in range(6)]  # three for each slot
    assert [future.result(WITHIN_S) for future in futures] == [14] * 6


def test_the_calls_of_a_client_in_a_task_run_in_other_slots(
    client: ciel.Client, tmp_path: Path
) -> None:
    def meet(own: str, other: str) -> str:
        import pathlib
        import time

        (pathlib.Path(directory) / own).touch()
        while not (pathlib.Path(directory) / other).exists():
            time.sleep(0.01)
        return own

    def parent() -> list[str]:
        client = ciel.Client()
        return client.gather(client.submit(meet, "a", "b"), client.submit(meet, "b", "a"))

    directory = str(tmp_path)
    assert client.submit(parent).result(WITHIN_S) == ["a", "b"]


def test_a_map_in_a_task_is_ordered_and_reads_a_limited_number_of_items_ahead(
    client: ciel.Client,
) -> None:
    def parent() -> tuple[list[int], list[int]]:
        client = ciel.Client()
        endless = client.map(double, itertools.count(), buffersize=4)
        return list(client.map(double, range(5), chunksize=2)), [next(endless) for _ in range(6)]

    assert client.submit(parent).result(WITHIN_S) == ([0, 2, 4, 6, 8], [0, 2, 4, 6, 8, 10])


def test_a_client_in_a_task_names_a_missing_method(client: ciel.Client) -> None:
    def parent() -> str:
        return str(ciel.Client().job("mine"))

    with pytest.raises(AttributeError, match=r"client\.job does not exist within a task.*submit"):
        client.submit(parent).result(WITHIN_S)


def test_a_global_client_becomes_the_client_of_each_task(client: ciel.Client) -> None:
    def parent(number: int) -> int:
        return client.submit(double, number).result()

    assert [client.submit(parent, n).result(WITHIN_S) for n in range(3)] == [0, 2, 4]
    with pytest.raises(TypeError, match="cannot be copied or sent"):
        cloudpickle.loads(cloudpickle.dumps(client))


@pytest.mark.slow
def test_tasks_can_import_a_module_with_a_client(
    cluster: ciel.LocalCluster, tmp_path: Path
) -> None:
    code, temporary = tmp_path / "code", tmp_path / "tmp"
    code.mkdir()
    temporary.mkdir()
    (code / "shop.py").write_text(
        textwrap.dedent(
            """
            import ciel
            client = ciel.Client()
            def half(n): return n // 2
            def halves(n): return sum(client.gather([client.submit(half, i) for i in range(n)]))
            """
        )
    )
    (code / "main.py").write_text(
        "import shop\n"
        "futures = [shop.client.submit(shop.halves, 5) for _ in range(4)]\n"
        "print(shop.client.gather(futures))\n"
        "shop.client.close()\n"
    )
    found = subprocess.run(
        [sys.executable, "main.py"], cwd=code, timeout=WITHIN_S, check=False,
        capture_output=True, text=True, env={**_environ(), "TMPDIR": str(temporary)},
    )  # fmt: skip
    assert found.stdout.splitlines() == ["[4, 4, 4, 4]"], found.stderr
    assert list(temporary.iterdir()) == []


def _environ() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if name != "CIEL_MASTER"}


# --- functions of the client, and facts about a task ----------------------------------------------


def test_a_bounded_map_reads_only_buffersize_items_ahead(client: ciel.Client) -> None:
    read: list[int] = []

    def numbers() -> Iterator[int]:
        for number in itertools.count():
            read.append(number)
            yield number

    results = client.map(double, numbers(), buffersize=5)
    assert read == [0, 1, 2, 3, 4]
    assert [next(results) for _ in range(3)] == [0, 2, 4]
    assert len(read) <= 8
    with pytest.raises(ValueError, match="buffersize must be None or at least 1, not 0"):
        client.map(double, [1], buffersize=0)


def fail_at_one(value: int) -> int:
    if value == 1:
        raise KeyError(value)
    return value


@pytest.mark.parametrize("inside", [False, True])
def test_gather_returns_or_skips_errors_and_takes_dictionaries(
    client: ciel.Client, inside: bool
) -> None:
    def gathered() -> tuple[list[str], list[int], dict[str, int], str]:
        futures = [ciel.spawn(fail_at_one, number) for number in range(3)]
        named = dict(zip("abc", futures, strict=True))
        returned = [repr(value) for value in ciel.gather(futures, errors="return")]
        try:
            ciel.gather(named)
        except KeyError as error:
            raised = repr(error)
        return (
            returned,
            ciel.gather(*futures, errors="skip"),
            ciel.gather(named, errors="skip"),
            raised,
        )

    found = client.submit(gathered).result(WITHIN_S) if inside else gathered()
    assert found == (["0", "KeyError(1)", "2"], [0, 2], {"a": 0, "c": 2}, "KeyError(1)")


def test_gather_of_a_client_works_like_that_of_ciel(client: ciel.Client) -> None:
    named = {"a": client.submit(same, 0), "b": client.submit(fail_at_one, 1)}
    assert client.gather(named, errors="skip") == {"a": 0}
    assert client.gather({}) == {}
    with pytest.raises(KeyError):
        client.gather(named)
    with pytest.raises(ValueError, match="errors must be 'raise', 'return' or 'skip'"):
        client.gather(named, errors="ignore")


def test_an_async_client_closes_in_a_thread(
    cluster: ciel.LocalCluster,
) -> None:
    closed_in: list[int] = []

    class Watched(ciel.Client):
        def close(self) -> None:
            closed_in.append(threading.get_ident())
            super().close()

    async def main() -> int:
        async with Watched(cluster, environ={}) as client:
            return await client.submit(double, 4)

    assert asyncio.run(main()) == 8
    assert closed_in
    assert threading.get_ident() not in closed_in


def test_a_task_killed_by_sigsegv_shows_the_python_stack(
    client: ciel.Client,
) -> None:
    def crash_here() -> None:
        import ctypes

        ctypes.string_at(0)

    with pytest.raises(ciel.TaskKilledError, match=r"SIGSEGV(.|\n)*in crash_here"):
        client.submit(ciel.task(retries=0)(crash_here)).result(WITHIN_S)


def test_a_task_knows_its_id_attempt_name_and_job(client: ciel.Client, tmp_path: Path) -> None:
    def who() -> Any:
        if not (mark := tmp_path / "again").exists():
            mark.touch()
            os._exit(1)
        return tuple(ciel.current_task())

    future: Any = client.submit(ciel.task(name="asker", retries=1)(who))
    task, attempt, name, job = future.result(WITHIN_S)
    assert (attempt, name) == (2, "asker")
    assert future.object_id.startswith(task)
    assert [job] == client.job_ids
    with pytest.raises(RuntimeError, match="this is not a task"):
        ciel.current_task()


def test_tasks_and_their_children_log_at_the_clients_level(
    cluster: ciel.LocalCluster,
) -> None:
    def child() -> None:
        logging.getLogger("shop").info("of the child")

    def parent() -> int:
        logging.getLogger("shop").info("of the parent")
        logging.debug("too fine")
        ciel.task(retries=1)(child).spawn().result()
        return logging.root.level

    usual, printed = logging.root.level, io.StringIO()
    try:
        with ciel.Client(cluster, environ={}, prints=printed) as client:
            logging.root.setLevel(logging.INFO)
            assert client.submit(parent).result(WITHIN_S) == logging.INFO
            logging.root.setLevel(logging.WARNING)
            assert client.submit(parent).result(WITHIN_S) == logging.WARNING
    finally:
        logging.root.setLevel(usual)
    text = printed.getvalue()
    assert [text.count(words) for words in ("of the parent", "of the child", "fine")] == [1, 1, 0]


@pytest.mark.parametrize("inside", [False, True])
def test_a_function_may_refer_to_futures(client: ciel.Client, inside: bool) -> None:
    def parent() -> tuple[int, list[int]]:
        total = ciel.spawn(double, 20)
        listed = {"one": [ciel.spawn(same, 1)]}

        def add(value: int) -> int:
            return value + total.result() + listed["one"][0].result()

        found = ciel.spawn(add, 1)
        if inside:
            return found.result(), ciel.gather([ciel.spawn(add, n) for n in range(3)])
        return found.result(WITHIN_S), list(client.map(add, range(3)))

    found = client.submit(parent).result(WITHIN_S) if inside else parent()
    assert found == (42, [41, 42, 43])


@pytest.mark.slow
def test_futures_that_a_function_refers_to_stay_until_it_has_run(
    client: ciel.Client, tmp_path: Path
) -> None:
    def submitted() -> Any:
        def wait_and_add() -> int:
            while not (tmp_path / "go").exists():
                time.sleep(0.01)
            return int(large.result()[0]) + 1

        large = client.submit(bytes, 100_000)
        assert len(large.result(WITHIN_S)) == 100_000
        return client.submit(wait_and_add)

    future = submitted()  # `submitted` has dropped its first future
    client.submit(same, 1).result(WITHIN_S)
    gc.collect()
    time.sleep(1.2)  # by then dropped objects have been released
    client.submit(same, 2).result(WITHIN_S)
    (tmp_path / "go").touch()
    assert future.result(WITHIN_S) == 1
