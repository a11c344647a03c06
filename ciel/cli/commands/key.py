"""`ciel key`: prints the key of a role, for programs that use the HTTP API."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ciel.access.keys import Role
from ciel.cli.connection import require_master
from ciel.cli.outcome import Status, UsageError
from ciel.cli.output.printing import print_json, print_text
from ciel.cli.parsing.options import add_cluster_options, make_parser

_EPILOG: Final = """\
A `read` key can read everything and change nothing; a `submit` key can also start and end jobs;
a `worker` key lets a worker join; a `kv` key is the password of `ciel-kv` for clients of Redis.
Some requests need the key of the cluster itself. All keys are valid until the master is started
with --new-key.
"""
ROLES: Final = (Role.READ, Role.SUBMIT, Role.WORKER, Role.KV)


def main(prog: str, words: Sequence[str]) -> int:
    """Print the key of a role, or write it to a file that only its owner can read."""
    parser = make_parser("ciel key", "Print the key of a role, for HTTP.", _EPILOG)
    parser.add_argument(
        "-o", "--out", metavar="FILE", help="write the key to FILE, which only its owner can read"
    )
    add_cluster_options(parser)
    parser.add_argument("role", choices=[str(role) for role in ROLES], metavar="ROLE",
                        help="read, submit, worker or kv")  # fmt: skip
    args = parser.parse_args(words)
    found = require_master(args)
    key = found.key.derive(Role(args.role))
    if key is None:
        raise UsageError(
            f"{found.origin} has only a key that is restricted to one role; this command needs "
            "the cluster's admin key"
        )
    if args.out is not None:
        _write(Path(args.out), key.text())
    shown = {"role": args.role, "url": found.url, "file": args.out}
    if args.json:
        print_json(shown | ({"key": key.text()} if args.out is None else {}))
    elif args.out is None:
        print_text(key.text())
    return Status.DONE


def _write(path: Path, text: str) -> None:
    if path.exists() and not path.is_file():  # unlinking would remove a device
        raise UsageError(f"--out {path}: it is not a regular file")
    try:
        path.unlink(missing_ok=True)  # an old file may be readable to other users
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(text + "\n")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
