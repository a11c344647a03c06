"""`ciel object`: stores files in the cluster until a user removes them; shows and reads objects."""

from __future__ import annotations

import shutil
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from ciel.cli.arrow.getting import FORMATS, check_options, get_table
from ciel.cli.arrow.showing import describe_table, render_table
from ciel.cli.jobs.objects import content_of, find_object
from ciel.cli.jobs.queries import chosen_jobs
from ciel.cli.outcome import Status, UsageError, say
from ciel.cli.output.files import output_file
from ciel.cli.output.printing import (
    JSON_OUTPUT_MAX_BYTES,
    json_content,
    print_json,
    print_text,
    write_output,
)
from ciel.cli.output.tables import duration, screen_width, size_text, table
from ciel.cli.parsing.options import count, require_text
from ciel.cli.parsing.parser import whole_number
from ciel.cli.parsing.selectors import ALL, LAST
from ciel.cli.parsing.verbs import Verb, run_verb
from ciel.client.client import Client
from ciel.client.data.uploads import REPLICAS
from ciel.client.errors import QueryError
from ciel.core.events import COPIES_MAX
from ciel.core.refs import Failure, Reference, Value
from ciel.execution.report import visible
from ciel.wire.references import to_json

_LISTED = 100
_NAME_MAX_LENGTH = 200
_RESERVED_NAMES = frozenset((ALL, LAST))
_STANDARD_INPUT = "-"
_SELECTORS = """\
OBJECT is an id; the name of a stored file, if only one has that name; last, the newest stored file;
or JOB:TASK, the first output of that task.
"""


def main(prog: str, words: Sequence[str]) -> int:
    """Run the subcommand."""
    return run_verb(
        "ciel object", "Stores files in the cluster, and shows and reads objects.", VERBS, words
    )


# --- put ------------------------------------------------------------------------------------------


def _put(client: Client, args: Namespace) -> int:
    if args.name is not None:
        require_text("--name", args.name)
        if len(args.name) > _NAME_MAX_LENGTH:
            raise UsageError(f"--name: a name has at most {_NAME_MAX_LENGTH} characters")
        if len(args.files) > 1:
            raise UsageError("--name names one object; store the files one by one, or omit --name")
    names = [_name_for(file, args.name) for file in args.files]
    for file, name in zip(args.files, names, strict=True):
        ref = _upload(client, file, args.copies)
        what = {"name": name, "reference": to_json(ref), "copies": args.copies}
        answer = client.change("keep", what)
        if args.json:
            print_json(answer)
        else:
            print_text(answer["object"])
    return Status.DONE


def _name_for(file: str, given: str | None) -> str:
    """Return the name of the object for a file; raises UsageError for any but a regular file."""
    if file != _STANDARD_INPUT and not Path(file).is_file():
        reason = "it is not a regular file" if Path(file).exists() else "the file does not exist"
        raise UsageError(f"{visible(file)}: {reason}")
    name = given if given is not None else Path(file).name
    name = name.encode(errors="replace").decode()[:_NAME_MAX_LENGTH]
    if name in _RESERVED_NAMES:
        raise UsageError(
            f"an object cannot have the name {name}, which is a selector; "
            "choose another name with --name"
        )
    return name


def _upload(client: Client, file: str, copies: int) -> Reference:
    if file != _STANDARD_INPUT:
        return client.upload(file, copies)
    with (
        tempfile.TemporaryFile() as copy
    ):  # several workers get the content, which can be read only once
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.seek(0)
        return client.upload_opened(copy, "standard input", copies)


# --- get ------------------------------------------------------------------------------------------


