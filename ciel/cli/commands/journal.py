"""`ciel journal`: checks and shows the journal of a master, which may be running."""

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
from ciel.journal.directory import find_files
from ciel.journal.groups import Group, JournalReader
from ciel.wire.messages import encode

VERBS: Final = {
    "check": "read a journal, and report damage",
    "dump": "print the records of a journal as lines of JSON",
}
_EPILOG: Final = {
    "check": "The exit status is 1 if a file is damaged. If the last group is cut off, that is no "
    "damage: a master that crashed has left it, and the next one removes it.",
    "dump": "A line has the time of a record in seconds since the epoch, its kind, and its "
    "fields. The output contains command lines and environment variables.",
}


def main(prog: str, words: Sequence[str]) -> int:
    """Run the verb."""
    if words[:1] not in (["check"], ["dump"]):
        return show_verbs("ciel journal", "Checks and shows a master's journal.", VERBS, words)
    verb = words[0]
    parser = make_parser(f"ciel journal {verb}", f"{VERBS[verb].capitalize()}.", _EPILOG[verb])
    parser.add_argument("directory", metavar="DIRECTORY", type=Path, help="as for --journal")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(words[1:])
    return _check(args) if verb == "check" else _dump(args)


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
        is_fault = damage is not None and not (is_torn and path is paths[-1])
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
