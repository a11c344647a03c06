"""Run as a program: the daemon of a store that is one core of an image, until standard input ends.

    python core_daemon.py DIRECTORY INSTANCE CORE

Prints `ready`, and its counters at the end.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from twisted.internet import reactor as twisted_reactor
from twisted.internet import stdio
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure

from ciel.net.cores.connections import Cores
from ciel.scc.store import open_scc
from ciel.shm.daemon import Daemon
from ciel.shm.layout import member_of_worker

IMAGE = {"capacity": "4MiB", "cores": "4", "block": "4096", "messages": "yes", "spill": "no"}


reactor: Any = twisted_reactor  # in Twisted's types it is a module


class _UntilTheEnd(Protocol):
    def connectionLost(self, reason: Failure = connectionDone) -> None:
        reactor.stop()


def main() -> None:
    """Serve one store."""
    directory, instance, core = sys.argv[1:]
    options = IMAGE | {"instance": instance, "core": core}
    store = open_scc(options, Path(directory))
    message_core = store.message_core()
    assert message_core is not None
    cores = Cores(reactor, message_core)
    daemon = Daemon(
        reactor, store, Path(directory), group="cores", member=member_of_worker(f"core:{core}"),
        cores=cores,
    )  # fmt: skip
    stdio.StandardIO(_UntilTheEnd())  # type: ignore[no-untyped-call]  # so is Twisted

    def until_known() -> None:
        """Report that this daemon and all others that live know each other."""
        others = [n for n in range(message_core.count) if n != message_core.number]
        if sum(message_core.lives(number) for number in others) == len(cores.names()):
            print("ready", flush=True)
        else:
            reactor.callLater(0.01, until_known)

    until_known()
    reactor.run()
    print(json.dumps(daemon.figures()), flush=True)
    daemon.close()
    cores.close()
    store.close()


if __name__ == "__main__":
    main()