def _get(client: Client, args: Namespace) -> int:
    """Print objects one after the other, or write them into one file.

    The file gets its name only when it is complete.
    """
    check_options(args)
    if args.format is not None:
        get_table(client, args)
        return Status.DONE
    found = [find_object(client, text) for text in args.objects]
    refs = [content_of(facts) for facts in found]
    with ExitStack() as at_end:
        file = None if args.output is None else at_end.enter_context(output_file(Path(args.output)))
        for facts, ref in zip(found, refs, strict=True):
            row = {"object": facts["object"], "size_bytes": _size_of(ref)}
            if file is not None:
                file.writelines(client.read_chunks(ref))
                row["file"] = args.output
            elif not args.json:
                for chunk in client.read_chunks(ref):
                    write_output(chunk)
            elif (size_bytes := row["size_bytes"]) is not None:
                if size_bytes <= JSON_OUTPUT_MAX_BYTES:
                    row |= json_content("output", client.read(ref))
            if args.json:
                print_json(row)
    return Status.DONE


def _size_of(ref: Reference) -> int | None:
    return len(ref.content) if isinstance(ref, Value) else getattr(ref, "size_bytes", None)


# --- info, list -----------------------------------------------------------------------------------


def _info(client: Client, args: Namespace) -> int:
    for place, text in enumerate(args.objects):
        facts = find_object(client, text)
        ref = facts.pop("reference")
        if isinstance(ref, Failure):
            facts |= {"reason": ref.reason, "story": ref.text}
        size_bytes = facts["size_bytes"]
        if facts["state"] == "there" and size_bytes is not None:
            if (found := describe_table(client, ref, size_bytes)) is not None:
                facts["table"] = found
        if args.json:
            print_json(facts | {"reference": to_json(ref)})
        else:
            print_text("\n" * bool(place) + render_info(facts))
            if "table" in facts:
                print_text(render_table(facts["table"], screen_width()))
    return Status.DONE


def render_info(facts: dict[str, Any]) -> str:
    """Lay out the facts about an object."""
    lines = [f"object {facts['object']}", f"state: {facts['state']}"]
    if facts["size_bytes"] is not None:
        lines.append(f"size: {facts['size_bytes']} bytes")
    if facts["state"] == "there":
        places = " ".join(facts["at"]) or "on the master, because it is short"
        lines.append(f"stored at: {places}")
    if (copies := facts["copies"]) is not None:
        lines.append(f"copies: {_copies_text(copies)}")
    if facts["name"] is not None:
        ago = duration(facts["age_s"])
        lines.append(f"put: as {visible(facts['name']) or 'nothing'}, {ago} ago; kept until rm")
    if facts["made_by"] is not None:
        lines.append(f"produced by: task {facts['made_by']} of job {facts['job']}")
    if facts["wanted_by"]:
        lines.append(f"wanted by: {', '.join(f'job {n}' for n in facts['wanted_by'])}")
    if "story" in facts:
        lines += [f"failed ({visible(facts['reason'])}):"]
        lines += [f"  {visible(line)}" for line in facts["story"].split("\n")]
    return "\n".join(lines)


def _copies_text(copies: dict[str, Any]) -> str:
    """Describe how many of the wanted copies exist, and why not all do."""
    found = f"{copies['there']} of {copies['wanted']}"
    if copies["copying"]:
        return f"{found}; {copies['copying']} being made"
    return f"{found}; {visible(copies['why'])}" if copies["why"] else found


def _list(client: Client, args: Namespace) -> int:
    if args.job is not None:
        (job, *more) = chosen_jobs(client, [args.job])
        if more:
            raise UsageError(f"--job {args.job} selects more than one job; name one")
        found = _of_job(client, job.id)
    else:
        found = _known(client, kept=not args.known)
    rows = list(found if args.all else islice(found, args.limit))
    if args.json:
        print_json(rows)
    else:
        print_text(render_list(rows, screen_width()))
    if next(found, None) is not None:
        say(f"the first {len(rows)} objects; --all lists them all")
    return Status.DONE


def _known(client: Client, *, kept: bool) -> Iterator[dict[str, Any]]:
    first: int | None = 0
    while first is not None:
        page = client.ask("objects", {"first": first, "kept": kept})
        yield from page["objects"]
        first = page["next"]


