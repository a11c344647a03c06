"""Registers cores in the image, for processes of several kernels.

A process names its core's incarnation in its slot of the image, and a thread in C counts the slot's
heartbeats. The incarnation lives while the owner of a slot that names it is alive. The processes of
a core run under one kernel: they share files of this kernel, such as the lock of the core's owner.
"""

from __future__ import annotations

import os
import secrets
import threading

from ciel.scc.cores.registration import CoreRegistration, Forget, chosen
from ciel.scc.device import Device
from ciel.storage.errors import StoreSpecError


class HeartbeatRegistration(CoreRegistration):
    """This process as a core, by its slot."""

    def __init__(
        self, device: Device, core: int | None, core_count: int, client: int, forget: Forget
    ) -> None:
        """Register as `core`, joining other processes of the core, or as the first free core.
        `client`: this process's number in the image, and thereby its slot.
        """
        self._device = device
        self._client = client
        self._core_count = core_count
        self._forget = forget
        self._lock = threading.Lock()  # of `sweep` and `close`
        self._pid = os.getpid()
        self._is_closed = False
        with device.alone():
            taken = self._swept(waits=True)
            self.core = chosen(core, core_count, taken)
            state = taken.get(self.core)
            if state is not None and device.core(self.core, waits=False).kernel != device.kernel:
                raise StoreSpecError(
                    f"core={self.core}",
                    "processes of another kernel use this core, and a core belongs to one kernel; "
                    "name another core, or none for the first free one",
                )
            incarnation = state or secrets.randbits(32) or 1
            if state is None:
                device.set_core(self.core, incarnation)
            device.name_core(client, self.core, incarnation)
        self._incarnation = incarnation
        self.name = _name(self.core, incarnation)

    def count(self, more: int) -> None:
        self._device.count(self.core, more)

    @property
    def object_count(self) -> int:
        return self._device.core(self.core, waits=False).object_count

    def others(self) -> list[str]:
        return [name for name in self._names() if name != self.name]

    def sweep(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            states = [self._device.core(number, waits=False) for number in range(self._core_count)]
            if any(state.incarnation and not state.is_living for state in states):
                with self._device.alone():
                    self._swept(waits=False)

    def close(self) -> None:
        with self._lock:
            if self._is_closed or self._pid != os.getpid():
                return
            self._is_closed = True
            with self._device.alone():
                self._device.name_core(self._client, 0, 0)
                if not self._device.core(self.core, waits=True).is_living:
                    self._end(self.core, self._incarnation)

    def _names(self) -> list[str]:
        found = []
        for number in range(self._core_count):
            incarnation = self._device.core(number, waits=False).incarnation
            if incarnation:
                found.append(_name(number, incarnation))
        return found

    def _swept(self, *, waits: bool) -> dict[int, int]:
        """Remove the names of ended incarnations; return the live ones, by core."""
        living = {}
        for number in range(self._core_count):
            state = self._device.core(number, waits=waits)
            if state.is_living:
                living[number] = state.incarnation
            elif state.incarnation:
                self._end(number, state.incarnation)
        return living

    def _end(self, number: int, incarnation: int) -> None:
        self._forget(_name(number, incarnation))
        self._device.set_core(number, 0)


def _name(core: int, incarnation: int) -> str:
    return f"{core}.{incarnation:08x}"
