"""Write the points of the iris data set, which scikit-learn contains, to files as JSON lists.

    OUTPUT_FILES (of the executor `env`): flowers.py K

The first output contains K of them as initial means; each other output is a part of all points.
"""

import csv
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

spec = find_spec("sklearn")
if spec is None or spec.origin is None:
    sys.exit("the data set is part of scikit-learn, which this Python does not have")
with (Path(spec.origin).parent / "datasets" / "data" / "iris.csv").open() as file:
    points = [[float(field) for field in row[:4]] for row in list(csv.reader(file))[1:]]

k = int(sys.argv[1])
chosen, *parts = map(Path, Path(os.environ["OUTPUT_FILES"]).read_text().splitlines())
chosen.write_text(json.dumps(points[:: len(points) // k][:k]))
for number, path in enumerate(parts):
    path.write_text(json.dumps(points[number :: len(parts)]))
