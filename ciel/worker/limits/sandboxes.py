"""Isolates the programs of attempts as their tasks and this worker require.

Strict isolation and containers are for batch programs: an interactive program gets paths of its
worker while it runs, which do not exist in a sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from twisted.internet.threads import deferToThread
from twisted.logger import Logger

from ciel.core.events import TaskFault
from ciel.core.tasks import NO_ISOLATION, PODMAN, STRICT, Isolation, Needs
from ciel.execution.report import unicode_text
from ciel.launch.control_groups import ControlGroups, Group
from ciel.launch.isolation import (
    MESSAGE,
    NOT_STARTED,
    PROCESSES_MAX,
    Sandbox,
    Surroundings,
    remove_container,
)

log = Logger()


class Sandboxes:
    """Creates the sandboxes of attempts, and removes what each of them leaves."""

    def __init__(
        self,
        isolation: Isolation,
        surroundings: Surroundings,
        groups: ControlGroups | None = None,
        left: Sequence[str] = (),
    ) -> None:
        """`left`: containers of workers that were killed, to remove now."""
        self.isolation = isolation
        self._surroundings = surroundings
        self._groups = groups
        self._of: dict[str, tuple[Sandbox, Group | None]] = {}
        for name in left:
            _in_thread(partial(remove_container, name))

    def forbids_privileges(self, needs: Needs) -> bool:
        """Whether the program of a task must not gain privileges by setuid programs."""
        return self.isolation.level_of(needs) != NO_ISOLATION

    def why_not(self, needs: Needs, *, is_interactive: bool) -> str:
        """Explain why this worker cannot isolate a task as it asks; return "" if it can."""
        is_strict = self.isolation.level_of(needs) == STRICT
        if is_interactive and (is_strict or needs.image):
            how = f"in the image {needs.image}" if needs.image else "with strict isolation"
            return (
                f"interactive programs, such as Python calls, cannot run {how}, since they get "
                "paths of their worker while they run; run it as a program of `ciel submit`"
            )
        return self.isolation.why_not(needs)

    def create(self, needs: Needs, scratch: str) -> Sandbox | None:
        """Create the sandbox of an attempt; None if it needs none."""
        is_strict = self.isolation.level_of(needs) == STRICT
        if not is_strict and not needs.image:
            return None
        group = None
        if is_strict and not needs.image and self._groups is not None:
            group = self._groups.create(PROCESSES_MAX, needs.memory_bytes, needs.slots)
        name = "ciel-" + "-".join(scratch.rstrip("/").split("/")[-2:])
        sandbox = Sandbox(
            self._surroundings, is_strict, scratch, needs.image, needs.container, name,
            "" if group is None else group.members,
        )  # fmt: skip
        self._of[scratch] = (sandbox, group)
        return sandbox

    def remove(self, scratch: str) -> None:
        """Remove the control group or container of an attempt, whose program has ended."""
        sandbox, group = self._of.pop(scratch, (None, None))
        if group is not None:
            group.remove()
        if sandbox is not None and sandbox.container == PODMAN:
            _in_thread(partial(remove_container, sandbox.name))


def _in_thread(call: Callable[[], None]) -> None:
    deferToThread(call).addErrback(
        lambda failure: log.failure("a container could not be removed", failure)
    )


def isolation_fault(
    worker: str, argv: Sequence[str], exit_status: int | None, stderr: str
) -> TaskFault | None:
    """Return the fault of a program that its sandbox did not start; None if it was started."""
    if exit_status != NOT_STARTED or not (why := _reason(stderr)):
        return None
    text = f"{unicode_text(argv[0])!r} could not be started on worker {worker}: {why}"
    return TaskFault("PROGRAM_NOT_STARTED", text)


def _reason(stderr: str) -> str:
    lines = stderr.strip().splitlines()
    last = lines[-1] if lines else ""
    if last.startswith(MESSAGE):
        return last.removeprefix(MESSAGE)
    return last if last.startswith("Error: ") else ""