def _of_job(client: Client, job_id: str) -> Iterator[dict[str, Any]]:
    """Yield the outputs of the tasks of a job."""
    first: Any = [0, 0]
    while first is not None:
        page = client.ask("graph", {"job": job_id, "first": first})
        for task in page["tasks"]:
            for object_id, *_ in task["outputs"]:
                try:
                    facts = client.ask("object", {"object": object_id})
                except QueryError:
                    continue  # the master has forgotten the object
                del facts["reference"]
                yield facts
        first = page["next"]


def render_list(rows: Sequence[dict[str, Any]], width: int | None = None) -> str:
    """Lay out objects as a table, in the order in which the master learned of them."""
    if not rows:
        return "no objects"
    cells = [
        (
            row["object"], row["name"] or "", row["state"],
            "" if row["size_bytes"] is None else size_text(row["size_bytes"]),
            "" if row["job"] is None else row["job"], " ".join(row["at"]),
        )
        for row in rows
    ]  # fmt: skip
    return table(("OBJECT", "NAME", "STATE", "SIZE", "JOB", "AT"), cells, width)


# --- rm -------------------------------------------------------------------------------------------


def _rm(client: Client, args: Namespace) -> int:
    doomed: dict[str, None] = {}
    for text in args.objects:
        if text == ALL:
            doomed |= dict.fromkeys(row["object"] for row in _known(client, kept=True))
        else:
            doomed[find_object(client, text)["object"]] = None
    removed, status = [], Status.DONE
    for object_id in doomed:
        try:
            answer = client.change("discard", {"object": object_id})
        except QueryError as error:
            say(str(error))
            status = Status.FAILED
            continue
        removed.append(object_id)
        if readers := answer["read_by"]:
            jobs = ", ".join(map(str, readers[:_LISTED]))
            say(f"{object_id} stays until the jobs that read it are removed: {jobs}")
    if args.json:
        print_json({"removed": removed})
    elif len(doomed) != 1 or ALL in args.objects:
        say(f"removed {len(removed)} {'object' if len(removed) == 1 else 'objects'}")
    return status


# --- the command line -----------------------------------------------------------------------------


def _add_put(parser: ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="- is standard input")
    parser.add_argument(
        "--name", metavar="TEXT", help="the name of the object (default: the name of the file)"
    )
    parser.add_argument(
        "--copies",
        type=whole_number(1, COPIES_MAX),
        default=REPLICAS,
        metavar="N",
        help=f"how many workers hold each file, also after one is lost (default {REPLICAS})",
    )


def _add_objects(parser: ArgumentParser) -> None:
    parser.add_argument(
        "objects", metavar="OBJECT", nargs="+", help="an id, a name, JOB:TASK, last"
    )


def _add_get(parser: ArgumentParser) -> None:
    _add_objects(parser)
    parser.add_argument("-o", dest="output", metavar="FILE", help="write to FILE instead")
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="write the table of Arrow in the object in this format; may unpickle it",
    )
    parser.add_argument(
        "--result",
        type=count,
        metavar="N",
        help="which result is the table, if small calls share the object",
    )


def _add_list(parser: ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--job", metavar="JOB", help="list the outputs of the tasks of a job")
    which.add_argument(
        "--known", action="store_true", help="list all objects that the master knows"
    )
    parser.add_argument("--all", action="store_true", help="list without a limit")
    parser.add_argument(
        "--limit",
        type=count,
        default=_LISTED,
        metavar="N",
        help="list the first N objects (default 100)",
    )


def _add_rm(parser: ArgumentParser) -> None:
    parser.add_argument(
        "objects", metavar="OBJECT", nargs="+", help="as for get; all means all stored files"
    )


VERBS = {
    "put": Verb("store files on several workers; print their ids", _add_put, _put),
    "get": Verb("print objects, or write them to a file", _add_get, _get, _SELECTORS),
    "info": Verb(
        "show where objects are stored, and which tasks read them", _add_objects, _info, _SELECTORS
    ),
    "list": Verb("list stored files, or all objects", _add_list, _list),
    "rm": Verb("remove stored files", _add_rm, _rm, _SELECTORS),
}
