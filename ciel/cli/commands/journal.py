"""`ciel journal`: checks, shows and compacts the journal of a master."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from ciel.cli.outcome import Status, say
from ciel.cli.output.printing import print_json, print_text
from ciel.cli.parsing.options import make_parser
from ciel.cli.parsing.verbs import show_verbs
from ciel.journal.directory import adopt_base, find_files, is_base
from ciel.journal.file_journal import ALWAYS, FileJournal
from ciel.journal.groups import Group, JournalReader
from ciel.master.compaction import write_base
from ciel.wire.messages import encode

VERBS: Final = {
    "check": "read a journal, and report damage",
    "dump": "print the records of a journal as lines of JSON",
    "compact": "remove the records that no master needs any more",
}
_EPILOG: Final = {
    "check": "The exit status is 1 if a file is damaged. If the last group is cut off, that is no "
    "damage: a master that crashed has left it, and the next one removes it.",
    "dump": "A line has the time of a record in seconds since the epoch, its kind, and its "
    "fields. The output contains command lines and environment variables.",
    "compact": "A master compacts its journal while it runs; this is for the journal of one that "
    "does not run.",
}


def main(prog: str, words: Sequence[str]) -> int:
    """Run the subcommand."""
    if not words or words[0] not in VERBS:
        about = "Checks, shows and compacts a master's journal."
        return show_verbs("ciel journal", about, VERBS, words)
    verb = words[0]
    parser = make_parser(f"ciel journal {verb}", f"{VERBS[verb].capitalize()}.", _EPILOG[verb])
    parser.add_argument("directory", metavar="DIRECTORY", type=Path, help="as for --journal")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(words[1:])
    return {"check": _check, "dump": _dump, "compact": _compact}[verb](args)


def _check(args: Namespace) -> int:
    files, status = [], Status.DONE
    paths = find_files(args.directory).paths
    for path in paths:
        reader, kinds = JournalReader(path.read_bytes()), Counter[str]()
        groups = 0
        for group in reader.groups():
            groups += 1
            kinds.update(str(encode(record)[0][0]) for record in group.records)
        damage = reader.damage
        is_torn = damage is not None and damage.is_tail and not reader.is_foreign
        is_fault = not (is_torn and path is paths[-1] and not is_base(path))
        is_fault = is_fault and damage is not None
        facts = {
            "file": path.name, "size_bytes": path.stat().st_size, "groups": groups,
            "records": sum(kinds.values()), "kinds": dict(kinds),
            "damage": None if damage is None else damage._asdict(), "is_fault": is_fault,
        }  # fmt: skip
        files.append(facts)
        if is_fault:
            status = Status.FAILED
        if not args.json:
            print_text(_line_of(facts))
    if args.json:
        print_json({"directory": str(args.directory), "files": files})
    elif not files:
        say(f"{args.directory} contains no journal")
    return status


def _line_of(facts: dict[str, Any]) -> str:
    size, groups, records = facts["size_bytes"], facts["groups"], facts["records"]
    text = f"{facts['file']}: {records:,} records in {groups:,} groups, {size:,} bytes"
    damage = facts["damage"]
    if damage is None:
        return text
    what = "DAMAGED" if facts["is_fault"] else "cut off by a crash"
    return f"{text}; {what} at byte {damage['offset']:,}: {damage['reason']}"


def _dump(args: Namespace) -> int:
    for path in find_files(args.directory).paths:
        reader = JournalReader(path.read_bytes())
        for group in reader.groups():
            for record in _records(group):
                print_json(record)
        if reader.damage is not None:
            say(f"{path} ends at byte {reader.damage.offset:,}: {reader.damage.reason}")
    return Status.DONE


def _records(group: Group) -> Iterator[dict[str, Any]]:
    for record in group.records:
        (kind, *fields), payload = encode(record)
        yield {
            "time_s": group.time_s, "time": datetime.fromtimestamp(group.time_s).isoformat(),
            "kind": kind, "fields": fields, "payload": payload.decode(errors="replace"),
        }  # fmt: skip


def _compact(args: Namespace) -> int:
    find_files(args.directory)  # an error if it does not exist: the lock would create it
    journal = FileJournal(args.directory, ALWAYS, lambda call: None)
    try:
        for _ in journal.groups():  # cuts off what a crash has left
            pass
        number = find_files(args.directory).next_number - 1
        before_bytes = journal.base_bytes + journal.added_bytes
        if number:
            after_bytes = write_base(args.directory, number)
            adopt_base(args.directory, number)
    finally:
        journal.close()
    if not number:
        say(f"{args.directory} contains no journal")
    elif args.json:
        print_json({"before_bytes": before_bytes, "after_bytes": after_bytes})
    else:
        print_text(f"compacted {before_bytes:,} to {after_bytes:,} bytes")
    return Status.DONE
