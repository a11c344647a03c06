"""Carries out one task of GA4GH TES: places inputs, runs its commands, and stores outputs.

Standard input has the JSON of the task, and the paths of the files for the status and the log, each
ended by a NUL. The files of the task lie in a directory that takes the place of `/`: declared paths
in the words and variables of a command are replaced by paths below it. A command that fails is part
of the log; this program fails only if it cannot write the log.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

LOG_MAX_BYTES = 16 << 10
"""How much of the end of a command's output the log contains."""
NETWORK_TIMEOUT_S = 60.0
"""How long a server may send or take nothing."""
STREAMS = ("stdin", "stdout", "stderr")
CANNOT_START = 127
"""The exit status of a command that cannot be started, as in shells."""


class TransferError(Exception):
    """An input cannot be placed, or an output cannot be stored."""


class Root:
    """The directory that takes the place of `/`, and the paths that are below it."""

    def __init__(self, path: str, task: dict[str, Any]) -> None:
        self.path = path
        executors = task["executors"]
        declared = {each["path"] for each in (*task.get("inputs", []), *task.get("outputs", []))}
        declared |= {
            each["path_prefix"] for each in task.get("outputs", []) if "path_prefix" in each
        }
        declared |= {*task.get("volumes", [])}
        for name in ("workdir", *STREAMS):
            declared |= {each[name] for each in executors if name in each}
        plain = sorted({path.rstrip("/") for path in declared} - {""}, key=len, reverse=True)
        words = "|".join(map(re.escape, plain)) or "(?!)"
        self._declared = re.compile(rf"(?<![\w./-])(?:{words})(?![\w.-])")

    def real(self, path: str) -> str:
        """Return where a path of the task is."""
        return self.path + os.path.normpath("/" + path.lstrip("/")).rstrip("/")

    def rewritten(self, text: str) -> str:
        """Replace the declared paths in a text."""
        return self._declared.sub(lambda found: self.real(found[0]), text)


# --- files ----------------------------------------------------------------------------------------


