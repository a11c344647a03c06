"""The private files of an attempt: scratch directory, standard input, standard error.

    <spool>/scratch/<life>/<number>/         the program's directory, CIEL_SCRATCH
    <spool>/scratch/<life>/<number>.stderr   its standard error
    <spool>/scratch/<life>/<number>.stdout   the standard output of an interactive program
    <spool>/scratch/<life>/<number>.in/      inputs that are inline in their references

`<spool>` is the work directory, and `<life>` identifies a process of the worker.

The worker removes these files when the attempt succeeds. If it fails, the worker moves them to
`kept`, and names the directory in the fault. A directory that a program left empty is used again:
on most file systems, creating and removing a directory costs more than starting a program. A worker
holds a lease on its `<life>` directory. The next worker that starts with the same work directory
removes the directories that a killed worker has left.
"""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Set
from contextlib import suppress
from pathlib import Path

from ciel.execution.report import STDERR_TAIL_BYTES, printed_text, tail_text
from ciel.storage import leases
from ciel.storage.space import reserve_blocks
from ciel.storage.trees import move_tree, remove_tree

_PRIVATE_DIRECTORY = stat.S_IFDIR | 0o700
_SPARE_MAX = 64
PIECE_BYTES = 64 << 10
"""Printed text is read in pieces of this size; longer lines are split."""
PIECES_PER_CHECK = 4
"""Pieces read at a time while a program runs; reading blocks the reactor."""
BEHIND_MAX_BYTES = 1 << 20
"""Text further than this before the end of the file is skipped."""


