"""Write a picture from standard input, as red, green and blue of each pixel, to a PNG file.

    png.py WIDTH HEIGHT FILE

Prints the file's name, as JSON.
"""

import json
import os
import struct
import sys
import zlib
from pathlib import Path


def chunk(kind: bytes, content: bytes) -> bytes:
    """Return one chunk of a PNG file."""
    checked = kind + content
    return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))


width, height, path = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
pixels = sys.stdin.buffer.read()
rows = [b"\0" + pixels[start : start + 3 * width] for start in range(0, len(pixels), 3 * width)]
png = (
    b"\x89PNG\r\n\x1a\n"
    + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    + chunk(b"IDAT", zlib.compress(b"".join(rows)))
    + chunk(b"IEND", b"")
)
# The file is replaced atomically: if this task runs twice at the same time, each run leaves a
# complete file.
part = path.with_name(f".{path.name}.{os.getpid()}")
part.write_bytes(png)
part.replace(path)
print(json.dumps(str(path)))
