"""Leases: keys that a client holds as long as it renews them, and locks made of them.

A client that dies loses its leases when their time is over. A client that is stopped longer than
that loses them, too, and learns so: a lease that was not renewed in time counts as lost from the
moment at which its time is over by this client's clock, which is not after the base's.
"""

from __future__ import annotations

import secrets
import threading
import time
from types import TracebackType
from typing import Final, Self

from ciel.state.batches import Delete, Increment, Insert, Renew, Same, Step
from ciel.state.errors import ChangedError, KeyPresentError, KvError, LeaseLostError, RefusedError
from ciel.state.interface import Base

LEASE_S: Final = 30.0
_RENEWALS: Final = 3
"""How many times a lease is renewed before its time is over."""
WAKE_S: Final = 1.0
"""How often a client that waits looks whether a lease has ended, which no watch need report."""


class Lease:
    """A key with a secret of the client that holds it, renewed by a thread."""

    def __init__(self, base: Base, key: bytes, lease_s: float, what: str) -> None:
        self._base = base
        self._key = key
        self._lease_s = lease_s
        self._what = what
        self._secret = secrets.token_hex(16).encode()
        self._until_s = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def steps_to_take(self) -> list[Step]:
        """The steps that take the lease; they refuse a batch while another client has it."""
        return [Insert(self._key, self._secret, self._lease_s)]

    @property
    def steps_to_end(self) -> list[Step]:
        """The steps that end the lease; they refuse a batch if it is lost."""
        return [Same(self._key, self._secret), Delete(self._key)]

    @property
    def is_held(self) -> bool:
        """Whether no other client can have the lease now."""
        return time.monotonic() < self._until_s

    def begin(self, asked_s: float) -> None:
        """Renew a lease from now on. `asked_s`: when this client has asked the base for it."""
        self._until_s = asked_s + self._lease_s
        self._stop.clear()
        self._thread = threading.Thread(target=self._renew, name="ciel-kv-lease", daemon=True)
        self._thread.start()

    def end(self, further: list[Step]) -> None:
        """End the lease in one batch with further steps; raises LeaseLostError."""
        self.stop()
        try:
            self._base.apply([*self.steps_to_end, *further])
        except ChangedError as error:
            if error.key == self._key:
                raise LeaseLostError(self._what) from None
            raise

    def stop(self) -> None:
        """Stop renewing; the lease ends when its time is over."""
        self._stop.set()
        self._until_s = 0.0
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _renew(self) -> None:
        steps: list[Step] = [Same(self._key, self._secret), Renew(self._key, self._lease_s)]
        while not self._stop.wait(self._lease_s / _RENEWALS):
            asked_s = time.monotonic()
            try:
                self._base.apply(steps)
            except RefusedError:
                self._until_s = 0.0
                return
            except KvError:
                continue  # the base may answer again in time
            if not self._stop.is_set():
                self._until_s = asked_s + self._lease_s


class Lock:
    """A lock that the clients of a base share, in a `with`.

    It is a lease: if its holder dies, another client acquires it at most `lease_s` later. `fence`
    is a number that grows with each acquisition. A resource that the lock protects can store the
    largest fence, and refuse clients with a lower one.
    """

    def __init__(self, base: Base, key: bytes, name: str, lease_s: float) -> None:
        self._base = base
        self._key = key
        self._name = name
        self._lease_s = lease_s
        self._lease: Lease | None = None
        self.fence = 0

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock, and no other client can have it now."""
        return self._lease is not None and self._lease.is_held

    def acquire(self, timeout_s: float | None = None) -> bool:
        """Acquire the lock; return False after the timeout. Raises RuntimeError if held already."""
        if self._lease is not None:
            raise RuntimeError(f"{self._name!r} is acquired already by this object")
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._base.watch(self._key) as watch:
            while not self._try():
                left_s = WAKE_S if deadline_s is None else deadline_s - time.monotonic()
                if left_s <= 0:
                    return False
                watch.wait(min(left_s, WAKE_S, self._lease_s))
        return True

    def release(self) -> None:
        """Release the lock. Raises RuntimeError if it is not held, LeaseLostError if another client
        may have had it meanwhile.
        """
        lease, self._lease = self._lease, None
        if lease is None:
            raise RuntimeError(f"{self._name!r} is not acquired by this object")
        lease.end([])

    def _try(self) -> bool:
        lease = Lease(self._base, self._key, self._lease_s, f"the lock {self._name!r}")
        asked_s = time.monotonic()
        try:
            results = self._base.apply([*lease.steps_to_take, Increment(self._key + b"/fence")])
        except KeyPresentError:
            return False
        self.fence = int(results[-1] or 0)
        lease.begin(asked_s)
        self._lease = lease
        return True

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.release()
