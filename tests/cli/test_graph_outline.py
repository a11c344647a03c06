"""What a job's graph is drawn as: which tasks are one box, and what leads where."""

from __future__ import annotations

import pytest

from ciel.cli.graph_outline import (
    DRAWN_APART_MAX,
    Box,
    Kind,
    Outline,
    Task,
    Thing,
    TooLargeError,
    size_text,
    states_text,
)

MANY = DRAWN_APART_MAX + 1


def thing(
    object_id: str, maker: str | None, size_bytes: int | None = 5, wanted: bool = False
) -> Thing:
    return Thing(
        object_id, "there" if size_bytes is not None else "expected", size_bytes, maker, wanted
    )


def given(object_id: str) -> Thing:
    return thing(object_id, None)


def task(
    name: str,
    *reads: str | Thing,
    parent: str | None = None,
    state: str = "done",
    executor: str = "proc",
    makes: int = 1,
    takes_over: str = "",
    wanted: bool = False,
    **others: object,
) -> Task:
    """Make a task whose id is its name; `reads` are given things, or tasks whose first outputs are
    read.
    """
    outputs = [thing(f"{name}:{n}", name, wanted=wanted) for n in range(makes)]
    if takes_over:
        outputs = [thing(takes_over, name, wanted=wanted)]
    inputs = [read if isinstance(read, Thing) else thing(f"{read}:0", read) for read in reads]
    fields = Task(
        1, name, name, state, executor, parent, 1, None, None, tuple(inputs), tuple(outputs),
        (takes_over,) if takes_over else (), (), (),
    )  # fmt: skip
    return fields._replace(**others)  # type: ignore[arg-type]  # fields of a Task


def boxes(*tasks: Task, boxes_max: int = 100, lines_max: int = 1000) -> list[Box]:
    outline = Outline()
    for each in tasks:
        outline.add(each)
    return outline.boxes(boxes_max, lines_max)


def titles(found: list[Box]) -> list[str]:
    return [box.title for box in found]


def leads(found: list[Box]) -> set[tuple[str, str, str]]:
    return {
        (found[tail].title, port.kind.value, found[head].title)
        for tail in range(len(found))
        for port in found[tail].ports
        for head in port.heads
    }


# --- many as one ----------------------------------------------------------------------------------


def test_tasks_that_are_alike_are_one_box_if_they_are_many() -> None:
    array = [task(str(n), state="failed" if n in (3, 5) else "done") for n in range(1000)]
    many, total = boxes(*array, task("total", *(str(n) for n in range(1000)), executor="sync"))
    assert (many.title, many.subtitle) == ("proc \u00d7 1,000", "998 done, 2 failed · proc")
    assert many.states == {"done": 998, "failed": 2}
    assert [port.label for port in many.ports] == ["1,000 objects, 4.9 KiB"]
    assert "failed: 3, 5\n" in many.about
    assert leads([many, total]) == {(many.title, "object", "total")}


def test_a_few_tasks_are_drawn_apart() -> None:
    few = [task(f"n{n}") for n in range(DRAWN_APART_MAX)]
    assert titles(boxes(*few)) == [each.name for each in few]


def test_many_are_called_by_what_their_names_begin_with() -> None:
    assert boxes(*(task(f"part-{n}") for n in range(MANY)))[0].title == f"part \u00d7 {MANY}"
    assert boxes(*(task(f"{n}") for n in range(10, 19)))[0].title == f"proc \u00d7 {MANY}"


@pytest.mark.parametrize(
    "other",
    [
        [task("b", executor="sync")],
        [task("p"), task("b", parent="p")],
        [task("a", "b"), task("b")],
        [task("child", parent="b"), task("b")],
        [task("first"), task("b", "first")],
        [task("p", makes=1), task("b", parent="p", takes_over="p:0")],
    ],
    ids=["executor", "parent", "reader", "child", "input", "delegation"],
)
def test_what_the_graph_tells_apart_is_drawn_apart(other: list[Task]) -> None:
    alike = [task(f"n{n}") for n in range(MANY)]
    found = boxes(*alike, *other)
    assert "b" in titles(found)
    assert f"proc \u00d7 {MANY}" in titles(found) or len(found) > len(other)


def test_children_of_two_parents_are_two_boxes() -> None:
    tasks = [task("p"), task("q", "p")]
    tasks += [task(f"{parent}{n}", parent=parent) for n in range(MANY) for parent in "pq"]
    found = boxes(*tasks)
    assert len(found) == 4
    assert [port.label for port in found[0].ports if port.kind is Kind.SPAWN] == [f"spawns {MANY}"]


