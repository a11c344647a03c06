"""Starts a program in C that uses a volume by `ciel_memory.h`."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from typing import Final

from ciel.cli.outcome import UsageError
from ciel.cli.parsing.parser import memory_size, whole_number
from ciel.client.client import Client
from ciel.client.memory import find_volume
from ciel.memory.companion import Companion
from ciel.memory.master import VolumeOwner
from ciel.memory.page_server import PAGE_BYTES

VARIABLE: Final = "CIEL_MEMORY"
"""The variable that the program's library reads: the socket, and a description of the volume."""
SIGNAL_BASE: Final = 128
"""A program that a signal has ended has this exit status and the number of the signal, as in a
shell."""
ABOUT: Final = (
    "The program opens the volume by ciel_memory_open() of ciel_memory.h; `python -m ciel.memory` "
    "prints the directory of that file. The exit status is the program's."
)


def add_cache(parser: ArgumentParser) -> None:
    """Add the option `--cache`."""
    parser.add_argument(
        "--cache", type=memory_size, default=0, metavar="SIZE",
        help="keep so much of what was read or written lately, and read ahead; only if nobody else "
        "writes to the volume meanwhile (default: no cache)",
    )  # fmt: skip


def add_run(parser: ArgumentParser) -> None:
    """Add the arguments of `ciel memory run`."""
    parser.add_argument(
        "--timeout", type=whole_number(1, 3600), default=30, metavar="SECONDS",
        help="after this time without an answer, reads and writes fail (default %(default)s)",
    )  # fmt: skip
    add_cache(parser)
    parser.add_argument("name", metavar="VOLUME", help="the volume")
    parser.add_argument(
        "program", metavar="PROGRAM [ARG…]", nargs=argparse.REMAINDER, help="the program"
    )


def run(client: Client, args: Namespace) -> int:
    """Run a program, and answer its library; return its exit status."""
    words = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not words:
        raise UsageError("ciel memory run needs a program after the volume")
    volume = find_volume(client, args.name)
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        numbers = f"{volume['number']} {volume['extents']} {volume['replicas']}"
        cache_pages = args.cache // PAGE_BYTES
        described = f"{numbers} {args.timeout} {cache_pages} {volume['compress']}"
        environ = os.environ | {VARIABLE: f"{theirs.fileno()} {described}"}
        try:
            process = subprocess.Popen(words, env=environ, pass_fds=[theirs.fileno()])
        except OSError as error:
            own.close()
            raise UsageError(f"{words[0]} cannot be started: {error.strerror}") from None
        Companion(VolumeOwner(client, args.name), own)
    status = _wait(process)
    return SIGNAL_BASE - status if status < 0 else status


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for a program. It gets the signals of the terminal, too: its end is awaited."""
    while process.poll() is None:
        with suppress(KeyboardInterrupt):
            process.wait()
    return process.returncode
