"""A job's graph as it is drawn: boxes for tasks and for what was given to them, and lines between.

Tasks that nothing in the graph tells apart become one box: those of one parent and one executor
that read from the same tasks, are read by the same, and created none. So do objects that no task
of the job made, if the same boxes read them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from enum import Enum
from sys import intern
from typing import Any, Final, NamedTuple

from ciel.core.tasks import TaskState

TIMES: Final = "\N{MULTIPLICATION SIGN}"
DRAWN_APART_MAX: Final = 8
"""More tasks that are alike are drawn as one."""
_PORTS_MAX = 3  # of single objects; more are drawn as one
_TEXTS_MAX = 2000  # tasks whose reasons and stories are kept
_NAMED_MAX = 10
_STEM_MIN_LENGTH = 3
_NOT_LAST = "0123456789 .,:;#/(_-"  # in what names have in common


class Thing(NamedTuple):
    """An object: `state` is `there`, `growing`, `failed`, `expected`, or `gone`, since nobody needs
    it any more; `maker` the task that makes it; `wanted`: the job wants it.
    """

    id: str
    state: str
    size_bytes: int | None
    maker: str | None
    wanted: bool


class Task(NamedTuple):
    """A task with what it reads and makes. It `takes_over` outputs that its parent was to make."""

    number: int
    name: str
    id: str
    state: str
    executor: str
    parent: str | None
    attempt: int
    worker: str | None
    at: str | None
    inputs: tuple[Thing, ...]
    outputs: tuple[Thing, ...]
    takes_over: tuple[str, ...]
    why: tuple[str, ...]
    story: tuple[str, ...]

    @property
    def label(self) -> str:
        return self.name or f"{self.executor} {self.id.removeprefix('root:')[:8]}"


class Kind(Enum):
    """What a line leads along."""

    OBJECT = "object"
    SPAWN = "spawn"
    DELEGATE = "delegate"


class Port(NamedTuple):
    """Where lines leave a box. `is_result`: what leaves there is also a result of the job."""

    kind: Kind
    label: str
    is_result: bool
    heads: tuple[int, ...]  # the boxes that its lines lead to
    about: str


class Box(NamedTuple):
    """`states`: how many tasks are in each state; none where it stands for what was given."""

    title: str
    subtitle: str
    states: dict[str, int]
    ports: tuple[Port, ...]
    about: str


class TooLargeError(Exception):
    """There are more boxes, or more lines, than can be drawn so that anybody sees anything."""

    def __init__(self, boxes: int, lines: int) -> None:
        self.boxes = boxes
        self.lines = lines
        super().__init__(f"{boxes:,} boxes" + (f" with {lines:,} lines" if lines else ""))


class Outline:
    """Takes the tasks of a job, in the order of their creation, and makes boxes of them."""

    def __init__(self) -> None:
        self._tasks: list[Task] = []
        self._reads: list[tuple[str, ...]] = []
        self._things: dict[str, Thing] = {}
        self._index: dict[str, int] = {}
        self._texts_left = _TEXTS_MAX

    def add(self, task: Task) -> None:
        if task.why or task.story:
            self._texts_left -= 1
            if self._texts_left < 0:
                task = task._replace(why=(), story=())
        for thing in task.inputs:
            self._things.setdefault(thing.id, thing)
        for thing in task.outputs:
            if thing.maker == task.id or thing.id not in self._things:
                self._things[thing.id] = thing
        self._index[task.id] = len(self._tasks)
        self._reads.append(tuple([self._things[thing.id].id for thing in task.inputs]))
        self._tasks.append(task._replace(inputs=(), outputs=()))

    def boxes(self, boxes_max: int, lines_max: int) -> list[Box]:
        """Return the boxes; raises TooLargeError for more than these."""
        return _Boxes(self._tasks, self._reads, self._things, self._index).draw(
            boxes_max, lines_max
        )


class _Boxes:
    """The boxes of one outline. Tasks and boxes are numbered; tasks' boxes come first."""

    def __init__(
        self,
        tasks: list[Task],
        reads: list[tuple[str, ...]],
        things: dict[str, Thing],
        index: dict[str, int],
    ) -> None:
        self._tasks = tasks
        self._things = things
        self._parents = [None if t.parent is None else index.get(t.parent) for t in tasks]
        self._made: defaultdict[int | None, list[Thing]] = defaultdict(list)
        for thing in things.values():
            self._made[None if thing.maker is None else index.get(thing.maker)].append(thing)
        self._readers: defaultdict[str, list[int]] = defaultdict(list)
        for task, ids in enumerate(reads):
            for thing_id in dict.fromkeys(ids):
                self._readers[thing_id].append(task)
        self._groups = self._grouped()
        self._box_of = {t: box for box, group in enumerate(self._groups) for t in group}

    def _grouped(self) -> list[list[int]]:
        """Put tasks together that nothing tells apart, if they are many."""
        sources: defaultdict[int, set[int | None]] = defaultdict(set)
        users: defaultdict[int, set[int]] = defaultdict(set)
        for maker, things in self._made.items():
            for thing in things:
                for reader in self._readers.get(thing.id, ()):
                    sources[reader].add(maker)
                    if maker is not None:
                        users[maker].add(reader)
        parents = {parent for parent in self._parents if parent is not None}
        alike: defaultdict[Any, list[int]] = defaultdict(list)
        for number, task in enumerate(self._tasks):
            parent = self._parents[number]
            apart = number if number in parents else None
            edges = frozenset(sources.get(number, ())), frozenset(users.get(number, ()))
            alike[apart, parent, task.executor, bool(task.takes_over), edges].append(number)
        groups = []
        for group in alike.values():
            groups += [group] if len(group) > DRAWN_APART_MAX else [[number] for number in group]
        return sorted(groups)

    def _given(self) -> list[tuple[tuple[int, ...], list[Thing]]]:
        """What no task here made, by the boxes that read it."""
        given: defaultdict[tuple[int, ...], list[Thing]] = defaultdict(list)
        for thing in self._made[None]:
            if heads := self._heads([thing]):
                given[heads].append(thing)
        return list(given.items())

    def _heads(self, things: Iterable[Thing]) -> tuple[int, ...]:
        """Return the boxes that read any of these objects."""
        readers = [self._readers.get(thing.id, ()) for thing in things]
        return tuple(sorted({self._box_of[task] for tasks in readers for task in tasks}))

    def draw(self, boxes_max: int, lines_max: int) -> list[Box]:
        given = self._given()
        if len(self._groups) + len(given) > boxes_max:
            raise TooLargeError(len(self._groups) + len(given), 0)
        children: defaultdict[int, list[int]] = defaultdict(list)
        for task, parent in enumerate(self._parents):
            if parent is not None:
                children[self._box_of[parent]].append(task)
        boxes = []
        for number, group in enumerate(self._groups):
            made = [
                thing
                for task in group
                for thing in self._made.get(task, ())
                if thing.wanted or thing.id in self._readers
            ]
            ports = [*self._object_ports(number, made), *self._child_ports(children[number])]
            boxes.append(self._box(group, tuple(ports)))
        boxes += [_given_box(heads, things) for heads, things in given]
        lines = sum([len(port.heads) for box in boxes for port in box.ports])
        if lines > lines_max:
            raise TooLargeError(len(boxes), lines)
        return boxes

    def _object_ports(self, box: int, made: list[Thing]) -> list[Port]:
        parts = [[thing] for thing in made] if len(made) <= _PORTS_MAX else [made]
        ports = []
        for things in parts:
            heads = tuple([head for head in self._heads(things) if head != box])
            is_result = any(thing.wanted for thing in things)
            ports.append(
                Port(Kind.OBJECT, _things_label(things), is_result, heads, _things_text(things))
            )
        return ports

    def _child_ports(self, children: list[int]) -> list[Port]:
        ports = []
        for kind, verb in ((Kind.SPAWN, "spawns"), (Kind.DELEGATE, "delegates")):
            chosen = [
                task
                for task in children
                if bool(self._tasks[task].takes_over) is (kind is Kind.DELEGATE)
            ]
            if chosen:
                heads = tuple(sorted({self._box_of[task] for task in chosen}))
                about = f"{verb} to " if kind is Kind.DELEGATE else f"{verb} "
                about += _few([self._tasks[task].label for task in chosen])
                label = f"{verb} {len(chosen):,}" if len(chosen) > 1 else verb
                ports.append(Port(kind, label, False, heads, about))
        return ports

    def _box(self, group: list[int], ports: tuple[Port, ...]) -> Box:
        tasks = [self._tasks[number] for number in group]
        states = dict(Counter(task.state for task in tasks))
        first = tasks[0]
        if len(tasks) == 1:
            again = f" · attempt {first.attempt}" if first.attempt > 1 else ""
            subtitle = f"{first.state} · {first.executor}{again}"
            return Box(first.label, subtitle, states, ports, _task_text(first, ports))
        counted = states_text(states)
        title = f"{_stem(tasks) or first.executor} {TIMES} {len(tasks):,}"
        about = _group_text(tasks, counted, ports)
        return Box(title, f"{counted} · {first.executor}", states, ports, about)


