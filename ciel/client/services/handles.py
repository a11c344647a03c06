"""Handles of services, which programs call, and can send to tasks and to other services."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ciel.client.services.forms import pack_arguments
from ciel.client.services.futures import ServiceFuture
from ciel.client.services.link import Link
from ciel.client.services.lookup import Lookup, lookup_here
from ciel.python.failures import packing_error
from ciel.python.packing import UnpackedError
from ciel.python.showing import Shown


class Named(NamedTuple):
    """Identifies a service. `job`: its id; `methods`: of its class, None if unknown."""

    job: str
    name: str
    replicas: int
    cluster_id: str
    methods: frozenset[str] | None = None


class Links:
    """The links of this process to the replicas of services. Thread-safe."""

    def __init__(self, lookup: Lookup) -> None:
        self.lookup = lookup
        self._lock = threading.Lock()
        self._links: dict[str, list[Link]] = {}

    def of(self, service: Named) -> list[Link]:
        """Return a link to each replica of a service."""
        links = self._links.get(service.job)
        if links is None:
            with self._lock:
                links = self._links.get(service.job) or [
                    Link(self.lookup, service.job, number, _title(service, number), ("", ""))
                    for number in range(service.replicas)
                ]
                self._links[service.job] = links
        return links

    def close(self, job: str | None = None, error: BaseException | None = None) -> None:
        """Close the links to one service, or to all: open calls fail, and later ones."""
        with self._lock:
            closed = [self._links.get(job, [])] if job is not None else list(self._links.values())
        for links in closed:
            for link in links:
                link.close(error)


def _title(service: Named, number: int) -> str:
    return service.name if service.replicas == 1 else f"{service.name}[{number}]"


_here: dict[int, Links] = {}  # by the identity of the lookup, which the links keep alive
_lock = threading.Lock()


def links_here() -> Links:
    """Return the links of this task's process, or of the innermost client."""
    lookup = lookup_here()
    with _lock:
        found = _here.get(id(lookup))
        if found is None or found.lookup is not lookup:
            found = _here[id(lookup)] = Links(lookup)
        return found


def forget(lookup: Lookup) -> None:
    """Close the links of a client, which ends."""
    with _lock:
        links = _here.pop(id(lookup), None)
    if links is not None:
        links.close()


_OPTION: Final = "retry"


class Handle(Shown):
    """A service: `handle.METHOD(...)` calls a method, and returns the future of its result.

    Each call goes to the replica that has the fewest open calls of this process. Calls to one
    replica run in the order in which a process makes them. A handle has the methods
    `replica` and `options` of its own; they hide methods of the service that have these names.
    """

    _title = "Service"

    def __init__(
        self, service: Named, only: int | None = None, *, may_repeat: bool = False
    ) -> None:
        self._service = service
        self._only = only
        self._may_repeat = may_repeat
        self._links: list[Link] | None = None

    def __reduce__(self) -> Any:
        return _handle, (tuple(self._service), self._only, self._may_repeat)

    def __getattr__(self, name: str) -> Method:
        methods = self.__dict__["_service"].methods if "_service" in self.__dict__ else None
        if name.startswith("_") or (methods is not None and name not in methods):
            service = self.__dict__.get("_service")
            raise AttributeError(f"the service {service and service.name} has no method {name!r}")
        method = Method(self, name)
        self.__dict__[name] = method
        return method

    def replica(self, number: int) -> Handle:
        """Return a handle of one replica, by its number from 0. Raises IndexError."""
        if not 0 <= number < self._service.replicas:
            raise IndexError(f"{self._service.name} has {self._service.replicas} replicas")
        return Handle(self._service, number, may_repeat=self._may_repeat)

    def options(self, *, retry: bool) -> Handle:
        """Return a handle whose calls may run twice.

        With `retry`, a call is sent again if the replica ends before it has replied.
        """
        return Handle(self._service, self._only, may_repeat=retry)

    def _facts(self) -> Iterator[tuple[str, Any]]:
        yield "", self._service.name
        yield (
            "replica" if self._only is not None else "replicas",
            (self._only if self._only is not None else self._service.replicas),
        )

    def _link(self) -> Link:
        """Return the link for the next call."""
        links = self._links
        if links is None:
            links = links_here().of(self._service)
            self._links = links = links if self._only is None else [links[self._only]]
        if len(links) == 1:
            return links[0]
        return min(links, key=lambda link: (link.is_over, link.open_count, link.call_count))


class Method:
    """A method of a service."""

    __slots__ = ("_handle", "_name")

    def __init__(self, handle: Handle, name: str) -> None:
        self._handle = handle
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> ServiceFuture[Any]:
        """Call the method; return the future of its result.

        It waits only if many bytes of calls are unsent, and for futures in the arguments. Raises
        PackingError, ServiceError, ClientError.
        """
        handle = self._handle
        try:
            form, payload = pack_arguments(args, kwargs)
        except UnpackedError as error:
            name = f"the arguments of {handle._service.name}.{self._name}"
            raise packing_error(name, error) from None
        return handle._link().call(self._name, form, payload, may_repeat=handle._may_repeat)


def _handle(service: tuple[Any, ...], only: int | None, may_repeat: bool) -> Handle:
    return Handle(Named(*service), only, may_repeat=may_repeat)
