"""A stand-in for a worker, for tests of SDKs: runs one program, and sends it messages over FIFOs.

The test sends the worker's messages, and compares the program's messages as JSON.
"""

from __future__ import annotations

import json
import os
import select
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

READ_BYTES = 1 << 16
PATIENCE_S = 20.0


class StandIn:
    """A program, and the worker's end of its two FIFOs; a context manager.

    `as_the_original`: open one FIFO after the other, as the original CIEL does; each open waits
    until the program opens the FIFO, too.
    """

    def __init__(
        self,
        directory: Path,
        argv: Sequence[str],
        environ: Mapping[str, str] | None = None,
        as_the_original: bool = False,
    ) -> None:
        self.said, self.heard = directory / "from_process", directory / "to_process"
        for fifo in (self.said, self.heard):
            os.mkfifo(fifo)
        self._errors = (directory / "stderr").open("w+")
        self._buffer = b""
        if not as_the_original:
            self._reads = os.open(self.said, os.O_RDONLY | os.O_NONBLOCK)
            self._writes = os.open(self.heard, os.O_RDWR)
        flags = ["--write-fifo", str(self.said), "--read-fifo", str(self.heard)]
        self.program = subprocess.Popen(
            [*argv, *flags],
            env=dict(os.environ if environ is None else environ),
            stdin=subprocess.DEVNULL,
            stdout=self._errors,  # the program must not print there
            stderr=self._errors,
        )
        if as_the_original:
            try:
                self._reads = self._patiently(lambda: os.open(self.said, os.O_RDONLY))
                self._writes = self._patiently(lambda: os.open(self.heard, os.O_WRONLY))
            except BaseException:
                self.program.kill()
                self.program.wait()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self.program.kill()
        self.program.wait()
        self.hang_up()
        os.close(self._reads)
        self._errors.close()

    def _patiently(self, call: Callable[[], int]) -> int:
        """Make a call that may block, with a time limit."""
        results: list[int] = []
        thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        assert results, f"the program does not open its FIFO: {self.errors()}"
        return results[0]

    def say(self, method: str, args: Any = None) -> None:
        """Send a message to the program, as one frame."""
        text = json.dumps([method, {} if args is None else args]).encode()
        frame = memoryview(struct.pack(">I", len(text)) + text)
        while frame:
            frame = frame[os.write(self._writes, frame) :]

    def start_task(self, *pargs: Any, **kwargs: Any) -> None:
        self.say("start_task", {"proc_pargs": list(pargs), "proc_kwargs": kwargs})

    def hear(self) -> tuple[str, Any]:
        """Wait for the program's next message."""
        while True:
            if len(self._buffer) >= 4:
                end = 4 + struct.unpack(">I", self._buffer[:4])[0]
                if len(self._buffer) >= end:
                    method, args = json.loads(self._buffer[4:end])
                    self._buffer = self._buffer[end:]
                    return method, args
            piece = self._read()
            assert piece, (
                f"the program closed its FIFO after {self._buffer!r:.100}: {self.errors()}"
            )
            self._buffer += piece

    def answer(self, method: str, args: Any = None) -> Any:
        """Wait for a call of this method, reply to it, and return its arguments."""
        heard, its_args = self.hear()
        assert heard == method, f"expected {method}, received {heard} {its_args}: {self.errors()}"
        if args is not None:
            self.say(method, args)
        return its_args

    def _read(self) -> bytes:
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            ready, _, _ = select.select([self._reads], [], [], 0.2)
            if ready:
                return os.read(self._reads, READ_BYTES)
            assert self.program.poll() is None, f"the program has ended: {self.errors()}"
        raise AssertionError(f"the program sends no message: {self.errors()}")

    def silence(self) -> bool:
        """Wait for the end of the program; return whether it sent no further message."""
        self.program.wait(PATIENCE_S)
        return not self._buffer and not os.read(self._reads, READ_BYTES)

    def hang_up(self) -> None:
        """Close the FIFO to the program."""
        if self._writes >= 0:
            os.close(self._writes)
            self._writes = -1

    def status(self) -> int:
        """Wait for the end of the program; return its exit status."""
        return self.program.wait(PATIENCE_S)

    def errors(self) -> str:
        """Return everything that the program printed."""
        self._errors.flush()
        self._errors.seek(0)
        return self._errors.read()


def opened(path: Path, **extra: object) -> dict[str, object]:
    """Return the reply to `open_ref_async` for an input that still grows; `extra`: fields that
    differ.
    """
    reply = {
        "sending_fd": False,
        "filename": str(path),
        "blocking": False,
        "done": False,
        "size": 0,
    }
    return reply | extra
