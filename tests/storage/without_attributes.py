"""Runs on a file system without extended attributes: the store remembers checksums in memory."""

import errno
import os
import sys
from pathlib import Path

import pytest

from ciel.storage.errors import CorruptObjectError
from ciel.storage.files import open_disk

place = Path(sys.argv[1])
with pytest.raises(OSError) as caught:  # noqa: PT011  # the number is checked below
    os.setxattr(place, "user.ciel.xxh3", b"")
assert caught.value.errno == errno.ENOTSUP

with open_disk({}, place / "store") as store:
    info = store.put("a", b"content")
    assert info.checksum
    assert store.stat("a") == store.put("a", b"content") == info
    path = place / "store" / "objects" / "a"
    before = path.stat()
    path.chmod(0o600)
    path.write_bytes(b"CONTENT")
    path.chmod(0o400)
    # as unnoticeable as a failing device
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(CorruptObjectError):
        store.verify("a")
    store.delete("a")
    store.put("a", b"other")
    assert store.check() == []

with open_disk({}, place / "store") as store:
    (found,) = [store.stat(object_id) for object_id in store]
    assert found
    assert found.checksum is None
    assert store.checksum("a") == store.verify("a").checksum
