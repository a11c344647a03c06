"""What a program that runs from its start to its end is given: paths for its inputs and outputs,
standard input, environment, and a command line in which they stand.
"""

from __future__ import annotations

import os
from typing import Final

from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Stream, Sweetheart, Value
from ciel.execution.environment import task_environment
from ciel.execution.executor import InputPath, OutputPath, Program
from ciel.launch.messages import DEV_NULL, Descriptor, File, LaunchSpec, Standard
from ciel.storage.interface import ObjectReader
from ciel.worker.attempts.batch_attempt import Hosted
from ciel.worker.attempts.scratch import Scratch
from ciel.worker.attempts.workplace import Workplace
from ciel.worker.streams.growing import Growing, lasting_path
from ciel.worker.streams.stdin_feeder import Feeder, Trace, pipe

COPIED_MAX_BYTES: Final = 1 << 20
"""Inputs of this size are copied for programs of root that could change them: it takes 0.5 ms."""


class Preparation:
    """One attempt's, in its scratch directory; what it opens is the attempt's to close. Everything
    may raise StorageError and OSError.
    """

    def __init__(self, place: Workplace, hosted: Hosted, program: Program) -> None:
        self._place = place
        self._hosted = hosted
        self._program = program
        self._scratch: Scratch = place.scratch.take()
        hosted.scratch = self._scratch
        hosted.search_path = program.env.get("PATH")
        hosted.level = program.store
        hosted.cwd = program.cwd
        hosted.names = {object_id: name for name, object_id in program.files.items()}
        if program.traces:
            hosted.trace = Trace(place.reactor.seconds)

    def spec(self, at_most: int) -> LaunchSpec:
        """Prepare all of it; return what is to be launched, once so few others run."""
        hosted, program, scratch = self._hosted, self._program, self._scratch
        hosted.argv = [self._path(item) for item in program.argv]
        for name, object_id in program.files.items():
            path = self._input_path(object_id)
            if name in program.executables:
                scratch.copy(name, path, executable=True)
            else:
                scratch.place(name, path)
        env = dict(program.env)
        for name, items in program.lists.items():
            lines = "".join([f"{self._path(item)}\n" for item in items])
            env[name] = scratch.write_input(lines.encode())
        stdin = self._stdin()
        stdout, stderr = File(scratch.stderr_path, append=True), File(scratch.stderr_path)
        if program.stdout is not None:
            hosted.stdout = program.stdout
            stdout = File(self._output_path(program.stdout))
        self._prefer()
        return LaunchSpec(
            argv=hosted.argv,
            cwd=program.cwd or scratch.path,
            env=task_environment(
                hosted.task.spec, hosted.key[1], self._place.worker, scratch.path, env
            ),
            stdin=stdin,
            stdout=stdout,
            stderr=Standard.STDOUT if program.stdout is None else stderr,
            at_most=at_most,
        )

    def _path(self, item: str | InputPath | OutputPath) -> str:
        if isinstance(item, str):
            return item
        if isinstance(item, OutputPath):
            return self._output_path(item.number)
        path = self._input_path(item.object_id)
        return self._scratch.copy_executable(path) if item.executable else path

    def _output_path(self, number: int) -> str:
        hosted = self._hosted
        writer = self._place.store.begin_in(hosted.level, hosted.task.spec.outputs[number])
        hosted.writers[number] = writer
        if writer.path is None:
            raise OSError("this store cannot take the output of a program by name")
        return writer.path

    def _growing(self, object_id: ObjectId) -> Growing | None:
        """Return an input that is still being made, if it is."""
        if not isinstance(self._hosted.task.inputs.get(object_id), Stream):
            return None
        growing = self._place.streams.get(object_id)
        return None if growing is None or growing.is_whole else growing

    def _input_path(self, object_id: ObjectId, *, read_once: bool = False) -> str:
        """Give an input a name that opens, for as long as the attempt runs, or once."""
        hosted, scratch = self._hosted, self._scratch
        ref = hosted.task.inputs.get(object_id)
        if isinstance(ref, Value):
            return scratch.write_input(ref.content)
        if isinstance(ref, Stream):
            growing = self._place.streams.get(object_id)
            if growing is not None and growing.is_whole:
                hosted.holds.append(self._place.streams.hold(growing))
                return growing.name()
            if growing is not None:
                piping = pipe(self._place.reactor, growing, self._place.streams)
                piping.chunk_bytes = self._program.chunk_bytes
                piping.trace_as(hosted.trace, [*hosted.task.inputs].index(object_id))
                hosted.pipings.append(piping)
                return piping.name
        reader = self._place.open(object_id, ref)
        hosted.readers.append(reader)
        path = lasting_path(reader, read_once=read_once)
        if path is None or self._is_private(reader, read_once):
            return scratch.write_input(reader.read(0, reader.size_bytes))
        return path

    def _is_private(self, reader: ObjectReader, read_once: bool) -> bool:
        """Whether a program is to get a copy of an input, since it could change the file that other
        tasks read. What is too large for that is looked at again once the program has ended.
        """
        if self._place.launching.protects:
            return False
        if (before := self._place.fingerprint(reader)) is None:
            return False
        if os.geteuid() == 0 and not read_once and reader.size_bytes <= COPIED_MAX_BYTES:
            return True
        self._hosted.fingerprints.append((reader, before))
        return False

    def _stdin(self) -> File | Descriptor:
        objects = self._program.stdin
        if self._program.names:
            words = [f"{self._path(item)}\0" for item in self._program.names]
            return File(self._scratch.write_input("".join(words).encode()))
        if len(objects) == 1 and self._growing(objects[0]) is None:
            return File(self._input_path(objects[0], read_once=True))
        return self._joined(objects) if objects else DEV_NULL

    def _joined(self, objects: tuple[ObjectId, ...]) -> File | Descriptor:
        """Concatenate inputs: small ones, all inside their references, in a file; others through a
        pipe.
        """
        hosted = self._hosted
        refs = [hosted.task.inputs.get(object_id) for object_id in objects]
        values = [ref for ref in refs if isinstance(ref, Value)]
        if len(values) == len(refs):
            return File(self._scratch.write_input(b"".join([value.content for value in values])))
        sources = [self._growing(o) or self._input_path(o) for o in objects]
        hosted.feeder = Feeder(self._place.reactor, sources, self._place.streams)
        hosted.feeder.chunk_bytes = self._program.chunk_bytes
        hosted.feeder.trace_as(hosted.trace, 0)
        return Descriptor(hosted.feeder.descriptor)

    def _prefer(self) -> None:
        known = [self._hosted.task.inputs.get(object_id) for object_id in self._program.preferred]
        for ref in known:
            if isinstance(ref, Concrete | Sweetheart):
                self._place.prefer(ref)