def _stem(tasks: Sequence[Task]) -> str:
    """Return how all names begin, if that says anything."""
    first, last = min(task.name for task in tasks), max(task.name for task in tasks)
    differ = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), None)
    stem = first[:differ].rstrip(_NOT_LAST)
    return stem if len(stem) >= _STEM_MIN_LENGTH else ""


def states_text(states: dict[str, int]) -> str:
    """Say how many tasks are in which state, in the order in which tasks go through them."""
    ordered = [str(state) for state in TaskState if str(state) in states]
    return ", ".join([f"{states[state]:,} {state}" for state in ordered])


def size_text(size_bytes: int) -> str:
    """Write a size for people, in powers of 1024."""
    size, units = float(size_bytes), ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    if size_bytes < 1024:
        return f"{size_bytes} B"
    while size >= 1024 and units:
        size, unit = size / 1024, units.pop(0)
    return f"{size:.1f} {unit}" if size < 100 else f"{size:.0f} {unit}"


def _things_label(things: Sequence[Thing]) -> str:
    sizes = [thing.size_bytes for thing in things if thing.size_bytes is not None]
    size = size_text(sum(sizes)) if sizes else ""
    if len(things) > 1:
        return ", ".join(filter(None, (f"{len(things):,} objects", size)))
    return "growing" if things[0].state == "growing" else size


