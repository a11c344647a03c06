"""`python -m ciel.shm DIRECTORY`: the daemon of a block store without a worker.

The directory is a store on a disk. When a client loads an object, the daemon copies it from there
into memory. It keeps these copies, and the objects that clients commit, in memory until it ends.
This module constructs the daemon and its stores.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from twisted.logger import globalLogBeginner, textFileLogObserver

from ciel.shm.daemon import Daemon
from ciel.shm.errors import ShmdError
from ciel.shm.layout import member_of_store
from ciel.shm.store import open_shm
from ciel.shm.work import wait_in_queue
from ciel.storage.errors import StorageError
from ciel.storage.files import open_disk

DEFAULT_GROUP = "stores"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parse = argparse.ArgumentParser(
        prog="python -m ciel.shm", allow_abbrev=False, description="Serve a block store in memory."
    )
    add = parse.add_argument
    add("directory", type=Path, metavar="DIRECTORY", help="the block store; created if missing")
    add("--capacity", metavar="SIZE", help="memory to use (default: half of the free memory)")
    add(
        "--group",
        metavar="NAME",
        default=DEFAULT_GROUP,
        help="group of stores that request objects from each other (default: %(default)s)",
    )
    return parse


def serve(reactor: Any, options: argparse.Namespace) -> None:
    """Serve until a signal arrives. Raises the errors of opening the stores."""
    directory = Path(os.path.realpath(options.directory))
    capacity = {"capacity": options.capacity} if options.capacity else {}
    with (
        open_disk({}, directory) as behind,
        open_shm(capacity, directory) as store,
    ):
        daemon = Daemon(
            reactor,
            store,
            directory,
            group=options.group,
            member=member_of_store(str(directory)),
            behind=behind,
            disk_turn=wait_in_queue,
        )
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: reactor.callFromThread(reactor.stop))
            print(f"shmd: serves {directory}", flush=True)
            reactor.run(installSignalHandlers=False)
        finally:
            daemon.close()


def main(argv: list[str] | None = None) -> int:
    """Serve until a signal arrives; returns the exit status."""
    options = parser().parse_args(argv)
    write: Any = textFileLogObserver(sys.stderr)
    globalLogBeginner.beginLoggingTo([write], redirectStandardIO=False, discardBuffer=True)
    from twisted.internet import reactor as twisted_reactor

    reactor: Any = twisted_reactor
    reactor.seconds = time.monotonic  # setting the wall clock must not trigger timeouts
    try:
        serve(reactor, options)
    except (ShmdError, StorageError, OSError) as error:
        print(f"shmd: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
