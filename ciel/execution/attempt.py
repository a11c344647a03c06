"""What a program that talks may ask for its task: inputs, outputs, children. The worker answers.

An executor's conversation turns the program's calls into these; it opens nothing itself. What may
take time ends in a callback, which comes exactly once, unless the attempt ends before; an input
that cannot be had ends the attempt, and the callback never comes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple

from ciel.core.errors import InvalidTaskError
from ciel.core.ids import ObjectId
from ciel.core.refs import REFERENCE_TYPES, Fixed, Reference
from ciel.core.tasks import USUAL_NEEDS, Needs, check_task, undelayed
from ciel.execution.executor import (
    BadArgumentsError,
    Child,
    ChildForm,
    Executor,
    Task,
    mentions_of,
)
from ciel.execution.outputs import BadCallError, Outputs
from ciel.wire.descriptors import make_task


class Growth(NamedTuple):
    """How far an input that is being made has come. `is_broken`: no more will come."""

    size_bytes: int
    is_whole: bool
    is_broken: bool = False


class OpenInput(NamedTuple):
    """An input under a name; `blocks`: its reader waits at the end for what is still to come, and
    the end that it sees is the real one.
    """

    path: str
    growth: Growth
    blocks: bool


class Attempt(ABC):
    """One attempt at a task, as its conversation sees it."""

    def __init__(self, task: Task, outputs: Outputs, netloc: str) -> None:
        self.task = task
        self.outputs = outputs
        self._netloc = netloc
        self.attached: ObjectId | None = None  # what its program is, if it was there before
        self.fixed: ObjectId | None = None  # what the program waits for itself under, if it does
        self.children_count = 0
        self.has_delegated = False  # its promised outputs, to a child
        self.handed_over: set[int] = set()  # promised outputs that children have taken over
        self.at_hand: frozenset[str] = frozenset()  # objects that its program has from other tasks
        self._twins: dict[str, int] = {}  # children of one content, by the first one's id

    names_by_content = False
    """Whether its children are named by what they do, and not by how many came before them: its
    program creates them in an order that depends on time, and hands over what outputs are left.
    """

    maps_files = False
    """Whether its program has files for nothing but to map, to read and to write them itself: see
    `ObjectReader.mapped_path` and `ObjectWriter.mapped_path`."""

    @property
    def where(self) -> str:
        """Say which attempt this is, for people."""
        spec = self.task.spec
        name = f"{spec.name} ({spec.id})" if spec.name else f"{spec.id}"
        return f"in task {name}, attempt {max(self.task.attempt, 1)}"

    # --- inputs -----------------------------------------------------------------------------------

    @abstractmethod
    def resolve(self, ref: Reference) -> Reference:
        """Return what is known of an object here: by what the task was given, what it published
        itself, what the store holds. A future, if it is not there.
        """

    @abstractmethod
    def open_whole(self, ref: Reference, then: Callable[[str], None]) -> None:
        """Give a resolved input a path, once all of it is here."""

    @abstractmethod
    def open_growing(
        self, ref: Reference, blocking: bool, then: Callable[[OpenInput], None]
    ) -> None:
        """Give a resolved input a path, even if it is still being made."""

    @abstractmethod
    def lose_input(self, object_id: str, details: str) -> None:
        """Note that an input is not where this worker said: the attempt ends without an outcome."""

    @abstractmethod
    def prefer(self, ref: Reference) -> None:
        """Have a resolved input be read here rather than elsewhere from now on; only a hint."""

    @abstractmethod
    def read(self, ref: Reference, then: Callable[[bytes], None]) -> None:
        """Read a small input."""

    @abstractmethod
    def await_growth(
        self, object_id: str, at_least_bytes: float, then: Callable[[Growth], None]
    ) -> None:
        """Wait until an input that was opened growing has so many bytes, or has ended. Raises
        BadCallError for one that was not.
        """

    @abstractmethod
    def close_growing(self, object_id: str) -> None:
        """Give an input up that was opened growing."""

    # --- outputs and the rest ---------------------------------------------------------------------

    @abstractmethod
    def open_output(self, index: int, streams: bool, size_bytes: int | None = None) -> str:
        """Begin an output; return the path to write it under. `streams`: others may read it
        meanwhile. `size_bytes`: there is to be room for so much, if that is known.
        """

    @abstractmethod
    def close_output(self, index: int, size_bytes: int | None) -> Reference:
        """Publish an output that is written."""

    @abstractmethod
    def roll_back_output(self, index: int) -> None:
        """Forget what was written to an output."""

    @abstractmethod
    def note_growth(self, index: int, size_bytes: int) -> None:
        """Take a hint of how much of an output is there."""

    @abstractmethod
    def send_descriptor(self, socket_path: str, path: str, *, writes: bool) -> None:
        """Open a path that was given, and hand the descriptor to a listening UNIX socket."""

    @abstractmethod
    def log(self, text: str, *, is_stderr: bool = False) -> None:
        """Add a line to the log of the job."""

    @abstractmethod
    def room(self) -> int | None:
        """Say how many slots wait for work here; None: others, elsewhere, may have some."""

    @abstractmethod
    def add_child(self, child: Child, *, wanted: bool | None = None) -> None:
        """Have a task created. `wanted`: whether this one needs its outputs before its own end;
        None: nobody knows, so it may begin and be called off.
        """

    @abstractmethod
    def begin_child(self, child: Child, arguments: dict[str, Any]) -> Attempt:
        """Have a task created that this one's program runs within itself from now on; return the
        attempt at it.
        """

    @abstractmethod
    def end_within(self, fault: tuple[str, str] | None) -> None:
        """End such an attempt, maybe with a fault: what it left open is closed. Raises
        StorageError.
        """

    # --- children ---------------------------------------------------------------------------------

    def spawn(
        self,
        executor: str,
        keywords: dict[str, Any],
        needs: Needs,
        *,
        delegates: bool = False,
        wanted: bool | None = None,
        name: str = "",
        takes: Collection[Any] | None = None,
    ) -> tuple[tuple[ObjectId, ...], ChildForm]:
        """Create a task; return the ids of its outputs, and how its executor took the keywords.

        `delegates`: it takes over the outputs that this task promised, but for those that others
        have taken over. `takes`: some of them, by number. `wanted`: see `add_child`. Raises
        BadCallError.
        """
        if takes is not None:
            self._require_left(takes)
        form = self._form(executor, keywords, delegates)
        if takes is not None and len(takes) != form.n_outputs:
            raise BadCallError(f"a child of {form.n_outputs} outputs cannot take over {len(takes)}")
        if not form.n_outputs and not delegates:
            return (), form  # a task whose outputs nobody can want never runs
        child, _ = self._create(executor, form, needs, delegates, name, takes)
        self.add_child(child, wanted=wanted)
        return child.spec.outputs, form

    def spawn_within(
        self, executor: str, keywords: dict[str, Any], name: str
    ) -> tuple[tuple[ObjectId, ...], Attempt]:
        """Create a task that the program runs within itself; return the ids of its outputs, and
        the attempt at it. Raises BadCallError.
        """
        if not self.task.may_run_children or executor != self.task.spec.executor:
            raise BadCallError("no child may run within this task")
        form = self._form(executor, keywords, False)
        child, arguments = self._create(executor, form, USUAL_NEEDS, False, name, None)
        return child.spec.outputs, self.begin_child(child, arguments)

    def _form(self, executor: str, keywords: dict[str, Any], delegates: bool) -> ChildForm:
        known = self._executor(executor)
        if delegates:
            self._require_promises()
        try:
            return known.child_form(keywords)
        except BadArgumentsError as error:
            raise BadCallError(str(error)) from None

    def go_on_later(
        self,
        executor: str,
        dependencies: list[Reference],
        any_of: list[Reference],
        *,
        sees_errors: bool = False,
    ) -> None:
        """Hand the promised outputs to a task that goes on in this very process, once its
        dependencies are there, and one of `any_of` (a fixed process, ciel-interfaces 1.7).
        `sees_errors`: those that failed count as there. Raises BadCallError.
        """
        if not self._executor(executor).talks:
            raise BadCallError(f"{executor!r} has no processes that could go on")
        self._require_promises()
        if self.attached is None:
            # Another execution leaves another process: the name must not be taken for this one's.
            index = self.outputs.allocate(f"fixed.{self.life}.{self.task.attempt}")
            fixed = Fixed(self.outputs.ids[index], self._netloc)
            self.outputs.add(index, fixed)
        else:
            fixed = Fixed(self.attached, self._netloc)
        self.fixed = fixed.id
        arguments: dict[str, Any] = {"fixed": fixed, "extra_dependencies": dependencies}
        if any_of:
            arguments["any_dependencies"] = any_of
        form = ChildForm(arguments, 1, False, False, sees_errors, tuple(any_of))
        spec = self.task.spec
        child, _ = self._create(executor, form, undelayed(spec.needs), True, spec.name, None)
        self.add_child(child)

    @property
    def life(self) -> str:
        """Name the worker process that runs this attempt, in letters and digits; no two that ever
        ran have one name.
        """
        return ""

    def _executor(self, name: str) -> Executor:
        known = self.task.executors.get(name)
        if known is None:
            names = ", ".join(sorted(self.task.executors))
            raise BadCallError(f"there is no executor {name!r:.60} (there are: {names})")
        return known

    def _require_promises(self) -> None:
        if self.has_delegated:
            raise BadCallError("another task was given the outputs of this one already")

    def _require_left(self, takes: Collection[Any]) -> None:
        self._require_promises()
        left = [index for index in takes if self._is_promised(index)]
        if not left or len(left) != len(set(takes)):
            raise BadCallError(f"a child cannot take over outputs {list(takes)!r:.60}")

    def _is_promised(self, index: Any) -> bool:
        """Whether this task is still to make one of its promised outputs."""
        if type(index) is not int or not 0 <= index < self.outputs.expected_count:
            return False
        outputs = self.outputs
        is_begun = index in outputs.published or index in outputs.open_ones
        return not is_begun and index not in self.handed_over

    def _promised(self) -> list[int]:
        return [index for index in range(self.outputs.expected_count) if self._is_promised(index)]

    def _create(
        self,
        executor: str,
        form: ChildForm,
        needs: Needs,
        delegates: bool,
        name: str,
        takes: Collection[Any] | None,
    ) -> tuple[Child, dict[str, Any]]:
        spec = self.task.spec
        outputs: tuple[ObjectId, ...] | None = None
        if takes is not None:
            outputs = tuple([spec.outputs[index] for index in takes])
        elif delegates:
            outputs = spec.outputs
            if self.handed_over or self.names_by_content:
                outputs = tuple([spec.outputs[index] for index in self._promised()])
        arguments = form.arguments
        if self.outputs.published:
            arguments = self._up_to_date(arguments)
        package = self.task.arguments.get("package_ref")
        if package is not None and self.task.executors[executor].wants_package:
            arguments = {**arguments, "package_ref": package}
        make = partial(
            make_task,
            job=spec.job, parent=spec.id, executor=executor,
            ordinal=None if self.names_by_content else self.children_count,
            arguments=arguments, n_outputs=form.n_outputs,
            memoise=form.memoise and outputs is None, outputs=outputs, needs=needs,
            sees_errors=form.sees_errors, any_of=form.any_of,
            mentions=mentions_of(self.task.executors, executor), name=name,
        )  # fmt: skip
        try:
            child = Child(*make())
            if self.names_by_content:
                twin = self._twins.get(child.spec.id, 0)
                self._twins[child.spec.id] = twin + 1
                child = Child(*make(twin=twin)) if twin else child
            check_task(child.spec)
        except (TypeError, ValueError) as error:
            raise BadCallError(f"the arguments of a spawn cannot be encoded: {error}") from None
        except InvalidTaskError as error:
            raise BadCallError(f"no such task can be: {error.reason}") from None
        self.children_count += 1
        self.has_delegated |= delegates
        self.handed_over.update(takes or ())
        return child, arguments

    def _up_to_date(self, value: Any) -> Any:
        """Replace references to outputs of this attempt by what was published: a program may hold
        older ones, and only the published one says where the content is.
        """
        if isinstance(value, REFERENCE_TYPES):
            return self.outputs.reference(value.id) or value
        if isinstance(value, dict):
            return {key: self._up_to_date(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._up_to_date(item) for item in value]
        return value
