"""Lets programs with asyncio await the futures of a client."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Generator
from typing import Any, TypeVar

T = TypeVar("T")


def awaited(future: concurrent.futures.Future[T]) -> Generator[Any, Any, T]:
    """Wait in the running event loop until a future is done; return its result, or raise.

    A program that cancels the wait cancels the future.
    """
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    def wake_loop(_: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(wake)

    # Not `asyncio.wrap_future`: it loses causes, and waits for ever after StopIteration.
    future.add_done_callback(wake_loop)
    try:
        yield from woken
    except asyncio.CancelledError:
        future.cancel()
        raise
    if future.cancelled():
        raise asyncio.CancelledError
    return future.result()
