"""Opens the inputs and outputs of a batch program, and describes its launch.

The command line and the environment of the program contain their paths.
"""

from __future__ import annotations

import os
from typing import Final

from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Stream, Sweetheart, Value
from ciel.execution.environment import task_environment
from ciel.execution.executor import InputPath, OutputPath, Program, Task
from ciel.launch.messages import DEV_NULL, Descriptor, File, LaunchSpec, Standard
from ciel.storage.interface import Fingerprint, ObjectReader, ObjectWriter
from ciel.worker.attempts.scratch import Scratch
from ciel.worker.attempts.workplace import Workplace
from ciel.worker.streams.growing import Growing, Hold, lasting_path
from ciel.worker.streams.stdin_feeder import Feeder, Piping, Trace, pipe

COPIED_MAX_BYTES: Final = 1 << 20
"""Inputs up to this size are copied for programs of root, which could change them. That takes
0.5 ms."""


class ProgramFiles:
    """The files that one program has open.

    `launch_spec` opens them, and may raise StorageError and OSError. The attempt closes them with
    `close_inputs`, and commits or aborts the `writers`.
    """

    def __init__(self, place: Workplace, task: Task, program: Program) -> None:
        self._place = place
        self._task = task
        self._program = program
        self.scratch: Scratch = place.scratch.take()
        self.sandbox = place.sandboxes.create(task.spec.needs, self.scratch.path)
        self.argv: list[str] = []
        self.writers: dict[int, ObjectWriter] = {}
        self.feeder: Feeder | None = None
        self.trace: Trace | None = None
        self._deleted: list[str] = []  # names of inputs that its program may not have found
        self._readers: list[ObjectReader] = []
        self._fingerprints: list[tuple[ObjectReader, Fingerprint]] = []
        self._pipings: list[Piping] = []
        self._holds: list[Hold] = []
        if program.traces:
            self.trace = Trace(place.reactor.seconds)

    @property
    def level(self) -> str:
        """The level of the store that its outputs are written to."""
        return self._program.store

    @property
    def cwd(self) -> str:
        """The working directory of the program."""
        return self._program.cwd or self.scratch.path

    @property
    def search_path(self) -> str | None:
        """The PATH of the program, if its environment sets it."""
        return self._program.env.get("PATH")

    def launch_spec(self, at_most: int) -> LaunchSpec:
        """Open everything, and return what to launch once fewer than `at_most` programs run."""
        program, scratch, task = self._program, self.scratch, self._task
        self.argv = [self._path(item) for item in program.argv]
        for name, object_id in program.files.items():
            path = self._input_path(object_id)
            if name in program.executables:
                scratch.copy(name, path, executable=True)
            else:
                scratch.place(name, self._seen(path))
        env = dict(program.env)
        for name, items in program.lists.items():
            lines = "".join([f"{self._path(item)}\n" for item in items])
            env[name] = scratch.write_input(lines.encode())
        stdin = self._stdin()
        stdout = stderr = File(scratch.stderr_path, append=True)
        if program.stdout is not None:
            stdout = File(self._output_path(program.stdout))
        self._prefer()
        spec = LaunchSpec(
            argv=self.argv,
            cwd=self.cwd,
            env=task_environment(
                task.spec, task.attempt, self._place.worker, scratch.path, env, task.given
            ),
            stdin=stdin,
            stdout=stdout,
            stderr=Standard.STDOUT if program.stdout is None else stderr,
            at_most=at_most,
            no_new_privileges=self._place.sandboxes.forbids_privileges(task.spec.needs),
        )
        return spec if self.sandbox is None else self.sandbox.wrap(spec, scratch.written_inputs)

    def _seen(self, path: str, *, writable: bool = False) -> str:
        """Return the path by which the program reaches a file."""
        return path if self.sandbox is None else self.sandbox.path(path, writable=writable)

    # --- opening ----------------------------------------------------------------------------------

    def _path(self, item: str | InputPath | OutputPath) -> str:
        if isinstance(item, str):
            return item
        if isinstance(item, OutputPath):
            return self._seen(self._output_path(item.number), writable=True)
        path = self._input_path(item.object_id)
        return self.scratch.copy_executable(path) if item.executable else self._seen(path)

    def _output_path(self, number: int) -> str:
        object_id = self._task.spec.outputs[number]
        writer = self._place.store.begin_in(self._program.store, object_id)
        self.writers[number] = writer
        if writer.path is None:
            raise OSError("programs cannot write to this worker's store by path; use another store")
        return writer.path

    def _growing(self, object_id: ObjectId) -> Growing | None:
        """Return an input if it is still being written, else None."""
        if not isinstance(self._task.inputs.get(object_id), Stream):
            return None
        growing = self._place.streams.get(object_id)
        return None if growing is None or growing.is_whole else growing

    def _input_path(self, object_id: ObjectId, *, read_once: bool = False) -> str:
        """Return a path that opens an input for as long as the attempt runs, or once."""
        scratch = self.scratch
        ref = self._task.inputs.get(object_id)
        if isinstance(ref, Value):
            return scratch.write_input(ref.content)
        if isinstance(ref, Stream):
            growing = self._place.streams.get(object_id)
            if growing is not None and growing.is_whole:
                self._holds.append(self._place.streams.hold(growing))
                return growing.name()
            if growing is not None:
                piping = pipe(self._place.reactor, growing, self._place.streams)
                piping.chunk_bytes = self._program.chunk_bytes
                piping.trace_as(self.trace, [*self._task.inputs].index(object_id))
                self._pipings.append(piping)
                return piping.name
        reader = self._place.open(object_id, ref)
        self._readers.append(reader)
        path = lasting_path(reader, read_once=read_once)
        if path is None or self._needs_copy(reader, read_once):
            return scratch.write_input(reader.read(0, reader.size_bytes))
        return path

    def _needs_copy(self, reader: ObjectReader, read_once: bool) -> bool:
        """Whether the program gets a copy of an input, since it could change the store's file.

        An input that is too large to copy is checked for changes after the program has ended.
        """
        if self._place.launching.protects:
            return False
        if (before := self._place.fingerprint(reader)) is None:
            return False
        if os.geteuid() == 0 and not read_once and reader.size_bytes <= COPIED_MAX_BYTES:
            return True
        self._fingerprints.append((reader, before))
        return False

    def _stdin(self) -> File | Descriptor:
        objects = self._program.stdin
        if self._program.names:
            words = [f"{self._path(item)}\0" for item in self._program.names]
            return File(self.scratch.write_input("".join(words).encode()))
        if len(objects) == 1 and self._growing(objects[0]) is None:
            return File(self._input_path(objects[0], read_once=True))
        return self._joined(objects) if objects else DEV_NULL

    def _joined(self, objects: tuple[ObjectId, ...]) -> File | Descriptor:
        """Concatenate inputs: in a file if the references contain all of them, else by a pipe."""
        refs = [self._task.inputs.get(object_id) for object_id in objects]
        values = [ref for ref in refs if isinstance(ref, Value)]
        if len(values) == len(refs):
            return File(self.scratch.write_input(b"".join([value.content for value in values])))
        sources = [self._growing(o) or self._input_path(o) for o in objects]
        self.feeder = Feeder(self._place.reactor, sources, self._place.streams)
        self.feeder.chunk_bytes = self._program.chunk_bytes
        self.feeder.trace_as(self.trace, 0)
        return Descriptor(self.feeder.descriptor)

    def _prefer(self) -> None:
        known = [self._task.inputs.get(object_id) for object_id in self._program.preferred]
        for ref in known:
            if isinstance(ref, Concrete | Sweetheart):
                self._place.prefer(ref)

    # --- when the program has ended ---------------------------------------------------------------

    @property
    def input_problem(self) -> str:
        """Why the program may have read only a part of its inputs; empty if all were readable."""
        feeders = self._pipings if self.feeder is None else [self.feeder, *self._pipings]
        error = next((feeder.error for feeder in feeders if feeder.error is not None), None)
        if error is not None:
            return f"one of its inputs could not be read to the end: {error}"
        if self._deleted:
            return f"its input {', '.join(self._deleted)} was deleted while it ran"
        return ""

    @property
    def partial_output(self) -> str | None:
        """The path of the standard output, if that is an output that is not committed."""
        stdout = self._program.stdout
        writer = None if stdout is None else self.writers.get(stdout)
        return None if writer is None else writer.path

    @property
    def may_lack_output(self) -> bool:
        """Whether the store may have refused room for the program's output."""
        return any(writer.may_be_short for writer in self.writers.values())

    @property
    def written_bytes(self) -> int:
        """How much the program has written to its outputs."""
        return sum([writer.size_bytes for writer in self.writers.values()])

    def delete_changed_inputs(self) -> list[str]:
        """Delete the inputs that were changed since the program started; return their names."""
        if not self._fingerprints:
            return []
        names = {object_id: name for name, object_id in self._program.files.items()}
        changed = []
        for reader, was in self._fingerprints:
            name = names.get(ObjectId(reader.object_id), reader.object_id)
            found = reader.fingerprint()
            assert found is not None  # it had one before
            if found != was:
                changed.append(name)
                if found.is_named:
                    self._place.store.delete(reader.object_id)
            elif not found.is_named:
                self._deleted.append(name)
        return changed

    def made_files(self) -> list[str]:
        """Return the names of the files that the program has created in its private directory.

        Return nothing if it ran in another directory.
        """
        if self._program.cwd:
            return []
        placed = {name.partition("/")[0] for name in self._program.files}
        return self.scratch.made_files(placed)

    def close_inputs(self) -> None:
        """Close all inputs; more calls do nothing."""
        if self.feeder is not None:
            self.feeder.close()
        for piping in self._pipings:
            piping.close()
        for hold in self._holds:
            hold.close()
        for reader in self._readers:
            reader.close()
        self._readers.clear()
        self._fingerprints.clear()

    def abort_outputs(self) -> None:
        """Delete the outputs that are not committed."""
        for writer in self.writers.values():
            writer.abort()
