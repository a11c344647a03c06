"""The operations that an interactive program may request for its task: inputs, outputs, children.

The worker implements them. An executor's conversation translates the program's calls into these
operations, and does no I/O itself. An operation that may take time takes a callback, which is
called exactly once, unless the attempt ends before. If an input is unavailable, the attempt ends,
and the callback is never called.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

from ciel.core.errors import InvalidTaskError
from ciel.core.ids import ObjectId
from ciel.core.refs import REFERENCE_TYPES, Concrete, Fixed, Reference, Sweetheart
from ciel.core.tasks import DEFAULT_NEEDS, Needs, check_task, undelayed
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
    """The progress of an input that is still being produced. `is_broken`: its producer failed."""

    size_bytes: int
    is_whole: bool
    is_broken: bool = False


class OpenInput(NamedTuple):
    """The path of an opened input.

    `blocks`: reading past the available data waits for more, so the end of file that the reader
    sees is the real one.
    """

    path: str
    growth: Growth
    blocks: bool


class Attempt(ABC):
    """One attempt at a task, as its conversation sees it."""

    def __init__(self, task: Task, outputs: Outputs, netloc: str) -> None:
        self.task = task
        self.outputs = outputs
        self.netloc = netloc
        self.attached: ObjectId | None = None  # the program's object, if it is an attached process
        self.fixed: ObjectId | None = None  # the object of the suspended process, if any
        self.children_count = 0
        self.has_delegated = False  # its promised outputs, to a child
        self.handed_over: set[int] = set()  # promised outputs delegated to children
        self.at_hand: frozenset[str] = (
            frozenset()
        )  # objects in its program's memory, from other tasks
        self._twins: dict[str, int] = {}  # number of children with equal content, by the first id

    names_by_content = False
    """Whether names of children derive from their content instead of their ordinal number.

    This is for programs that create children in an order that depends on timing. A child to which
    such a program delegates gets the outputs that are neither started nor delegated yet.
    """

    maps_files = False
    """Whether its program only maps, reads and writes files, and does not pass them on: see
    `ObjectReader.mapped_path` and `ObjectWriter.mapped_path`. It opens places, too."""

    @property
    def where(self) -> str:
        """A description of this attempt for log messages."""
        spec = self.task.spec
        name = f"{spec.name} ({spec.id})" if spec.name else f"{spec.id}"
        return f"in task {name}, attempt {max(self.task.attempt, 1)}"

    # --- inputs -----------------------------------------------------------------------------------

    def is_here(self, ref: Concrete | Sweetheart) -> bool:
        """Return whether a reference names this worker as a place of the object."""
        return self.netloc in ref.locations

    @abstractmethod
    def resolve(self, ref: Reference) -> Reference:
        """Return the best reference to an object that this worker knows.

        It comes from the task's inputs, its published outputs, or the store. It is a future if none
        of them has the object.
        """

    @abstractmethod
    def open_whole(
        self, ref: Reference, then: Callable[[str], None], *, in_file: bool = False
    ) -> None:
        """Pass the path of a resolved input to `then`, once all of it is local.

        `in_file`: of a file, although the program maps files.
        """

    @abstractmethod
    def open_parts(
        self, ref: Reference, parts: Sequence[tuple[int, int]], then: Callable[[str], None]
    ) -> None:
        """Pass the path of a file that has these parts of a resolved input: offsets and sizes.

        The file has the size of the input. Its other parts may be missing.
        """

    @abstractmethod
    def open_growing(
        self, ref: Reference, blocking: bool, then: Callable[[OpenInput], None]
    ) -> None:
        """Open a resolved input, even if it is still being produced."""

    @abstractmethod
    def lose_input(self, object_id: str, details: str) -> None:
        """Record that an input is missing at a path that the program got from this worker.

        The attempt ends without an outcome.
        """

    @abstractmethod
    def prefer(self, ref: Reference) -> None:
        """Hint that later readers of a resolved input should run on this worker."""

    @abstractmethod
    def read(self, ref: Reference, then: Callable[[bytes], None]) -> None:
        """Read a small input."""

    @abstractmethod
    def join_states(self, name: str, size: int, number: int) -> str:
        """Join a group of `size` members of this job as the member `number`.

        Return the path of its `StateBoard`. Raises BadCallError.
        """

    @abstractmethod
    def has_set_state(self, name: str, number: int) -> None:
        """The program has changed the state of this member on the board."""

    @abstractmethod
    def await_growth(
        self, object_id: str, at_least_bytes: float, then: Callable[[Growth], None]
    ) -> None:
        """Wait until an input that `open_growing` opened has this size, or is complete.

        Raises BadCallError for an input that it did not open.
        """

    @abstractmethod
    def close_growing(self, object_id: str) -> None:
        """Close an input that `open_growing` opened."""

    # --- outputs and the rest ---------------------------------------------------------------------

    @abstractmethod
    def open_output(
        self, index: int, streams: bool, size_bytes: int | None = None, *, in_file: bool = False
    ) -> str:
        """Start an output; return the path to write.

        `streams`: other tasks may read the output while it is written. `size_bytes`: the space to
        reserve, if the size is known. `in_file`: to a file, although the program maps files.
        """

    @abstractmethod
    def lend_output(self, index: int, netloc: str) -> tuple[ObjectId, str]:
        """Let the program write an output into the store of another worker of this host.

        Return the ids of the object and of the cluster.
        """

    @abstractmethod
    def close_output(self, index: int, size_bytes: int | None) -> Reference:
        """Publish an output that the program has written."""

    @abstractmethod
    def roll_back_output(self, index: int) -> None:
        """Discard the data written to an output."""

    @abstractmethod
    def note_growth(self, index: int, size_bytes: int) -> None:
        """Handle the program's hint of how many bytes it has written to an output."""

    @abstractmethod
    def send_descriptor(self, socket_path: str, path: str, *, writes: bool) -> None:
        """Open a path of this attempt, and send the descriptor to a listening UNIX socket."""

    @abstractmethod
    def log(self, text: str, *, is_stderr: bool = False) -> None:
        """Add a line to the log of the job."""

    @abstractmethod
    def room(self) -> int | None:
        """Return the number of idle slots of this worker; None: other workers may have some."""

    @abstractmethod
    def add_child(self, child: Child, *, wanted: bool | None = None) -> None:
        """Create a child task.

        `wanted`: whether this task needs the child's outputs before it ends. None: unknown, so the
        child may be started and cancelled later.
        """

    @abstractmethod
    def begin_child(self, child: Child, arguments: dict[str, Any]) -> Attempt:
        """Create a child task that this task's program runs inline; return the child's attempt."""

    @abstractmethod
    def end_within(self, fault: tuple[str, str] | None) -> None:
        """End an inline attempt, with a fault if it failed, and close its open files.

        Raises StorageError.
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
        """Create a child task; return the ids of its outputs, and its form.

        `delegates`: the child takes over the promised outputs of this task, except those that other
        children have taken over. `takes`: it takes over only these, by number. `wanted`: see
        `add_child`. Raises BadCallError.
        """
        if takes is not None:
            self._require_available(takes)
        form = self._form(executor, keywords, delegates)
        if takes is not None and len(takes) != form.n_outputs:
            raise BadCallError(
                f"a child with {form.n_outputs} outputs cannot take over {len(takes)} outputs"
            )
        if not form.n_outputs and not delegates:
            return (), form  # a task without outputs would never run
        child, _ = self._create(executor, form, needs, delegates, name, takes)
        self.add_child(child, wanted=wanted)
        return child.spec.outputs, form

    def spawn_within(
        self, executor: str, keywords: dict[str, Any], name: str
    ) -> tuple[tuple[ObjectId, ...], Attempt]:
        """Create a child that the program runs inline; return its output ids and its attempt.

        Raises BadCallError.
        """
        if not self.task.may_run_children or executor != self.task.spec.executor:
            raise BadCallError("this task cannot run a child inline; spawn it instead")
        form = self._form(executor, keywords, False)
        child, arguments = self._create(executor, form, DEFAULT_NEEDS, False, name, None)
        return child.spec.outputs, self.begin_child(child, arguments)

    def _form(self, executor: str, keywords: dict[str, Any], delegates: bool) -> ChildForm:
        known = self._executor(executor)
        if delegates:
            self._require_undelegated()
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
        """Delegate the promised outputs to a task that continues later in this process.

        It continues once all `dependencies` and one of `any_of` are available; until then the
        process waits on this worker (a fixed process, as in the original CIEL). `sees_errors`:
        failed objects count as available. Raises BadCallError.
        """
        if not self._executor(executor).talks:
            raise BadCallError(
                f"executor {executor!r} has no interactive programs that could continue the task"
            )
        self._require_undelegated()
        if self.attached is None:
            # A re-execution leaves another process, which must not have the same name.
            index = self.outputs.allocate(f"fixed.{self.life}.{self.task.attempt}")
            fixed = Fixed(self.outputs.ids[index], self.netloc)
            self.outputs.add(index, fixed)
        else:
            fixed = Fixed(self.attached, self.netloc)
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
        """A unique identifier of the worker process of this attempt, in letters and digits."""
        return ""

    def _executor(self, name: str) -> Executor:
        known = self.task.executors.get(name)
        if known is None:
            names = ", ".join(sorted(self.task.executors))
            raise BadCallError(f"there is no executor {name!r:.60} (there are: {names})")
        return known

    def _require_undelegated(self) -> None:
        if self.has_delegated:
            raise BadCallError("this task has already delegated its outputs")

    def _require_available(self, takes: Collection[Any]) -> None:
        self._require_undelegated()
        left = [index for index in takes if self._is_available(index)]
        if not left or len(left) != len(set(takes)):
            raise BadCallError(
                f"a child cannot take over outputs {list(takes)!r:.60}: each must be a declared "
                "output that is neither started nor delegated"
            )

    def _is_available(self, index: Any) -> bool:
        """Whether this is a promised output that is neither started nor delegated."""
        if type(index) is not int or not 0 <= index < self.outputs.expected_count:
            return False
        return not self.outputs.is_begun(index) and index not in self.handed_over

    def _available_outputs(self) -> list[int]:
        return [index for index in range(self.outputs.expected_count) if self._is_available(index)]

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
                outputs = tuple([spec.outputs[index] for index in self._available_outputs()])
        arguments = form.arguments
        if self.outputs.published:
            arguments = self._with_published(arguments)
        package = self.task.arguments.get("package_ref")
        if package is not None and self.task.executors[executor].wants_package:
            arguments = {**arguments, "package_ref": package}
        make = partial(
            make_task,
            job=spec.job, parent=spec.id, executor=executor,
            ordinal=None if self.names_by_content else self.children_count,
            arguments=arguments, n_outputs=form.n_outputs,
            memoise=form.memoise and outputs is None, outputs=outputs, needs=needs,
            sees_errors=form.sees_errors, any_of=form.any_of, apart=form.apart,
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
            raise BadCallError(f"the child task is invalid: {error.reason}") from None
        self.children_count += 1
        self.has_delegated |= delegates
        self.handed_over.update(takes or ())
        return child, arguments

    def _with_published(self, value: Any) -> Any:
        """Replace references to outputs of this attempt by the published ones.

        A program may have older references; only the published one has the location of the content.
        """
        if isinstance(value, REFERENCE_TYPES):
            return self.outputs.reference(value.id) or value
        if isinstance(value, dict):
            return {key: self._with_published(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._with_published(item) for item in value]
        return value
