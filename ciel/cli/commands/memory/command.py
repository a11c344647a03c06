"""`ciel memory`: lists memory servers and volumes; creates, exports and removes volumes."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Final

from ciel.cli.commands.memory import stats
from ciel.cli.commands.memory.export import export
from ciel.cli.commands.memory.run import ABOUT as ABOUT_RUN
from ciel.cli.commands.memory.run import add_cache, add_run, run
from ciel.cli.commands.memory.stats import state_of_server, state_of_volume
from ciel.cli.outcome import Status, say
from ciel.cli.output.printing import print_json, print_text
from ciel.cli.output.tables import size_text as size
from ciel.cli.output.tables import table
from ciel.cli.output.watching import pause
from ciel.cli.parsing.parser import memory_size, whole_number
from ciel.cli.parsing.verbs import Verb, run_verb
from ciel.client.client import Client
from ciel.client.memory import user_name
from ciel.memory.volumes import CODECS, REPLICAS_MAX

POLL_S: Final = 0.1
ABOUT: Final = "Creates, exports and removes volumes over the memory of other machines."


def main(prog: str, words: Sequence[str]) -> int:
    """Run the verb."""
    return run_verb("ciel memory", ABOUT, VERBS, words)


def _list(client: Client, args: Namespace) -> int:
    found = client.ask("memory")
    if args.json:
        print_json(found)
        return Status.DONE
    servers = [
        [row["server"], row["address"], size(row["offered_bytes"]), size(row["reserved_bytes"]),
         state_of_server(row)]
        for row in found["servers"]
    ]  # fmt: skip
    volumes = [
        [row["name"], size(row["size_bytes"]), f"{row['copies']} of {row['replicas']}",
         row["owner"], state_of_volume(row)]
        for row in found["volumes"]
    ]  # fmt: skip
    print_text(table(("SERVER", "ADDRESS", "OFFERED", "RESERVED", "STATE"), servers))
    print_text(table(("VOLUME", "SIZE", "COPIES", "OWNER", "STATE"), volumes))
    return Status.DONE


def _create(client: Client, args: Namespace) -> int:
    argument = {"name": args.name, "size_bytes": args.size, "replicas": args.replicas,
                "user": user_name(), "compress": args.compress or ""}  # fmt: skip
    made = client.change("memory_create", argument)
    if args.json:
        print_json(made)
        return Status.DONE
    by = f", compressed by {made['compress']}" if made["compress"] else ""
    say(f"volume {made['name']}: {size(made['size_bytes'])}, {made['replicas']} replicas{by}")
    return Status.DONE


def _remove(client: Client, args: Namespace) -> int:
    client.change("memory_remove", {"name": args.name})
    if args.json:
        print_json({"name": args.name})
    return Status.DONE


def _drain(client: Client, args: Namespace) -> int:
    """Drain a server, and wait until it has left."""
    client.change("memory_drain", {"server": args.server})
    while any(row["server"] == args.server for row in client.ask("memory")["servers"]):
        pause(client, POLL_S)
    if args.json:
        print_json({"server": args.server})
    return Status.DONE


def _add_nothing(parser: ArgumentParser) -> None:
    pass


def _add_name(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the volume")


def _add_create(parser: ArgumentParser) -> None:
    _add_name(parser)
    parser.add_argument("--size", type=memory_size, required=True, metavar="SIZE", help="its size")
    parser.add_argument(
        "--replicas", type=whole_number(1, REPLICAS_MAX), default=1, metavar="N",
        help="how many servers keep each page (default 1: pages are lost with their server)",
    )  # fmt: skip
    parser.add_argument(
        "--compress", choices=[codec for codec in CODECS if codec], metavar="CODEC",
        help="let clients compress pages, by lz4 (fast) or zstd (smaller)",
    )  # fmt: skip


def _add_export(parser: ArgumentParser) -> None:
    _add_name(parser)
    add_cache(parser)
    parser.add_argument(
        "--socket", required=True, metavar="PATH", help="the socket for NBD clients"
    )
    parser.add_argument(
        "--timeout", type=whole_number(1, 3600), default=30, metavar="SECONDS",
        help="after this time without an answer, requests fail (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--threads", type=whole_number(1, 256), metavar="N",
        help="how many requests are carried out at a time (default: two a core, 4 to 16)",
    )  # fmt: skip


def _add_server(parser: ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="the server's id")


VERBS = {
    "list": Verb("list memory servers and volumes", _add_nothing, _list),
    "stats": Verb(
        "show the activity of memory servers and volumes",
        stats.add_watch,
        stats.stats,
        stats.ABOUT,
    ),
    "create": Verb("create a volume", _add_create, _create),
    "export": Verb(
        "serve a volume to NBD clients, until the command is interrupted",
        _add_export,
        export,
        "nbd-client, qemu and nbdcopy are such clients. nbdkit serves them: Debian's packages "
        "nbdkit and nbdkit-plugin-dev.",
    ),
    "run": Verb("run a program that uses a volume", add_run, run, ABOUT_RUN, prints_json=False),
    "remove": Verb("remove a volume and its pages", _add_name, _remove),
    "drain": Verb("let a memory server leave without loss", _add_server, _drain),
}
