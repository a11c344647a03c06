"""Tests Python tasks and the programs that run them: values in the store, leftovers of tasks,
interpreters and modules.

The functions here are sent with their code: no program of a task can import this file.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import pytest

import ciel
from ciel.testing.homes import wait_for

cloudpickle.register_pickle_by_value(sys.modules[__name__])
WITHIN_S = 30


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ciel.Client]:
    with (
        ciel.LocalCluster(workers=1, slots=1, directory=tmp_path_factory.mktemp("one")) as cluster,
        ciel.Client(cluster) as client,
    ):
        yield client


@ciel.task
def slow_square(number: int, seconds: float = 0.2) -> int:
    time.sleep(seconds)
    return number * number


# --- values in the store --------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [': > "$1"', 'echo more >> "$1"'])
def test_changes_that_a_program_makes_to_its_input_are_not_seen_by_others(
    client: ciel.Client, damage: str
) -> None:
    made = client.run(["seq", "100000"], outputs=1)
    script = f'chmod u+w "$1"; ({damage}); cat "$1" | wc -c'
    client.run(["sh", "-c", script, "sh", made], outputs=1).result(WITHIN_S)
    count = client.run(["wc", "-c"], stdin=made, outputs=1)
    assert count.result(WITHIN_S).split() == [b"588895"]
    assert len(made.result(WITHIN_S)) == 588_895


def made_in_place(count: int) -> dict[str, Any]:
    array = ciel.empty((count, 2), "u2")
    array[:] = 7
    spare = ciel.empty(10)
    del spare
    return {"array": array, "more": np.arange(3), "part": array[1:2]}


def look_at(value: dict[str, Any]) -> tuple[Any, ...]:
    array = value["array"]
    return int(array.sum()), array.flags.writeable, value["more"].tolist(), value["part"].tolist()


def test_an_array_can_be_created_in_the_store(client: ciel.Client) -> None:
    made = client.submit(made_in_place, 50_000)
    seen = client.submit(look_at, made).result(WITHIN_S)
    assert seen == (700_000, True, [0, 1, 2], [[7, 7]])


def test_empty_returns_an_ordinary_array_outside_of_tasks() -> None:
    assert ciel.empty(3, "u1").nbytes == 3


@ciel.task
def array_and_wait() -> Any:
    array = ciel.empty(50_000)
    array[:] = 1
    slow_square.options(retries=1).spawn(1, 0.0).result()
    return array


def test_a_task_may_wait_while_it_holds_an_array_in_the_store(client: ciel.Client) -> None:
    assert client.submit(array_and_wait).result(WITHIN_S).sum() == 50_000


def keeps_array() -> Any:
    array = ciel.empty(1000)
    array[:] = 1
    sys.kept = array  # type: ignore[attr-defined]  # a module's state lasts as long as the process
    return array, os.getpid()


def test_a_program_that_could_change_its_result_is_not_reused(client: ciel.Client) -> None:
    array, pid = client.submit(keeps_array).result(WITHIN_S)
    assert array.sum() == 1000
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the end of the program")


@ciel.task
def gives_large(size_bytes: int) -> list[int]:
    value = ciel.put(bytes(size_bytes))
    plain = bytes(size_bytes)
    far = [length.options(retries=1).spawn(item) for item in (value, value, plain)]
    return ciel.gather(far)


@ciel.task
def length(value: bytes) -> int:
    return len(value)


def test_large_arguments_of_children_are_sent_as_objects(client: ciel.Client) -> None:
    assert client.submit(gives_large, 300_000).result(WITHIN_S) == [300_000] * 3


# --- leftovers of tasks ---------------------------------------------------------------------------


def leaves_thread() -> int:
    threading.Thread(target=time.sleep, args=(60,)).start()
    return os.getpid()


def leaves_process() -> int:
    subprocess.Popen(["sleep", "60"])
    return os.getpid()


@pytest.mark.parametrize("leaves", [leaves_thread, leaves_process])
def test_a_program_with_leftovers_ends(client: ciel.Client, leaves: Callable[[], int]) -> None:
    pid = client.submit(leaves).result(WITHIN_S)
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the end of the program")
    assert client.submit(os.getpid).result(WITHIN_S) != pid


def forks() -> tuple[str, int]:
    child = os.fork()
    if not child:
        return "the child", 0
    return "the parent", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_of_a_task_reports_nothing(client: ciel.Client) -> None:
    assert client.submit(forks).result(WITHIN_S) == ("the parent", 0)


def disturbs() -> int:
    os.chdir("/")
    sys.setrecursionlimit(5000)
    sys.stdout = sys.stderr
    return os.getpid()


def surroundings() -> tuple[int, str, int, bool]:
    return os.getpid(), os.getcwd(), sys.getrecursionlimit(), sys.stdout is sys.__stdout__


def test_a_task_does_not_see_changes_of_the_program_by_earlier_tasks(client: ciel.Client) -> None:
    _, *before = client.submit(surroundings).result(WITHIN_S)
    pid = client.submit(disturbs).result(WITHIN_S)
    assert client.submit(surroundings).result(WITHIN_S) == (pid, *before)


TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


def leaves_timers() -> int:
    for timer in TIMERS:
        signal.setitimer(timer, 0.2, 0.2)
    return os.getpid()


def outlives_timers() -> tuple[int, list[tuple[float, float]]]:
    until_s = time.process_time() + 0.5  # two of them count CPU time
    while time.process_time() < until_s:
        pass
    return os.getpid(), [signal.getitimer(timer) for timer in TIMERS]


def test_a_timer_that_a_task_leaves_does_not_fire_in_the_next(client: ciel.Client) -> None:
    pid = client.submit(leaves_timers).result(WITHIN_S)
    assert client.submit(outlives_timers).result(WITHIN_S) == (pid, [(0.0, 0.0)] * 3)


# --- classes that are sent with their code --------------------------------------------------------


@dataclasses.dataclass(slots=True)
class Point:
    x: int


class Named:
    __slots__ = "x"

    def __init__(self, x: int) -> None:
        self.x = x


class Hidden(Named):
    __slots__ = ("__hidden", "__weakref__")

    def __init__(self, x: int) -> None:
        super().__init__(x)
        self.__hidden = x

    def hidden(self) -> int:
        return self.__hidden


class Wider(Hidden):
    """Has a `__dict__`, too."""


class Pair(NamedTuple):
    x: int


class Slotted(Exception):
    __slots__ = ("x",)

    def __init__(self, x: int) -> None:
        super().__init__(x)
        self.x = x


def same(value: Any) -> tuple[Any, bool]:
    return value, hasattr(value, "__dict__")


@pytest.mark.parametrize("kind", [Point, Named, Hidden, Wider, Pair, Slotted])
def test_instances_of_classes_with_slots_survive_a_round_trip(
    client: ciel.Client, kind: Any
) -> None:
    sent = kind(3)
    found, has_dict = client.submit(same, sent).result(WITHIN_S)
    assert (type(found), found.x) == (kind, 3)
    assert has_dict == hasattr(sent, "__dict__") or kind is Pair
    assert client.submit(kind, 4).result(WITHIN_S).x == 4
    if isinstance(found, Hidden):
        assert found.hidden() == 3


# --- interpreters ---------------------------------------------------------------------------------


def interpreter() -> str:
    return sys.executable


def test_a_task_may_choose_its_interpreter(client: ciel.Client, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", other], check=True)
    (site,) = other.glob("lib/python*/site-packages")
    site.joinpath("ours.pth").write_text("\n".join(path for path in sys.path if path))
    root = Path(ciel.__file__).resolve().parent.parent
    site.joinpath("root.pth").write_text(f"{root}\n")
    named = ciel.task(python=str(other / "bin" / "python"))(interpreter)
    assert named.spawn().result(WITHIN_S) == str(other / "bin" / "python")
    assert client.submit(interpreter).result(WITHIN_S) != str(other / "bin" / "python")


def test_an_interpreter_without_ciel_is_refused_in_one_line(
    client: ciel.Client, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    with pytest.raises(ciel.TaskError) as caught:
        client.submit(ciel.task(python=str(bare / "bin" / "python"))(interpreter)).result(WITHIN_S)
    text = str(caught.value)
    assert "cannot run tasks: ModuleNotFoundError: No module named 'ciel'" in text
    assert "\n" not in text


def test_a_missing_interpreter_is_named(client: ciel.Client) -> None:
    with pytest.raises(ciel.TaskError, match="/no/such/python"):
        client.submit(ciel.task(python="/no/such/python")(interpreter)).result(WITHIN_S)


_CHANGING = """
import ciel, pathlib, time

path = pathlib.Path(__file__).with_name("changing.py")
path.write_text("def told():\\n    return 'first'\\n")
import changing

if __name__ == "__main__":
    with ciel.LocalCluster(workers=1, slots=1) as cluster:
        with ciel.Client(cluster) as client:
            print(client.submit(changing.told).result(20))
        time.sleep(1.1)  # a program looks once a second
        path.write_text("def told():\\n    return 'second'\\n")
        with ciel.Client(cluster) as client:
            print(client.submit(changing.told).result(20))
"""


@pytest.mark.slow
def test_modules_beside_the_script_are_imported_in_their_current_version(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_CHANGING)
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.returncode) == (["first", "second"], 0), done.stderr