def _things_text(things: Sequence[Thing]) -> str:
    """Tell of objects, of each in a line."""
    lines = []
    for thing in things[:_NAMED_MAX]:
        size = "" if thing.size_bytes is None else f", {thing.size_bytes} bytes"
        result = ", a result of the job" if thing.wanted else ""
        lines.append(f"{thing.id}: {thing.state}{size}{result}")
    if len(things) > _NAMED_MAX:
        lines.append(f"and {len(things) - _NAMED_MAX:,} more")
    return "\n".join(lines)


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_MAX:,} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more


def _task_text(task: Task, ports: Sequence[Port]) -> str:
    """Tell all that is known of a task."""
    lines = [f"task {task.number}: {task.label} ({task.id})"]
    attempt = f", attempt {task.attempt}" if task.attempt else ""
    place = f" on worker {task.worker}" if task.worker else ""
    lines.append(f"{task.state}{attempt}{place}, executor {task.executor}")
    if task.at:
        lines.append(f"its output lies at {task.at}")
    lines += [port.about for port in ports]
    if task.story:
        lines += [*task.why, "what happened:", *task.story]
    else:
        lines += task.why
    return "\n".join(lines)


def _group_text(tasks: Sequence[Task], counted: str, ports: Sequence[Port]) -> str:
    """Tell of many tasks, and of the first that failed in full."""
    lines = [f"{len(tasks):,} tasks: {_few([task.label for task in tasks])}", counted]
    lines += [port.about for port in ports]
    failed = [task for task in tasks if task.state == str(TaskState.FAILED)]
    if failed:
        lines += [f"failed: {_few([task.label for task in failed])}", _task_text(failed[0], ())]
    return "\n".join(lines)


def _given_box(heads: tuple[int, ...], things: list[Thing]) -> Box:
    """Draw objects that no task here made."""
    label = _things_label(things)
    one = len(things) == 1
    title = f"object {things[0].id[:8]}" if one else f"{len(things):,} objects"
    text = _things_text(things)
    port = Port(Kind.OBJECT, label if one else label.partition(", ")[2], False, heads, "")
    return Box(title, "given to the job", {}, (port,), text)


# --- from the master ------------------------------------------------------------------------------


def read_task(row: dict[str, Any], takes_over: Iterable[str]) -> Task:
    """Read a row of the master's answer; texts that many tasks share are shared."""
    return Task(
        row["number"], row["name"], intern(row["task"]), intern(row["state"]),
        intern(row["executor"]), row["parent"] and intern(row["parent"]), row["attempt"],
        row["worker"] and intern(row["worker"]), row["at"] and intern(row["at"]),
        tuple([_read_thing(fields) for fields in row["inputs"]]),
        tuple([_read_thing(fields) for fields in row["outputs"]]),
        tuple(takes_over), tuple(row["why"]), tuple(row["story"]),
    )  # fmt: skip


def _read_thing(fields: list[Any]) -> Thing:
    object_id, state, size_bytes, maker, wanted = fields
    return Thing(intern(object_id), intern(state), size_bytes, maker and intern(maker), wanted)
