"""Plays the program of a task in a conversation: a test makes its calls and checks the replies."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ciel.core.ids import ObjectId
from ciel.core.refs import Future
from ciel.execution.conversation import Over
from ciel.execution.executor import Task
from ciel.executors.conversation import Conversation
from ciel.storage.files import FileStore
from ciel.testing.fake_attempt import FakeAttempt
from ciel.wire.calls import Call, encode_call
from ciel_tests.scenes.transcript import Transcript

HERE = "here:1"
NO, MAY_KEEP = {"keep_process": "no"}, {"keep_process": "may_keep"}
TEXT = b64encode(b"text").decode()
BAD_KEYS: list[Any] = [None, 1, True, [], {}]


def future(object_id: str) -> Future:
    """Return a reference to an object that does not exist yet."""
    return Future(ObjectId(object_id))


class Dialogue(Transcript):
    """A conversation about a task, with the messages of the worker."""

    def __init__(self, task: Task, store: FileStore, path: Path) -> None:
        super().__init__()
        self.store, self.path = store, path
        self.attempt = FakeAttempt(task, store, path, HERE)
        self.task_id = task.spec.id
        self.conversation = Conversation(self.attempt, self.say)

    @property
    def over(self) -> Over | None:
        return self.conversation.over

    def calls(self, *calls: tuple[str, Any]) -> list[Any]:
        """Make several calls at once; return the messages of the worker."""
        self.conversation.called([Call(*call) for call in calls])
        return self.take()

    def call(self, method: str, **args: Any) -> Any:
        """Make a call; return its reply, which must come at once and have the same name."""
        ((name, reply),) = self.calls((method, args))
        assert name == method
        encode_call(name, reply)  # the reply can be sent to a program
        return reply

    def silent(self, method: str, **args: Any) -> None:
        assert self.calls((method, args)) == []

    def fault(self) -> str:
        assert self.over is not None
        assert self.over.fault is not None
        reason, text = self.over.fault
        assert reason == "RUNTIME_ERROR"
        return str(text)

    def wrong(self, method: str, **args: Any) -> str:
        """Make a call that fails the task without a reply; return the error."""
        assert self.calls((method, args)) == []
        return self.fault()


Begin = Callable[..., Dialogue]
