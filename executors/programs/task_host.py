"""The host of scripts that run as tasks (see `ciel.skywriting.host`).

It reads objects and sources, and spawns tasks, over the channel to the worker.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from ciel.core.refs import Failure, Future, Reference, Value
from ciel.executors.programs.channel import Channel, printable
from ciel.executors.programs.references import Promise, decode, encode
from ciel.executors.sdk import ciel_task
from ciel.skywriting import continuation, script, standard
from ciel.skywriting.errors import ContinuationError, ReferenceFailedError, ScriptError
from ciel.skywriting.evaluation.code import Unit
from ciel.skywriting.evaluation.values import Closure, SpawnedCall
from ciel.wire.references import from_array

UNITS_MAX = 100
"""How many compiled scripts the program keeps from task to task."""
SOURCE_MAX_BYTES = 16 << 20
FETCH_MAX_S = 60.0

_SWI = {"executor_name": "swi", "small_task": True}

_units: OrderedDict[str, Unit] = OrderedDict()


class TaskHost:
    """The host of all scripts that run within one task.

    `held`: for each of the nested tasks in this program, the children that are not spawned yet, by
    identity.
    """

    def __init__(self, channel: Channel, private: dict[str, Any]) -> None:
        self.channel = channel
        self.held: list[dict[int, Promise]] = [{}]
        self.may_hold = private.get("may_run_children") is True
        self._files = ciel_task.Task(channel, {})  # for contents that are too large for a message
        inputs = private.get("inputs") or ()
        self._known: dict[str, Reference] = {ref.id: ref for ref in inputs}
        self._fetched: dict[str, Unit] = {}

    # --- objects ----------------------------------------------------------------------------------

    def read(self, ref: Reference) -> bytes | None:
        if type(ref) is Promise:
            if ref.failure is not None:
                raise ReferenceFailedError(ref, "RUNTIME_ERROR", ref.failure)
            return ref.content  # no other program produces it, since it is not spawned
        known = self._known.get(ref.id, ref)
        if type(known) is Future and ref.id in self._known:
            return None  # the task could start without it
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

    def needs_no_request(self, ref: Reference) -> bool:
        """Return whether an object is available, or will be produced without a further request."""
        if type(ref) is Promise:
            return ref.is_wanted or any((ref.call, ref.content, ref.failure is not None))
        return type(self._known.get(ref.id, ref)) is not Future

    def decode(self, content: bytes) -> Any:
        return decode(content)

    def encode(self, value: Any) -> str:
        return encode(value)

    def publish(self, index: int, text: str) -> ciel_task.Ref:
        """Publish an output of the current task."""
        with self.channel.no_signals:
            return self._files.publish(index, text.encode())

    def _store(self, prefix: str, text: str) -> Reference:
        """Store a text as an object."""
        with self.channel.no_signals:
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

    def create(self, promise: Promise, **options: Any) -> None:
        """Spawn a child that was held back; `options` are further arguments of the call `spawn`."""
        with self.channel.no_signals:
            if promise.call is None:
                return
            arguments: dict[str, Any] = {**_SWI, **options}
            if promise.label:
                arguments["name"] = promise.label
            if promise.level == len(self.held) - 1:
                arguments |= self.arguments_for(promise.call)
            else:  # an object would belong to the current task, which is another one
                arguments |= {"level": promise.level}
                arguments |= self.arguments_for(promise.call, may_store=False)
            promise.call = None
            promise.is_wanted = options.get("wanted") is True
            del self.held[promise.level][id(promise)]
            promise.answer = self.channel.call("spawn", arguments)

    def create_all(self) -> None:
        """Spawn all children that the current task holds back."""
        for promise in list(self.held[-1].values()):
            self.create(promise)

    def arguments_for(
        self, written: continuation.Written, *, may_store: bool = True
    ) -> dict[str, Any]:
        """Return the arguments of a task that runs a continuation. Raises ScriptError."""
        try:
            text = encode(written.value)
        except ValueError as error:
            raise ScriptError(f"the state of a call cannot be saved: {error}") from None
        arguments: dict[str, Any] = {}
        if len(text) > ciel_task.PUBLISH_MAX_BYTES:
            if not may_store:
                raise ScriptError(
                    f"the state of a call is too large for a message: {len(text)} characters"
                )
            arguments["cont_ref"] = self._store("cont", text)
        else:
            arguments["cont_text"] = text
        # Futures, since the master has newer references of these objects.
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
            raise ScriptError(
                f"the arguments of a task of {executor} cannot be sent: {error}"
            ) from None
        found: Reference | list[Reference] = _created(self.channel.reply(answer))
        return found

    def print(self, text: str) -> None:
        self.channel.tell("log", {"message": printable(text)})

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
        """Return the unit of an entry of a prompt, which shows its last value.

        The text is part of the origin, since no object contains it.
        """
        text = _text(content, name)
        return self.load_unit({"text": text, "name": name, "shows_last": True})

    def load_unit(self, origin: Any) -> Unit:
        """Return the unit with an origin. Raises SourceError or ContinuationError."""
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
                        raise ContinuationError(f"a script cannot be read: {name}")
                    unit = self.unit(origin, content)
                return unit
        raise ContinuationError(
            f"the origin of a script needs 'std', 'text' or 'ref': {origin!r:.200}"
        )

    def unit(self, origin: dict[str, Any], content: bytes) -> Unit:
        """Return the unit of a script whose text is in an object. Raises SourceError."""
        name = str(origin.get("name") or origin["ref"].id)
        return _remembered(_key(origin), _text(content, name), name, origin)

    def package(self, key: str) -> Reference | None:
        reply = self.channel.reply(self.channel.call("package_lookup", {"key": key}))
        found: Reference | None = reply["value"]
        return found


def _created(reply: Any) -> Any:
    """Return the reply to a spawn. Raises ScriptError if it is an error."""
    if isinstance(reply, dict):
        raise ScriptError(f"the worker cannot spawn this task: {reply['error']}")
    return reply


def _content(ref: Value) -> bytes:
    try:
        return ref.content
    except ValueError:  # a program of the user may have written it
        text = "its content is not base64"
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
    shows_last = "shows last" if origin.get("shows_last") is True else ""
    what = f"text {origin['text']}" if "text" in origin else f"ref {origin['ref'].id}"
    return f"{what} {origin.get('name')} {shows_last}"


def _text(content: bytes, name: str) -> str:
    if len(content) > SOURCE_MAX_BYTES:
        raise ScriptError(
            f"{name} is too long for a script: {len(content)} bytes; "
            f"the limit is {SOURCE_MAX_BYTES}"
        )
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ScriptError(
            f"{name} is not a script: it is not UTF-8 at byte {error.start}"
        ) from None


def _fetch(url: str) -> bytes:
    from urllib.error import HTTPError
    from urllib.request import urlopen  # loading it takes longer than most scripts

    if not url.startswith(("http://", "https://")):
        raise ScriptError(f"include fetches only http:// and https://, not {url:.200}")
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
