"""Cores that ask each other for space by messages, with clocks that differ."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from ciel.net.cores import space
from ciel.net.cores.connections import Cores
from ciel.net.cores.space import AskByMessages, share_space
from ciel.storage.interface import NEVER_S, Answer, AskNeighbours
from tests.net.test_cores import Scene

pytestmark = pytest.mark.requirement("CIB-52")


class Store:
    """Takes the place of the neighbours of a store; every question gets the same answer."""

    def __init__(self, answer: Answer) -> None:
        self.questions: list[tuple[int, float]] = []
        self.way: AskNeighbours | None = None
        self._answer = answer

    def free(self, wanted_bytes: int, before_s: float) -> Answer:
        self.questions.append((wanted_bytes, before_s))
        return self._answer

    def ask_by(self, way: AskNeighbours) -> None:
        self.way = way

    def serve(self, free: object) -> None: ...

    def ask(self, wanted_bytes: int, before_s: float) -> Answer:
        raise NotImplementedError

    def close(self) -> None: ...


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def share(scene: Scene, cores: Cores, answer: Answer) -> Store:
    store = Store(answer)
    share_space(scene.clock, cores, store)
    return store


def result(scene: Scene, asked: Future[Answer]) -> Answer:
    scene.until(asked.done, looks=1_000_000)
    return asked.result()


def test_a_question_and_its_answer_travel_as_idle_times(
    scene: Scene, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = scene.join(0, "one"), scene.join(1, "other")
    used_s = time.monotonic() - 50.0
    store = share(scene, other, Answer(4096, used_s))
    scene.until(lambda: one.names() and other.names())
    ask = AskByMessages(scene.clock, one)
    others = pool.submit(ask.others)
    scene.until(others.done, looks=1_000_000)
    assert others.result() == ["1"]

    before_s = time.monotonic() - 9.0
    answer = result(scene, pool.submit(ask.question, "1", 8192, before_s))
    ((wanted_bytes, asked_s),) = store.questions
    assert wanted_bytes == 8192
    assert asked_s == pytest.approx(before_s, abs=5.0)
    assert answer.freed_bytes == 4096
    assert answer.next_s == pytest.approx(used_s, abs=5.0)
    ages = [space._unpacked(space._packed(1, NEVER_S)), space._unpacked(space._packed(1, 0.0))]
    assert ages[0] == (1, NEVER_S)
    assert ages[1][1] == pytest.approx(0.0, abs=5.0)


def test_a_core_without_space_to_give_or_without_a_store_has_nothing(
    scene: Scene, pool: ThreadPoolExecutor
) -> None:
    one, other, bridge = scene.join(0, "one"), scene.join(1, "other"), scene.join(2, "bridge 80")
    share(scene, other, Answer(0, NEVER_S))
    scene.until(lambda: len(one.names()) == 2 and bridge.names())
    ask = AskByMessages(scene.clock, one)
    for number in ("1", "2", "3"):  # 2 has no store, and 3 no process
        assert result(scene, pool.submit(ask.question, number, 1, NEVER_S)) == Answer(0, NEVER_S)


def test_a_process_that_leaves_waits_for_no_answer(scene: Scene, pool: ThreadPoolExecutor) -> None:
    one = scene.join(0, "one")
    ask = AskByMessages(scene.clock, one)
    one.close()
    asked = pool.submit(ask.question, "1", 1, NEVER_S)  # nobody advances the clock
    assert asked.result(timeout=space.ASK_S / 2) == Answer(0, NEVER_S)


def test_the_neighbours_of_a_store_ask_by_messages_once_these_are_there(
    scene: Scene, pool: ThreadPoolExecutor
) -> None:
    store = share(scene, scene.join(0, "one"), Answer(0, NEVER_S))
    assert isinstance(store.way, AskByMessages)
