#!/usr/bin/env python3
"""For each centre: how many of the points on standard input are nearest to it, and their sums."""

import json
import sys

centres = json.loads(sys.argv[1])
found = [[0, 0.0, 0.0] for _ in centres]
for line in sys.stdin:
    x, y = map(float, line.split())
    distances = [(x - cx) ** 2 + (y - cy) ** 2 for cx, cy in centres]
    nearest = found[distances.index(min(distances))]
    nearest[0] += 1
    nearest[1] += x
    nearest[2] += y
print(json.dumps(found))
