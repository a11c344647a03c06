"""Serves a volume to NBD clients by nbdkit (NET-2)."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import subprocess
import tempfile
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ciel.access.paths import state_directory
from ciel.cli.outcome import Status, say
from ciel.cli.output.printing import print_json
from ciel.client.client import Client
from ciel.client.memory import find_volume
from ciel.core.errors import CielError
from ciel.memory import companion
from ciel.memory.companion import Companion
from ciel.memory.master import VolumeOwner
from ciel.memory.page_server import PAGE_BYTES

THREADS: Final = range(4, 17)
"""How many threads nbdkit has by default: two for each core, within this range. On two cores, 16
threads pass nbdkit's lock for each request, and use twice the CPU time of 4."""

_SOURCES: Final = Path(companion.__file__).parent
_FILES: Final = ("nbdkit/ciel_memory.c", "page_client.c", "page_cache.c", "codecs.c", "checksum.c")
_HEADERS: Final = ("page_client.h", "page_cache.h", "page_server.h", "codecs.h")


class ExportError(CielError):
    """A volume cannot be exported; the message says why."""


def export(client: Client, args: Namespace) -> int:
    """Serve a volume at a socket until nbdkit ends; raises CielError."""
    name, socket = args.name, os.path.abspath(args.socket)
    volume = find_volume(client, name)
    nbdkit = shutil.which("nbdkit")
    if nbdkit is None:
        raise ExportError("nbdkit is not installed (Debian: nbdkit, nbdkit-plugin-dev)")
    with tempfile.TemporaryDirectory(prefix="ciel-") as directory:
        command = [
            nbdkit, "--foreground", "--exit-with-parent", "--pidfile", f"{directory}/ready",
            "--unix", socket, "--threads", str(args.threads or _default_threads()),
            str(_plugin()), f"companion={directory}/companion",
            f"volume={volume['number']}", f"extents={volume['extents']}",
            f"compress={volume['compress']}", f"cache={args.cache // PAGE_BYTES}",
            f"timeout={args.timeout}",
        ]  # fmt: skip
        os.mkfifo(f"{directory}/ready")
        ready = os.open(f"{directory}/ready", os.O_RDONLY | os.O_NONBLOCK)
        with (
            os.fdopen(ready),
            _companion(client, name, f"{directory}/companion"),
            subprocess.Popen(command) as process,
        ):
            try:
                if _serves(process, ready):
                    uri = f"nbd+unix:///?socket={socket}"
                    if args.json:
                        print_json({"uri": uri})
                    else:
                        say(f"volume {name} at {uri}")
                status = process.wait()
            finally:
                process.terminate()
    return Status.DONE if status == 0 else Status.FAILED


def _default_threads() -> int:
    cores = len(os.sched_getaffinity(0))
    return min(max(2 * cores, THREADS[0]), THREADS[-1])


def _serves(process: subprocess.Popen[bytes], ready: int) -> bool:
    """Wait until nbdkit has written its process id, or has ended; return whether it serves."""
    ended = os.pidfd_open(process.pid)
    try:
        return ready in select.select([ready, ended], [], [])[0]
    finally:
        os.close(ended)


@contextmanager
def _companion(client: Client, name: str, path: str) -> Iterator[None]:
    """Answer nbdkit's plug-in at a socket."""
    with companion.listen(path) as listening:

        def accept() -> None:
            connected, _ = listening.accept()
            Companion(VolumeOwner(client, name), connected)

        threading.Thread(target=accept, daemon=True).start()
        yield


def _plugin() -> Path:
    """Return nbdkit's plug-in, which is compiled if it is missing or old; raises ExportError."""
    target = state_directory(os.environ) / "nbdkit-ciel-memory-plugin.so"
    sources = [_SOURCES / name for name in _FILES]
    headers = [_SOURCES / name for name in _HEADERS]
    newest = max(source.stat().st_mtime for source in (*sources, *headers))
    if target.exists() and target.stat().st_mtime > newest:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    compiler = shlex.split(os.environ.get("CC", "cc"))
    flags = ["-O2", "-fPIC", "-shared", "-pthread", f"-I{_SOURCES}"]
    made = target.with_suffix(f".{os.getpid()}")
    try:
        subprocess.run(
            [*compiler, *flags, "-o", str(made), *map(str, sources)], check=True,
            capture_output=True, text=True,
        )  # fmt: skip
    except OSError as error:
        raise ExportError(f"nbdkit's plug-in cannot be compiled: {error.strerror}") from None
    except subprocess.CalledProcessError as error:
        text = error.stderr.strip().splitlines()
        why = text[0] if text else f"exit status {error.returncode}"
        raise ExportError(
            f"nbdkit's plug-in cannot be compiled: {why} (Debian: gcc, nbdkit-plugin-dev)"
        ) from None
    made.replace(target)
    return target