def place(given: dict[str, Any], path: str) -> None:
    """Create an input at a path."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if "content" in given:
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(given["content"])
        return
    source = local_path(given["url"])
    if source is None:
        with open_url(given["url"]) as reader, open(path, "wb") as file:
            shutil.copyfileobj(reader, file)
    elif os.path.isdir(source):
        shutil.copytree(source, path, dirs_exist_ok=True)
    else:
        shutil.copy(source, path)


def store(output: dict[str, Any], root: Root) -> Iterator[dict[str, str]]:
    """Store an output; return its files as the log lists them."""
    for path, url in matches(output, root):
        target, real = local_path(url), root.real(path)
        if not os.path.exists(real):
            raise TransferError(f"no command has written the output {path}")
        if target is None:
            send(real, url)
        elif os.path.isdir(real):
            shutil.copytree(real, target, dirs_exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy(real, target)
        yield from listed(path, url, real)


def matches(output: dict[str, Any], root: Root) -> list[tuple[str, str]]:
    """Return the paths that an output names, each with its URL; a pattern may name several."""
    path, url = output["path"], output["url"]
    if not glob.has_magic(path):
        return [(path, url)]
    prefix = output.get("path_prefix", os.path.dirname(path)).rstrip("/")
    found = [real.removeprefix(root.path) for real in sorted(glob.glob(root.real(path)))]
    return [(each, url.rstrip("/") + each.removeprefix(prefix)) for each in found]


def listed(path: str, url: str, real: str) -> Iterator[dict[str, str]]:
    """List a file, or all files of a directory, for the log."""
    if not os.path.isdir(real):
        yield {"path": path, "url": url, "size_bytes": str(os.path.getsize(real))}
        return
    for name in sorted(os.listdir(real)):
        yield from listed(f"{path}/{name}", f"{url}/{name}", os.path.join(real, name))


def local_path(url: str) -> str | None:
    """Return the path of a file on this host; None for a URL of a server."""
    if url.startswith("/"):
        return url
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return unquote(parts.path)
    if parts.scheme in ("http", "https"):
        return None
    raise TransferError(f"{url}: only file, http and https are supported")


def open_url(url: str) -> BinaryIO:
    """Open a URL of a server to read it."""
    opened: BinaryIO = urllib.request.urlopen(url, timeout=NETWORK_TIMEOUT_S)
    return opened


def send(path: str, url: str) -> None:
    """Send a file to a server."""
    if os.path.isdir(path):
        raise TransferError(f"{url}: a directory can be stored in files only")
    with open(path, "rb") as file:
        headers = {"Content-Length": str(os.path.getsize(path))}
        request = urllib.request.Request(url, file, headers, method="PUT")
        urllib.request.urlopen(request, timeout=NETWORK_TIMEOUT_S).close()


# --- commands -------------------------------------------------------------------------------------


def run(executor: dict[str, Any], root: Root) -> dict[str, Any]:
    """Run one command; return its entry of the log.

    The command runs without its image. A runtime for containers would start here, with `root.path`
    mounted.
    """
    streams = {name: f"{root.path}.{name}" for name in ("stdout", "stderr")}
    streams |= {name: root.real(executor[name]) for name in STREAMS if name in executor}
    directory = root.real(executor.get("workdir", "/")) or root.path
    for path in (*(os.path.dirname(stream) for stream in streams.values()), directory):
        os.makedirs(path, exist_ok=True)
    env = {name: root.rewritten(text) for name, text in executor.get("env", {}).items()}
    started = now()
    with (
        open(streams.get("stdin", os.devnull), "rb") as stdin,
        open(streams["stdout"], "wb") as stdout,
        open(streams["stderr"], "wb") as stderr,
    ):
        words = [root.rewritten(word) for word in executor["command"]]
        try:
            done = subprocess.run(
                words, stdin=stdin, stdout=stdout, stderr=stderr, cwd=directory,
                env={**os.environ, **env}, check=False,
            )  # fmt: skip
            status = done.returncode
        except OSError as error:
            stderr.write(f"{error}\n".encode())
            status = CANNOT_START
    entry = {"start_time": started, "end_time": now(), "exit_code": status}
    return {**entry, **{name: tail(streams[name]) for name in ("stdout", "stderr")}}


def tail(path: str) -> str:
    """Return the end of a file as text."""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - LOG_MAX_BYTES))
        return file.read().decode(errors="replace")


def now() -> str:
    """Return the time as TES writes it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def carry_out(task: dict[str, Any], path: str) -> tuple[str, dict[str, Any]]:
    """Carry out a task in a new directory; return its state and its log."""
    log: dict[str, Any] = {"logs": [], "outputs": [], "start_time": now(), "system_logs": []}
    log["metadata"] = {"host": socket.gethostname()}
    try:
        state = take_steps(task, Root(path, task), log)
    except (TransferError, OSError, ValueError) as error:
        state = "SYSTEM_ERROR"
        log["system_logs"].append(str(error) or type(error).__name__)
    log["end_time"] = now()
    return state, log


def take_steps(task: dict[str, Any], root: Root, log: dict[str, Any]) -> str:
    """Place the inputs, run the commands and store the outputs; return the state."""
    for path in (root.path, *map(root.real, task.get("volumes", []))):
        os.makedirs(path, exist_ok=True)
    for given in task.get("inputs", []):
        place(given, root.real(given["path"]))
    for output in task.get("outputs", []):
        os.makedirs(os.path.dirname(root.real(output["path"])), exist_ok=True)
    for executor in task["executors"]:
        entry = run(executor, root)
        log["logs"].append(entry)
        if entry["exit_code"] != 0 and not executor.get("ignore_error"):
            return "EXECUTOR_ERROR"
    for output in task.get("outputs", []):
        log["outputs"] += store(output, root)
    return "COMPLETE"


def main() -> None:
    """Read the task, carry it out, and write its status and its log."""
    document, status_path, log_path = sys.stdin.buffer.read().split(b"\0")[:3]
    state, log = carry_out(json.loads(document), os.path.abspath("root"))
    for path, content in ((status_path, {"state": state}), (log_path, log)):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file)


if __name__ == "__main__":
    main()
