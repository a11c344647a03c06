"""Draw a strip of the Mandelbrot set, as red, green and blue of each pixel, a byte each.

strip.py WIDTH HEIGHT FIRST_ROW ROWS
"""

import math
import sys

LIMIT = 120
LEFT, RIGHT = -2.4, 1.2  # the real axis is in the middle of the picture


def escape(c: complex) -> float:
    """Return the number of steps after which a point escapes, with a smooth fraction.

    Return LIMIT if the point does not escape.
    """
    z = 0j
    for step in range(LIMIT):
        z = z * z + c
        if (size := abs(z)) > 8:  # more than 2, from where each point escapes, for smoother colours
            return max(0.0, step + 1 - math.log2(math.log(size) / math.log(8)))
    return LIMIT


def colour(steps: float) -> bytes:
    """Return a colour that changes slowly with the number of steps; black in the set."""
    if steps == LIMIT:
        return bytes(3)
    phase = 1.5 * math.log(1 + steps) - 0.9
    return bytes(int(127.5 - 127.5 * math.cos(phase + shift)) for shift in (-0.7, -0.1, 0.7))


width, height, first, rows = map(int, sys.argv[1:])
step = (RIGHT - LEFT) / width
for row in range(first, first + rows):
    y = (height / 2 - row - 0.5) * step
    points = (complex(LEFT + (column + 0.5) * step, y) for column in range(width))
    sys.stdout.buffer.write(b"".join([colour(escape(point)) for point in points]))