def test_whole_stages_are_folded() -> None:
    maps = [task(f"map{n}", makes=2) for n in range(20)]
    reduces = [task(f"reduce{n}", *(each.id for each in maps)) for n in range(20)]
    assert titles(boxes(*maps, *reduces)) == ["map \u00d7 20", "reduce \u00d7 20"]


def test_objects_that_no_task_made_are_one_box_if_the_same_boxes_read_them() -> None:
    array = [task(f"n{n}", given(f"line{n}"), given("script")) for n in range(MANY)]
    others = (
        task("other", given("script"), executor="a"),
        task("last", given("table"), executor="b"),
    )
    found = boxes(*array, *others)
    assert titles(found[3:]) == [f"{MANY} objects", "object script", "object table"]
    assert all(box.states == {} for box in found[3:])
    assert ("object script", "object", "other") in leads(found)


# --- what leads where -----------------------------------------------------------------------------


def test_lines_lead_from_makers_to_readers_and_from_parents_to_children() -> None:
    found = boxes(
        task("root"),
        task("child", parent="root"),
        task("join", "child", parent="root", takes_over="root:0"),
        task("reader", thing("root:0", "join")),
    )
    assert leads(found) == {
        ("root", "spawn", "child"),
        ("child", "object", "join"),
        ("root", "delegate", "join"),
        ("join", "object", "reader"),
    }


def test_an_object_beyond_its_makers_outputs_is_drawn_at_whom_the_master_names() -> None:
    found = boxes(task("maker"), task("reader", thing("maker:pub:7", "maker", 9)))
    (port,) = found[0].ports
    assert (port.label, port.heads) == ("9 B", (1,))


def test_tasks_may_come_in_any_order() -> None:
    assert leads(boxes(task("reader", "maker"), task("maker"))) == {("maker", "object", "reader")}


def test_results_leave_a_box_and_what_nobody_reads_or_wants_does_not() -> None:
    found = boxes(task("a", wanted=True), task("b"))
    assert [[port.is_result for port in box.ports] for box in found] == [[True], []]


def test_many_outputs_leave_together() -> None:
    maker = task("maker", makes=4)
    readers = [task(f"r{n}", thing(f"maker:{n}", "maker")) for n in range(4)]
    (port,) = boxes(maker, *readers)[0].ports
    assert (port.label, port.heads) == ("4 objects, 20 B", (1, 2, 3, 4))
    three = boxes(maker, *readers[1:])[0].ports
    assert [(port.label, port.heads) for port in three] == [("5 B", (n,)) for n in (1, 2, 3)]


# --- what is told ---------------------------------------------------------------------------------


def test_a_box_tells_its_story() -> None:
    (box,) = boxes(
        task(
            "t", state="failed", attempt=3, worker="w1", why=("RUNTIME_EXCEPTION: no luck",),
            story=("2.0 s ago: attempt 1 failed", "1.0 s ago: attempt 2 failed"), wanted=True,
        )
    )  # fmt: skip
    assert box.subtitle == "failed · proc · attempt 3"
    assert box.about.split("\n") == [
        "task 1: t (t)",
        "failed, attempt 3 on worker w1, executor proc",
        "t:0: there, 5 bytes, a result of the job",
        "RUNTIME_EXCEPTION: no luck",
        "what happened:",
        "2.0 s ago: attempt 1 failed",
        "1.0 s ago: attempt 2 failed",
    ]


def test_a_task_without_a_name_is_called_by_executor_and_id() -> None:
    assert titles(boxes(task("0123456789abcdef")._replace(name=""))) == ["proc 01234567"]


def test_more_than_can_be_drawn_is_refused_with_its_size() -> None:
    chain = [task("n0"), *(task(f"n{n}", f"n{n - 1}") for n in range(1, 10))]
    assert len(boxes(*chain, boxes_max=10, lines_max=9)) == 10
    with pytest.raises(TooLargeError, match=r"^10 boxes$"):
        boxes(*chain, boxes_max=9)
    with pytest.raises(TooLargeError, match=r"^10 boxes with 9 lines$"):
        boxes(*chain, lines_max=8)


@pytest.mark.parametrize(
    "size_bytes, text",
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (150 << 20, "150 MiB"), (1 << 63, "8.0 EiB")],
)
def test_sizes_are_short(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


def test_states_are_counted_in_the_order_in_which_tasks_have_them() -> None:
    assert (
        states_text({"done": 1200, "waiting": 1, "failed": 2}) == "1 waiting, 1,200 done, 2 failed"
    )
