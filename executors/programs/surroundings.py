"""What a script finds around it within a task: objects, texts of scripts, tasks to be created. The
host of the interpreter (see `ciel.skywriting.host`), over a channel to the worker.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from ciel.core.refs import Failure, Future, Reference, Value
from ciel.executors.programs.calls import Channel, shown
from ciel.executors.programs.references import Promise, decode, encode
from ciel.executors.sdk import ciel_task
from ciel.skywriting import continuation, script, standard
from ciel.skywriting.code import Unit
from ciel.skywriting.errors import ContinuationError, ScriptError
from ciel.skywriting.host import ReferenceFailedError, SpawnedCall
from ciel.skywriting.values import Closure
from ciel.wire.references import from_array

UNITS_MAX = 100
"""Scripts that are kept ready from task to task."""
SOURCE_MAX_BYTES = 16 << 20
FETCH_MAX_S = 60.0

_SWI = {"executor_name": "swi", "small_task": True}

_units: OrderedDict[str, Unit] = OrderedDict()


class Surroundings:
    """The host of all scripts that run within one task.

    `held`: for each of the tasks that run here, each within the one before it, those children that
    are held back, by identity.
    """

    def __init__(self, channel: Channel, private: dict[str, Any]) -> None:
        self.channel = channel
        self.held: list[dict[int, Promise]] = [{}]
        self.may_hold = private.get("may_run_children") is True
        self._files = ciel_task.Task(channel, {})  # for what is too large to be said
        inputs = private.get("inputs") or ()
        self._known: dict[str, Reference] = {ref.id: ref for ref in inputs}
        self._fetched: dict[str, Unit] = {}

    # --- objects ----------------------------------------------------------------------------------

    def read(self, ref: Reference) -> bytes | None:
        if type(ref) is Promise:
            if ref.failure is not None:
                raise ReferenceFailedError(ref, "RUNTIME_ERROR", ref.failure)
            return ref.content  # others have not made it: nobody has asked them to
        known = self._known.get(ref.id, ref)
        if type(known) is Future and ref.id in self._known:
            return None  # others were enough to begin
        if type(known) is Value:
            return _content(known)
        if type(known) is Failure:
            raise ReferenceFailedError(ref, known.reason, known.text)
        call = {"ref": known, "accept_string": True}
        reply = self.channel.reply(self.channel.call("open_ref", call))
        if "strdata" in reply:
            return _content(Value(known.id, reply["strdata"]))
        if "filename" not in reply:
            return None
        with open(reply["filename"], "rb") as file:
            return file.read()

    def is_under_way(self, ref: Reference) -> bool:
        """Whether nobody has to be asked to make an object: it is there, will be made here, or is
        being made.
        """
        if type(ref) is Promise:
            return ref.is_wanted or any((ref.call, ref.content, ref.failure is not None))
        return type(self._known.get(ref.id, ref)) is not Future

    def decode(self, content: bytes) -> Any:
        return decode(content)

    def encode(self, value: Any) -> str:
        return encode(value)

    def publish(self, index: int, text: str) -> ciel_task.Ref:
        """Make an output of the task that runs now."""
        with self.channel.quiet:
            return self._files.publish(index, text.encode())

    def _store(self, prefix: str, text: str) -> Reference:
        """Make an object of its own."""
        with self.channel.quiet:
            return from_array(self.publish(self._files.allocate(prefix), text).array)

    # --- tasks ------------------------------------------------------------------------------------

    def spawn(self, call: SpawnedCall) -> Reference:
        label = call.function.code.name if isinstance(call.function, Closure) else ""
        level = len(self.held) - 1
        promise = Promise(self._name_of, label, level)
        promise.call = continuation.encode_call(call)
        self.held[level][id(promise)] = promise
        if not self.may_hold:
            self.create(promise)
        return promise

    def create(self, promise: Promise, **how: Any) -> None:
        """Have a child created that was held back; `how` says more, for the worker."""
        with self.channel.quiet:
            if promise.call is None:
                return
            arguments: dict[str, Any] = {**_SWI, **how}
            if promise.label:
                arguments["name"] = promise.label
            if promise.level == len(self.held) - 1:
                arguments |= self.told(promise.call)
            else:  # what is published now is another's
                arguments |= {"level": promise.level, **self.told(promise.call, may_store=False)}
            promise.call = None
            promise.is_wanted = how.get("wanted") is True
            del self.held[promise.level][id(promise)]
            promise.answer = self.channel.call("spawn", arguments)

    def create_all(self) -> None:
        """Have all children created that the task which runs now holds back."""
        for promise in list(self.held[-1].values()):
            self.create(promise)

    def told(self, written: continuation.Written, *, may_store: bool = True) -> dict[str, Any]:
        """Return how a task is told what it is to do. Raises ScriptError."""
        try:
            text = encode(written.value)
        except ValueError as error:
            raise ScriptError(f"what it holds cannot be written down: {error}") from None
        arguments: dict[str, Any] = {}
        if len(text) > ciel_task.PUBLISH_MAX_BYTES:
            if not may_store:
                raise ScriptError("it is too much to be said in passing")
            arguments["cont_ref"] = self._store("cont", text)
        else:
            arguments["cont_text"] = text
        # What this task was given, or created, the master knows better than we do.
        arguments["extra_dependencies"] = [Future(ref.id) for ref in written.awaited]
        if written.any_of:
            arguments["any_dependencies"] = [Future(ref.id) for ref in written.any_of]
        return arguments

    def _name_of(self, promise: Promise) -> str:
        self.create(promise)
        assert promise.answer is not None
        return str(_created(self.channel.reply(promise.answer)).id)

    def spawn_task(self, executor: str, keywords: dict[str, Any]) -> Reference | list[Reference]:
        try:
            answer = self.channel.call("spawn", {**keywords, "executor_name": executor})
        except ValueError as error:
            raise ScriptError(f"a task of {executor} cannot be told this: {error}") from None
        found: Reference | list[Reference] = _created(self.channel.reply(answer))
        return found

    def print(self, text: str) -> None:
        self.channel.tell("log", {"message": shown(text)})

    # --- texts ------------------------------------------------------------------------------------

    def include(self, what: str | Reference) -> Unit | None:
        if not isinstance(what, str):
            content = self.read(what)
            return None if content is None else self.unit({"ref": Future(what.id)}, content)
        if not what.startswith("http"):
            return self.load_unit({"std": what})
        if what not in self._fetched:
            content = _fetch(what)
            ref = self._store("include", _text(content, what))
            self._fetched[what] = self.unit({"ref": Future(ref.id), "name": what}, content)
            self._known[ref.id] = ref
        return self._fetched[what]

    def entry(self, content: bytes, name: str) -> Unit:
        """Get an entry of a prompt, which shows its last value. Its text goes where it goes: later
        entries know no others.
        """
        text = _text(content, name)
        return self.load_unit({"text": text, "name": name, "shows_last": True})

    def load_unit(self, origin: Any) -> Unit:
        """Get a script by its origin. Raises SourceError or ContinuationError."""
        if isinstance(origin, dict):
            if isinstance(origin.get("std"), str):
                name = origin["std"]
                key = f"std {name}"
                text = "" if key in _units else standard.text_of(name)
                return _remembered(key, text, f"{name}.sw", origin)
            if isinstance(origin.get("text"), str):
                return _remembered(_key(origin), origin["text"], str(origin.get("name")), origin)
            if isinstance(origin.get("ref"), Future):
                unit = _units.get(_key(origin))
                if unit is None:
                    content = self.read(origin["ref"])
                    if content is None:
                        name = origin["ref"].id
                        raise ContinuationError(f"the text of a script is not there: {name}")
                    unit = self.unit(origin, content)
                return unit
        raise ContinuationError(f"this is no script that can be found again: {origin!r:.200}")

    def unit(self, origin: dict[str, Any], content: bytes) -> Unit:
        """Get a script that an object holds, or one that was read before. Raises SourceError."""
        name = str(origin.get("name") or origin["ref"].id)
        return _remembered(_key(origin), _text(content, name), name, origin)

    def package(self, key: str) -> Reference | None:
        reply = self.channel.reply(self.channel.call("package_lookup", {"key": key}))
        found: Reference | None = reply["value"]
        return found


def _created(reply: Any) -> Any:
    """Return what a spawn is answered with. Raises ScriptError if there can be no such task."""
    if isinstance(reply, dict):
        raise ScriptError(f"no such task can be spawned: {reply['error']}")
    return reply


def _content(ref: Value) -> bytes:
    try:
        return ref.content
    except ValueError:  # it may be anybody's
        text = "what is said to be its content is not base64"
        raise ReferenceFailedError(ref, "BAD_REFERENCE", text) from None


def _remembered(key: str, text: str, name: str, origin: Any) -> Unit:
    unit = _units.get(key)
    if unit is None:
        shows_last = origin.get("shows_last") is True
        unit = _units[key] = script.load(text, name, origin, shows_last=shows_last)
        if len(_units) > UNITS_MAX:
            _units.popitem(last=False)
    else:
        _units.move_to_end(key)
    return unit


def _key(origin: dict[str, Any]) -> str:
    shows_last = "to be shown" if origin.get("shows_last") is True else ""
    what = f"text {origin['text']}" if "text" in origin else f"ref {origin['ref'].id}"
    return f"{what} {origin.get('name')} {shows_last}"


def _text(content: bytes, name: str) -> str:
    if len(content) > SOURCE_MAX_BYTES:
        raise ScriptError(f"{name} is too long for a script: {len(content)} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ScriptError(f"{name} is no script: it is not UTF-8 at byte {error.start}") from None


def _fetch(url: str) -> bytes:
    from urllib.error import HTTPError
    from urllib.request import urlopen  # takes longer to load than most scripts to run

    if not url.startswith(("http://", "https://")):
        raise ScriptError(f"include can fetch http:// and https://, not {url:.200}")
    try:
        with urlopen(url, timeout=FETCH_MAX_S) as response:
            content: bytes = response.read(SOURCE_MAX_BYTES + 1)
            return content
    except HTTPError as error:
        error.close()
        raise ScriptError(f"{url} cannot be included: {error.code} {error.reason}") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or error
        raise ScriptError(f"{url} cannot be included: {why}") from None
