"""`ciel kv`: reads and changes the rows of a key-value base, in a shell and in tasks (KVB-2).

Within a task, the environment says where the base is; elsewhere the master does.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple

import orjson

from ciel.cli.connection import connect
from ciel.cli.outcome import Status, UsageError
from ciel.cli.output.printing import print_json, print_text, write_output
from ciel.cli.parsing.options import add_cluster_options, make_parser
from ciel.cli.parsing.parser import seconds
from ciel.cli.parsing.verbs import show_verbs
from ciel.client.state import open_kv
from ciel.execution.environment import KV_URL
from ciel.state.here import key_here
from ciel.state.keyvalues import KeyValues
from ciel.state.opening import open_kv as open_at

ABOUT: Final = "Reads and changes the key-value base of the cluster."
_VALUE: Final = "a value in JSON; other text stands for itself; - reads bytes from standard input"


class Verb(NamedTuple):
    """A verb: its help, its arguments, and its action, which returns the exit status."""

    summary: str
    add_arguments: Callable[[ArgumentParser], None]
    act: Callable[[KeyValues, Namespace], int]


def main(prog: str, words: Sequence[str]) -> int:
    """Run the verb."""
    name = words[0] if words else ""
    if name not in VERBS:
        summaries = {name: verb.summary for name, verb in VERBS.items()}
        return show_verbs("ciel kv", ABOUT, summaries, words)
    verb = VERBS[name]
    parser = make_parser(f"ciel kv {name}", verb.summary.capitalize() + ".")
    parser.add_argument("name", metavar="NAME", help="the name of the rows")
    verb.add_arguments(parser)
    parser.add_argument("--url", metavar="URL", help="the base (default: that of the cluster)")
    add_cluster_options(parser)
    args = parser.parse_args(words[1:])
    with closing(_open(args, f"ciel kv {name}")) as kv:
        return verb.act(kv, args)


def _open(args: Namespace, command: str) -> KeyValues:
    url = args.url or os.environ.get(KV_URL)
    if url:
        return open_at(url, args.name, key_here())
    with closing(connect(args, command)) as client:
        return open_kv(client, args.name)


def _get(kv: KeyValues, args: Namespace) -> int:
    value = kv[args.key]
    if args.json:
        print_json({"key": args.key, "value": _shown(value)})
    elif isinstance(value, bytes):
        write_output(value)
    else:
        print_text(_text(value))
    return Status.DONE


def _put(kv: KeyValues, args: Namespace) -> int:
    kv.put(args.key, _value(args.value), args.ttl)
    return _done(args)


def _insert(kv: KeyValues, args: Namespace) -> int:
    kv.insert(args.key, _value(args.value), args.ttl)
    return _done(args)


def _update(kv: KeyValues, args: Namespace) -> int:
    kv.update(args.key, _value(args.value))
    return _done(args)


def _delete(kv: KeyValues, args: Namespace) -> int:
    kv.delete(args.key)
    return _done(args)


def _increment(kv: KeyValues, args: Namespace) -> int:
    total = kv.increment(args.key, args.by)
    if args.json:
        print_json({"key": args.key, "value": total})
    else:
        print_text(str(total))
    return Status.DONE


def _scan(kv: KeyValues, args: Namespace) -> int:
    for key, value in kv.scan(prefix=args.prefix):
        if args.json:
            print_json({"key": key, "value": _shown(value)})
        else:
            print_text(f"{key}\t{_text(value)}")
    return Status.DONE


def _clear(kv: KeyValues, args: Namespace) -> int:
    removed = kv.clear(args.prefix)
    if args.json:
        print_json({"removed": removed})
    else:
        print_text(f"{removed} removed")
    return Status.DONE


def _done(args: Namespace) -> int:
    if args.json:
        print_json({"key": args.key})
    return Status.DONE


def _value(text: str) -> Any:
    if text == "-":
        return sys.stdin.buffer.read()
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _text(value: Any) -> str:
    """Return a value as a line shows it: a text as it is, JSON for what JSON can represent."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return repr(value)


def _shown(value: Any) -> Any:
    """Return a value for JSON; a value that JSON cannot represent becomes a text."""
    try:
        return orjson.loads(orjson.dumps(value))
    except TypeError:
        return _text(value)


def _add_key(parser: ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="the key")


def _add_value(parser: ArgumentParser) -> None:
    _add_key(parser)
    parser.add_argument("value", metavar="VALUE", help=_VALUE)


def _add_lasting_value(parser: ArgumentParser) -> None:
    _add_value(parser)
    parser.add_argument("--ttl", type=seconds, metavar="SECONDS", help="remove the key then")


def _add_increment(parser: ArgumentParser) -> None:
    _add_key(parser)
    parser.add_argument("by", metavar="BY", type=_integer, nargs="?", default=1, help="default 1")


def _add_prefix(parser: ArgumentParser) -> None:
    parser.add_argument("--prefix", metavar="TEXT", default="", help="only keys that start so")


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{text[:40]!r} is not an integer") from None


VERBS: Final = {
    "get": Verb("print the value of a key", _add_key, _get),
    "put": Verb("set the value of a key", _add_lasting_value, _put),
    "insert": Verb("set the value of a key that is missing", _add_lasting_value, _insert),
    "update": Verb("set the value of a key that is there", _add_value, _update),
    "delete": Verb("remove a key", _add_key, _delete),
    "increment": Verb("add to an integer, and print the sum", _add_increment, _increment),
    "scan": Verb("print keys and values, in order", _add_prefix, _scan),
    "clear": Verb("remove all keys, or those with a prefix", _add_prefix, _clear),
}
