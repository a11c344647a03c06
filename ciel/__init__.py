"""ciel: a universal execution engine.

Python programs need only this module: `ciel.Client` finds a cluster or starts one, and `@ciel.task`
makes tasks of functions. A name is loaded when a program first uses it, so that importing a package
below the client does not load the client. The import has two side effects: see `pure` and
`joblib_name`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ciel import joblib_name as joblib_name
from ciel import pure as pure  # first: it chooses between sources and compiled modules
from ciel.version import __version__ as __version__

if TYPE_CHECKING:
    from ciel.client import Client as Client
    from ciel.client import LocalCluster as LocalCluster
    from ciel.client.errors import ClientError as ClientError
    from ciel.client.pools.executor import Executor as Executor
    from ciel.client.services.classes import ServiceError as ServiceError
    from ciel.client.services.classes import current_service as current_service
    from ciel.client.services.classes import service as service
    from ciel.client.views.progress import progress as progress
    from ciel.client.views.trace import trace as trace
    from ciel.python.failures import PackingError as PackingError
    from ciel.python.failures import RemoteError as RemoteError
    from ciel.python.failures import RemoteTraceback as RemoteTraceback
    from ciel.python.failures import TaskCancelledError as TaskCancelledError
    from ciel.python.failures import TaskError as TaskError
    from ciel.python.failures import TaskKilledError as TaskKilledError
    from ciel.python.failures import TaskLostError as TaskLostError
    from ciel.python.failures import TaskMemoryError as TaskMemoryError
    from ciel.python.failures import TaskTimeoutError as TaskTimeoutError
    from ciel.python.futures import Future as Future
    from ciel.python.sessions import as_completed as as_completed
    from ciel.python.sessions import fire_and_forget as fire_and_forget
    from ciel.python.sessions import gather as gather
    from ciel.python.sessions import put as put
    from ciel.python.sessions import wait as wait
    from ciel.python.task_session import current_task as current_task
    from ciel.python.task_session import empty as empty
    from ciel.python.task_session import task_directory as task_directory
    from ciel.python.tasks import Task as Task
    from ciel.python.tasks import call as call
    from ciel.python.tasks import spawn as spawn
    from ciel.python.tasks import task as task
    from ciel.state.here import kv as kv

_HOMES = {
    "Client": "ciel.client",
    "ClientError": "ciel.client.errors",
    "LocalCluster": "ciel.client",
    "current_task": "ciel.python.task_session",
    "empty": "ciel.python.task_session",
    "Executor": "ciel.client.pools.executor",
    "Future": "ciel.python.futures",
    "kv": "ciel.state.here",
    "progress": "ciel.client.views.progress",
    "task_directory": "ciel.python.task_session",
    "trace": "ciel.client.views.trace",
    **dict.fromkeys(("ServiceError", "current_service", "service"), "ciel.client.services.classes"),
    **dict.fromkeys(("Task", "call", "spawn", "task"), "ciel.python.tasks"),
    **dict.fromkeys(
        ("as_completed", "fire_and_forget", "gather", "put", "wait"), "ciel.python.sessions"
    ),
    **dict.fromkeys(
        (
            "PackingError",
            "RemoteError",
            "RemoteTraceback",
            "TaskCancelledError",
            "TaskError",
            "TaskKilledError",
            "TaskLostError",
            "TaskMemoryError",
            "TaskTimeoutError",
        ),
        "ciel.python.failures",
    ),
}
__all__ = [*sorted(_HOMES), "__version__"]


_MODULES = ("dask", "joblib", "multiprocessing", "urls")


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        if name in _MODULES:  # `import ciel` is enough for `ciel.dask.get`
            return import_module(f"ciel.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(home), name)
    globals()[name] = found
    return found
