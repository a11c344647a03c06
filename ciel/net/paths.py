"""A table of URL paths with named segments, used as the router of a site."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar
from urllib.parse import unquote_to_bytes

T = TypeVar("T")


class _Node(Generic[T]):
    """A node of the tree of paths; `served` is the pattern and the value at this node."""

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.any_child: _Node[T] | None = None
        self.served: tuple[str, T] | None = None


class PathTable(Generic[T]):
    """Maps paths to values. A `{name}` in a pattern matches one non-empty segment.

    One trailing slash is ignored. A literal segment takes precedence over a name.
    """

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, path: str, what: T) -> None:
        """Add a value at a path. Raise ValueError if the path has one already."""
        node = self._root
        for segment in _segments(path):
            if segment.startswith("{"):
                node.any_child = node.any_child or _Node()
                node = node.any_child
            else:
                node = node.children.setdefault(segment, _Node())
        if node.served is not None:
            raise ValueError(f"{path} is served already")
        node.served = (path, what)

    def find(self, path: bytes) -> tuple[T, dict[str, str]] | None:
        """Return the value for the path of a request, and the values of its named segments."""
        node = self._root
        try:
            segments = [unquote_to_bytes(s).decode() for s in _segments(path.decode("ascii"))]
        except UnicodeDecodeError:
            return None
        for segment in segments:
            child = node.children.get(segment) or (node.any_child if segment else None)
            if child is None:
                return None
            node = child
        if node.served is None:
            return None
        pattern, what = node.served
        names = zip(_segments(pattern), segments, strict=True)
        return what, {name[1:-1]: value for name, value in names if name.startswith("{")}

    def __iter__(self) -> Iterator[tuple[str, T]]:
        """Yield every pattern with its value."""
        nodes = [self._root]
        while nodes:
            node = nodes.pop()
            if node.served is not None:
                yield node.served
            nodes += node.children.values()
            if node.any_child is not None:
                nodes.append(node.any_child)


def _segments(path: str) -> list[str]:
    if not path.startswith("/"):
        return ["", path]  # `*`, or a whole URL, which match no pattern
    return path[1:].removesuffix("/").split("/") if path != "/" else []
