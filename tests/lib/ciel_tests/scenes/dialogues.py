"""Conversations about a task, without a program: what is called, and what is said to it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ciel.core.ids import ObjectId
from ciel.core.refs import Future
from ciel.execution.executor import Task
from ciel.executors.conversation import Conversation, Over
from ciel.storage.files import FileStore
from ciel.testing.fake_attempt import FakeAttempt
from ciel.wire.calls import Call, encode_call
from ciel_tests.scenes.transcript import Transcript

HERE = "here:1"
NO, MAY_KEEP = {"keep_process": "no"}, {"keep_process": "may_keep"}
TEXT = b64encode(b"text").decode()
BAD_KEYS: list[Any] = [None, 1, True, [], {}]


def future(object_id: str) -> Future:
    """A reference to what may be made one day."""
    return Future(ObjectId(object_id))


class Dialogue(Transcript):
    """A conversation about a task, and what was said by us."""

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
        """Call together; return what was said, all of which is of the same methods."""
        self.conversation.called([Call(*call) for call in calls])
        return self.take()

    def call(self, method: str, **args: Any) -> Any:
        """Call something that is answered at once and by one reply of the same name."""
        ((name, reply),) = self.calls((method, args))
        assert name == method
        encode_call(name, reply)  # a program can be told it
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
        """Call what ends the task without a reply; return what is said of it."""
        assert self.calls((method, args)) == []
        return self.fault()


Begin = Callable[..., Dialogue]