class ScratchPool:
    """The scratch directories of a worker. Unused ones are handed out again."""

    def __init__(self, spool: Path) -> None:
        self.spool = str(spool)
        self._spare: list[Scratch] = []
        self._made = 0
        (spool / "scratch").mkdir(parents=True, exist_ok=True, mode=0o700)
        self._root_fd = os.open(spool / "scratch", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        leases.sweep(self._root_fd)
        self._life = secrets.token_hex(8)
        self._life_fd = leases.hold(self._life, parent_fd=self._root_fd)

    def take(self) -> Scratch:
        """Hand out an empty directory."""
        if self._spare:
            scratch = self._spare.pop()
            scratch.begin()
            return scratch
        self._made += 1
        return Scratch(self.spool, f"{self._life}/{self._made}")

    def take_back(self, scratch: Scratch) -> bool:
        """Keep an unused directory for another attempt; False if the caller must remove it."""
        if len(self._spare) >= _SPARE_MAX or not scratch.is_untouched():
            return False
        self._spare.append(scratch)
        return True

    def close(self) -> None:
        """Remove all directories of this worker process; more calls do nothing."""
        if self._root_fd < 0:
            return
        self._spare.clear()
        os.close(self._life_fd)
        leases.remove_unheld(self._life, parent_fd=self._root_fd)
        os.close(self._root_fd)
        self._root_fd = -1


class Scratch:
    """The private files of one attempt, created here; `remove` or `keep` ends their life."""

    def __init__(self, spool: str | Path, name: str) -> None:
        self._base = f"{spool}/scratch/{name}"
        self.path = f"{self._base}/"
        self.stderr_path = f"{self._base}.stderr"
        self.stdout_path = f"{self._base}.stdout"
        self._inputs: str | None = None
        self._input_count = 0
        self._stderr_bytes: int | None = None  # not known while a program runs
        os.mkdir(self._base, 0o700)
        self._reserve_stderr()

    def _reserve_stderr(self) -> None:
        """Reserve the blocks for what a failure shows of standard error.

        So the program can still say why it failed if it has filled the disk. A launcher that opens
        the file must not truncate it. Without room for that the program is started nevertheless.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(OSError):
            fd = os.open(self.stderr_path, flags, 0o600)
            try:
                reserve_blocks(fd, STDERR_TAIL_BYTES, keep_size=True)
            finally:
                os.close(fd)

    def begin(self) -> None:
        """Prepare for another attempt."""
        self._stderr_bytes = None

    def inputs_directory(self) -> str:
        """Return the directory for inputs, which is not the program's own."""
        if self._inputs is None:
            self._inputs = f"{self._base}.in"
            os.mkdir(self._inputs, 0o700)
        return self._inputs

    @property
    def written_inputs(self) -> str:
        """The directory for inputs if there is one; otherwise empty."""
        return self._inputs or ""

    def drop_inputs(self) -> None:
        """Remove the inputs that were written; the program continues with another task."""
        for number in range(1, self._input_count + 1):
            with suppress(OSError):  # the program may have removed it
                os.unlink(f"{self._inputs}/{number}")
        self._input_count = 0

    def write_input(self, content: bytes) -> str:
        """Write a file for an input that is not in the store; return its path."""
        directory = self.inputs_directory()
        self._input_count += 1
        path = f"{directory}/{self._input_count}"
        with open(path, "wb") as file:
            file.write(content)
        return path

    def place(self, name: str, source: str) -> None:
        """Link a file into the scratch directory."""
        target = self.path + name
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.symlink(source, target)

    def copy(self, name: str, source: str, *, executable: bool = False) -> None:
        """Copy a file into the scratch directory.

        This is for programs that may outlive the original, or that execute the file.
        """
        target = self.path + name
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(source, target)
        if executable:
            os.chmod(target, 0o700)

    def copy_executable(self, source: str) -> str:
        """Copy an input that the program executes; files of the store are never executable."""
        path = self.write_input(b"")
        shutil.copyfile(source, path)
        os.chmod(path, 0o700)
        return path

    @staticmethod
    def open_printed(path: str) -> int:
        """Return a descriptor of the output of a running program; -1 if there is no file."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(path, flags)
        except OSError:
            return -1
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        return -1

    def stderr_size(self) -> int:
        """Return the size of the standard error of a program that has ended.

        It is positive if the program has replaced the file by something else.
        """
        if self._stderr_bytes is None:
            try:
                status = os.lstat(self.stderr_path)
                self._stderr_bytes = status.st_size if stat.S_ISREG(status.st_mode) else 1
            except OSError:
                self._stderr_bytes = 0
        return self._stderr_bytes

    def stderr_tail(self, start_bytes: int = 0, path: str = "") -> str:
        """Return the end of standard error (or of the file at `path`) as text.

        The text starts at `start_bytes` at the earliest; it is empty if there is no file.
        """
        path = path or self.stderr_path
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode):
                return ""
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(size - STDERR_TAIL_BYTES, start_bytes))
                return tail_text(file.read(STDERR_TAIL_BYTES), size - start_bytes)
        except OSError:
            return ""

    def lines_from(
        self, start_bytes: int, *, to_the_end: bool = False, path: str = ""
    ) -> tuple[str, int]:
        """Return the next whole lines of standard error (or of the file at `path`), and their end.

        They start at `start_bytes`. `to_the_end`: also return the last incomplete line. Text too
        far before the end of the file is skipped.
        """
        path = path or self.stderr_path
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode):
                return "", start_bytes
            with open(path, "rb") as file:
                size_bytes = os.fstat(file.fileno()).st_size
                first = max(start_bytes, size_bytes - BEHIND_MAX_BYTES)
                file.seek(first)
                said = file.read(PIECE_BYTES)
        except OSError:
            return "", start_bytes
        left_out = ""
        if first > start_bytes:
            skipped = said.find(b"\n") + 1
            said = said[skipped:]
            first += skipped
            left_out = f"({first - start_bytes} bytes omitted)\n"
        is_last = first + len(said) >= size_bytes
        whole = said.rfind(b"\n") + 1
        if not (is_last and to_the_end) and (whole or is_last):  # else the line is split
            said = said[:whole]
        return left_out + printed_text(said), first + len(said)

    def log_lines(
        self,
        start_bytes: int,
        log: Callable[[str], None],
        *,
        to_the_end: bool = False,
        path: str = "",
    ) -> int:
        """Log standard error (or the file at `path`) from `start_bytes` on; return up to where.

        While the program runs (not `to_the_end`), a call logs a limited amount.
        """
        path = path or self.stderr_path
        for count in itertools.count():
            if _size_bytes(path) <= start_bytes:
                break
            if count == PIECES_PER_CHECK and not to_the_end:
                break
            text, end_bytes = self.lines_from(start_bytes, to_the_end=to_the_end, path=path)
            if end_bytes <= start_bytes:
                break
            start_bytes = end_bytes
            log(text)
        return start_bytes

    def made_files(self, placed: Set[str]) -> list[str]:
        """Return the names of the files in the program's directory, except the `placed` ones."""
        try:
            return sorted([name for name in os.listdir(self._base) if name not in placed])
        except OSError:  # the program may have removed it
            return []

    def is_untouched(self) -> bool:
        """Whether nothing was changed, so that another attempt may use the directory."""
        if self._inputs is not None or self.stderr_size():
            return False
        try:
            status = os.stat(self._base, follow_symlinks=False)
            return status.st_mode == _PRIVATE_DIRECTORY and not os.listdir(self._base)
        except OSError:
            return False

    def is_clean(self) -> bool:
        """Whether there is only an empty directory to remove, as after most programs."""
        if self._inputs is not None:
            return False
        try:
            with os.scandir(self._base) as entries:
                return next(entries, None) is None
        except OSError:  # the program may have removed it, or changed its mode
            return False

    def remove(self) -> None:
        """Remove everything.

        This takes long if the program left many files: then call it in a thread.
        """
        _remove_file(self.stderr_path)
        if self._inputs is not None:
            remove_tree(self._inputs)
            _remove_file(self.stdout_path)  # of interactive programs, which have inputs
        try:
            os.rmdir(self._base)
        except OSError:
            remove_tree(self._base)

    def keep(self, kept: Path) -> None:
        """Move the files to `kept`, a directory that does not exist yet."""
        kept.mkdir(parents=True, mode=0o700)
        for place, name in (
            (self.stderr_path, "stderr"), (self.stdout_path, "stdout"), (self._base, "scratch")
        ):  # fmt: skip
            if os.path.lexists(place):  # the program may have removed it
                move_tree(place, kept / name)
        self.remove()


def _size_bytes(path: str) -> int:
    """Return the size of a file that may grow; 0 if there is none."""
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _remove_file(path: str) -> None:
    """Remove a file, or a directory that a program has put in its place."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError:  # a directory
        remove_tree(path)
