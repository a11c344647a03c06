"""`ciel submit`: runs one program, or an array of them, as a job."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from ciel.cli.connection import connect, connect_or_start
from ciel.cli.jobs.detached import print_summary, report_detached
from ciel.cli.outcome import OF_JOB_STATE, Status, UsageError, cancelling, say
from ciel.cli.output.printing import write_unlocked
from ciel.cli.output.progress import Counts, Progress, RunningCount
from ciel.cli.parsing.options import (
    assignments,
)
from ciel.cli.submission import standard_input
from ciel.cli.submission.collected_files import CollectedFiles, patterns_of
from ciel.cli.submission.elements import (
    Element,
    Grouped,
    Known,
    Lines,
    Pieces,
    Source,
    Template,
    batches,
    combined,
    has_place,
    known,
    substitute,
)
from ciel.cli.submission.followed import predecessors
from ciel.cli.submission.halting import Halt, Halting
from ciel.cli.submission.options import needs_of, parse
from ciel.cli.submission.outputs import Outputs
from ciel.cli.submission.programs import files_of, program_of
from ciel.cli.submission.result_files import ResultFiles
from ciel.client.client import Client
from ciel.client.errors import JobEndedError
from ciel.client.jobs import Job, archive_of
from ciel.client.jobs.arrays import UNSETTLED_MAX, Array
from ciel.client.jobs.caller_context import caller_context
from ciel.core.jobs import JOB_NAME_MAX_LENGTH, CallerContext
from ciel.core.refs import Future, Reference
from ciel.core.scheduling import read_scheduling
from ciel.core.tasks import (
    TaskState,
)
from ciel.execution.report import visible

_BLOCK_BYTES = 1 << 20  # as GNU parallel's
_PIECES_PER_SLOT = 2
"""How many pieces of standard input are submitted at a time for each slot of the cluster: more
pieces would only fill the store."""


def main(prog: str, words: Sequence[str]) -> int:
    """Submit the job; unless `--detach` is given, wait for its results and print them."""
    args = parse(words)
    if args.file is not None:
        from ciel.cli.jobfiles.command import submit_file  # few commands need it

        return submit_file(args)
    env = assignments("--env", args.env, os.environ)
    is_array = args.is_array
    element_inputs, inputs = _split(args.inputs, is_array)
    element_objects, objects = _split(args.objects, is_array)
    files = files_of([Path(path) for path in inputs])
    template = Template(program_of(args.program, files), env)
    context = _context(args)
    elements = _elements(args, template)
    if args.dry_run:
        from ciel.cli.submission.dry_run import print_commands  # few commands need it

        names = [each.partition("=")[0] for each in args.env]
        print_commands(elements, template, names, args.cwd)
        return Status.DONE
    if is_array and not args.pipe and "-" not in args.each_line:
        standard_input.warn_if_unread()
    name = args.name or visible(os.path.basename(args.program[0]))
    connector = connect if args.detach else connect_or_start
    client = connector(args, "ciel submit")
    with closing(client):
        references = _objects(client, objects, files)
        references |= {name: client.upload(path) for name, path in files.items()}
        element_objects = [_resolve_last(client, each) for each in element_objects]
        stdin = None if is_array else standard_input.upload(client, visible(args.program[0]))
        job = client.job(
            name[:JOB_NAME_MAX_LENGTH], detached=args.detach, keep=args.keep, store=args.store,
            scheduling=read_scheduling(args.policy), context=context,
            after=predecessors(client, args), max_fails=args.max_fails,
        )  # fmt: skip
        per_element = _PerElement(element_inputs, element_objects)
        run = _task_adder(client, job, elements, args, template, references, per_element, stdin)
        with cancelling(client, job):
            return _run(client, job, elements, template, run, args)


def _run(
    client: Client,
    job: Job,
    elements: Source,
    template: Template,
    run: Callable[[Element], Future],
    args: argparse.Namespace,
) -> int:
    """Submit the elements by `run`, and wait for them unless `--detach` is given."""
    files_out = None
    if args.out is not None and not args.collect:
        files_out = ResultFiles(args.out, args.is_array, with_errors=args.results is not None)
        run = files_out.clearing(run)
    collected = None
    if args.collect:
        collected = CollectedFiles(client, job, args)
        run = collected.clearing(run)
    halts = [] if args.halt is None else [args.halt]
    if args.max_fails >= 0:  # the master counts failures, too, but the command submits faster
        option = f"--max-fails {args.max_fails}"
        halts.append(Halt(True, "fail", args.max_fails + 1, False, option))
    halting = Halting(job, halts, lambda: elements.total, 2 if args.collect else 1)
    array = Array(
        client, job, elements, run, in_order=_in_order(args), at_once=_at_once(client, args),
        keeps=not args.pipe, beside=archive_of if args.collect else None, ending=halting,
    )  # fmt: skip
    elements.start(client.wake)
    if args.detach:
        array.submit()
        return report_detached(client, job, args.json, "output --follow" if args.follow else "wait")
    outputs = Outputs(client, job, files_out, args, collected, halting)
    return _run_attached(client, job, array, elements, template, outputs, args)


def _run_attached(
    client: Client,
    job: Job,
    array: Array[Element],
    elements: Source,
    template: Template,
    outputs: Outputs,
    args: argparse.Namespace,
) -> int:
    """Submit the elements, print the results as they arrive, then list the failures."""
    with ExitStack() as stack:
        if args.joblog is not None:
            from ciel.cli.submission.joblog import JobLog  # few commands need it

            continues = args.resume or args.resume_failed
            log = JobLog(args.joblog, client, job, template, continues=continues)
            outputs.joblog = stack.enter_context(log)
        running = RunningCount(client, args.slots)

        def counts() -> Counts:
            return _counts(job, array, elements, running)

        progress = stack.enter_context(
            Progress(job.name, counts, quiet=args.quiet, has_bar=args.bar)
        )
        following = None
        if args.follow:
            from ciel.cli.output.following import Following  # few commands need it

            following = Following(
                client,
                lambda lines: progress.aside(partial(write_unlocked, lines)),
                lambda: job.cancel("its output cannot be printed"),
            )
            job.on_growing = following.begin
            stack.callback(following.raise_error)  # the error caused the cancellation
        if args.results is not None:
            client.show_prints(job, each=outputs.put_error)
        elif args.stderr:
            client.show_prints(job, progress, lambda task: task.name if args.is_array else "")
        try:
            for batch in array.results():
                if following is not None:
                    outputs.printed_bytes = {ref.id: following.finish(ref.id) for _, ref in batch}
                progress.aside(partial(outputs.put, batch))
        except JobEndedError as error:
            if not outputs.halting.has_stopped(error.reason):
                raise
        summary = job.wait()
    is_halted = outputs.halting.has_stopped(summary.reason)
    if OF_JOB_STATE[summary.state] == Status.CANCELLED and not is_halted:
        raise JobEndedError(summary.number, summary.state, summary.reason)
    outputs.list_failures(array.submitted)
    if job.notices:
        _say_deleted(job.notices[0].text, args)
    if args.json:
        # The client may have taken the last results after the end of the job.
        print_summary(client, summary._replace(handed_over=array.handed_over))
    if (halt := outputs.halting.reached) is not None:
        say(f"{outputs.halting.reason}: not all elements ran")
        return Status.DONE if halt.kind == "success" else outputs.status
    return outputs.status or OF_JOB_STATE[summary.state]


class _PerElement:
    """The files that differ between elements: those of `--in` and `--object` with `{}` in them."""

    def __init__(self, inputs: Sequence[str], objects: Sequence[str]) -> None:
        self._inputs = inputs
        self._objects = objects

    def upload(
        self, client: Client, element: Element, references: Mapping[str, Reference]
    ) -> Mapping[str, Reference]:
        """Upload the files of an element; return all its files by name.

        The returned files include those that all elements share. Raises UsageError, and the
        errors of `Client.upload`.
        """
        if not (self._inputs or self._objects):
            return references
        files = files_of([Path(substitute(path, element)) for path in self._inputs])
        wanted = [substitute(assignment, element) for assignment in self._objects]
        found = _objects(client, wanted, {**files, **dict.fromkeys(references, Path())})
        return {
            **references,
            **found,
            **{name: client.upload(path) for name, path in files.items()},
        }

    def executables(self, element: Element) -> list[str]:
        """Return the names of the files that are executable."""
        return _executables([substitute(path, element) for path in self._inputs])


def _executables(paths: Sequence[str]) -> list[str]:
    return [os.path.basename(path) for path in paths if os.access(path, os.X_OK)]


def _split(values: Sequence[str], is_array: bool) -> tuple[list[str], list[str]]:
    """Separate the values that contain `{}`, which differ between elements, from the others."""
    of_elements = [value for value in values if is_array and has_place(value)]
    return of_elements, [value for value in values if value not in of_elements]


def _resolve_last(client: Client, assignment: str) -> str:
    """Replace `last` in an `--object` by the number of the last job before this one."""
    name, _, text = assignment.partition("=")
    if not text.startswith("last:"):
        return assignment
    number = client.ask("jobs", {"job": "last"})[0][1]
    return f"{name}={number}:{text.removeprefix('last:')}"


def _in_order(args: argparse.Namespace) -> bool:
    return not (args.unordered or args.follow) and (
        args.json or args.out is None or bool(args.collect)
    )


def _at_once(client: Client, args: argparse.Namespace) -> int:
    """Return how many submitted elements may be unfinished at a time."""
    limits = [args.jobs or 0, args.array.at_once if args.array is not None else 0]
    at_once = min([limit for limit in limits if limit], default=UNSETTLED_MAX)
    if args.halt is not None and not args.halt.is_now:
        limits.append(max(1, client.slot_count() // args.slots))
        at_once = min([limit for limit in limits if limit])
    if args.pipe and not args.detach:
        at_once = min(at_once, max(1, client.slot_count()) * _PIECES_PER_SLOT)
    return at_once


def _task_adder(
    client: Client,
    job: Job,
    elements: Source,
    args: argparse.Namespace,
    template: Template,
    references: Mapping[str, Reference],
    per_element: _PerElement,
    stdin: Reference | None,
) -> Callable[[Element], Future]:
    """Return a function that adds the task of an element to the job."""
    needs = needs_of(args)
    inputs = [] if stdin is None else [stdin]
    executables = _executables([path for path in args.inputs if not has_place(path)])

    def run(element: Element) -> Future:
        try:
            argv, env = template.fill(element)
        except ValueError as error:
            raise UsageError(f"{elements.place(element)} {error}") from None
        files = per_element.upload(client, element, references)
        read = inputs
        if element.content is not None:
            read = [client.upload_content(element.content, elements.place(element))]
        return job.run(
            argv, inputs=read, files=files, env=env,
            executables=executables + per_element.executables(element), needs=needs,
            name=str(element.number), streams=args.follow,
            collects=patterns_of(args.collect, element),
        )  # fmt: skip

    return run


# --- the program and its files --------------------------------------------------------------------


def _elements(args: argparse.Namespace, template: Template) -> Source:
    """Return the elements that the options name, except elements that `--resume` omits."""
    elements = _all_elements(args)
    if args.halt is not None and args.halt.is_share:
        elements = known(elements)
    if args.resume or args.resume_failed:
        from ciel.cli.submission.resuming import remaining  # few commands need it

        return remaining(args.joblog, elements, template, repeats_failed=args.resume_failed)
    return elements


def _all_elements(args: argparse.Namespace) -> Source:
    if args.array is not None:
        return Known.numbers(args.array)
    if args.pipe:
        return Pieces(args.block or _BLOCK_BYTES)
    end = b"\0" if args.null else b"\n"
    inputs = [Lines(name, end, args.colsep) for name in args.each_line]
    if not inputs:
        return Known([Element(1, None)], 1)
    if len(inputs) > 1:
        found = [[each for batch in batches(lines) for each in batch] for lines in inputs]
        return combined(found)
    return Grouped(inputs[0], args.max_args) if args.max_args else inputs[0]


def _context(args: argparse.Namespace) -> CallerContext:
    """Return the directory and the environment of the program.

    Raises ContextError, and UsageError for options that exclude each other.
    """
    if args.cwd is not None and (args.inputs or args.objects):
        option = "--in" if args.inputs else "--object"
        raise UsageError(
            f"{option} sends files into the task's own directory, where the program then runs: "
            "remove --cwd"
        )
    variables: dict[str, str] | None = {} if args.clean_env else None
    return caller_context(args.cwd, scratch=args.scratch, env=variables)


def _say_deleted(text: str, args: argparse.Namespace) -> None:
    """Print that files of the program were deleted with its directory, and how to keep them."""
    option = "--scratch" if args.scratch else "--in" if args.inputs else "--object"
    say(f"{text.strip()}; without {option} the program runs in this directory, where they stay")


def _objects(
    client: Client, wanted: Sequence[str], files: Mapping[str, Path]
) -> dict[str, Reference]:
    """Look up the objects of `--object`; return them by the names of their files."""
    found: dict[str, Reference] = {}
    for assignment in wanted:
        from ciel.cli.jobs.objects import content_of, find_object  # few commands need it

        name, _, text = assignment.partition("=")
        if not (name and text) or "/" in name or name in (".", ".."):
            raise UsageError(
                f"--object {assignment}: expected NAME=OBJECT; the program finds the object in "
                "a file of that name in its directory"
            )
        if name in files or name in found:
            raise UsageError(f"--object {assignment}: another file has that name")
        found[name] = content_of(find_object(client, text))
    return found


# --- results --------------------------------------------------------------------------------------


def _counts(
    job: Job, array: Array[Element], elements: Source, running_count: RunningCount
) -> Counts:
    summary = job.summary
    assigned = summary.counts.get(str(TaskState.ASSIGNED), 0) if summary else 0
    running = running_count.among(assigned)
    submitted, failed = array.submitted, job.failed_count // array.wanted_each
    done = job.settled_count // array.wanted_each - failed
    running = max(0, min(running, submitted - done - failed))
    return Counts(done, running, failed, elements.total or submitted, elements.total is None)
