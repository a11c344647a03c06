"""`ciel shmfs`: mounts shared memory as a directory, with the program `shmfs-fuse`.

An installation contains that program only if libfuse3 was installed when ciel was installed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from ciel.cli.outcome import Status, UsageError, say
from ciel.cli.parsing.options import make_parser
from ciel.cli.parsing.verbs import show_verbs

_ABOUT = "Shows shared memory as a directory."
_PACKAGES = "on Debian: apt install fuse3 libfuse3-dev pkg-config"


def main(prog: str, words: Sequence[str]) -> int:
    """Run the subcommand."""
    verb = words[0] if words else ""
    if verb in VERBS:
        summary, add_arguments, act = VERBS[verb]
        parser = make_parser(f"ciel shmfs {verb}", f"{summary.capitalize()}.")
        add_arguments(parser)
        return act(parser.parse_args(words[1:]))
    summaries = {name: summary for name, (summary, _, _) in VERBS.items()}
    return show_verbs("ciel shmfs", _ABOUT, summaries, words)


def _add_mount(parser: ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="an empty directory")
    parser.add_argument("--name", help="the image (default: SHMFS_NAME, or shmfs)")
    parser.add_argument("--allow-other", action="store_true", help="allow access by other users")
    parser.add_argument(
        "--writeback",
        action="store_true",
        help="collect small writes; only if no other process writes to the image",
    )


def _mount(args: Namespace) -> int:
    options = [] if args.name is None else [f"--name={args.name}"]
    options += ["--allow-other"] * args.allow_other + ["--writeback"] * args.writeback
    process = subprocess.Popen(
        [_program(), *options, "--", os.path.abspath(args.directory)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        start_new_session=True,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    if not process.stdout.readline():  # it prints a line when it is ready
        text = process.stderr.read().strip()
        process.wait()
        say(text.removeprefix("shmfs-fuse: ") or f"shmfs-fuse ended with {process.returncode}")
        return Status.FAILED
    say(f"it stays mounted until ciel shmfs unmount {shlex.quote(args.directory)}")
    return Status.DONE


def _add_unmount(parser: ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="where it is mounted")


def _unmount(args: Namespace) -> int:
    try:
        command = ["fusermount3", "-u", "--", args.directory]
        process = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    except FileNotFoundError:
        raise UsageError(f"fusermount3 is not installed ({_PACKAGES})") from None
    if process.returncode:
        say(process.stderr.strip().removeprefix("fusermount3: "))
        return Status.FAILED
    return Status.DONE


def _program() -> str:
    """Return the path of `shmfs-fuse`, which is installed beside the Python interpreter."""
    beside = Path(sys.executable).with_name("shmfs-fuse")
    found = shutil.which("shmfs-fuse") or (str(beside) if os.access(beside, os.X_OK) else None)
    if found is None:
        raise UsageError(
            "shmfs-fuse is not installed: it is built if libfuse3 exists when ciel is installed "
            f"({_PACKAGES}; then install ciel again, in a checkout with make -B dev)"
        )
    if not shutil.which("fusermount3"):
        raise UsageError(f"fusermount3, which mounts, is not installed ({_PACKAGES})")
    return found


VERBS = {
    "mount": ("show shared memory as a directory", _add_mount, _mount),
    "unmount": ("unmount the directory", _add_unmount, _unmount),
}
