"""Count which modules some files import; a hash of the name selects the output.

    INPUT_FILES, OUTPUT_FILES (of the executor `env`): imports.py FILE...

The outputs contain lines of a count and a name.
"""

import os
import re
import sys
import zlib
from collections import Counter
from pathlib import Path

IMPORT = re.compile(r"^[ \t]*(?:import|from(?=.*[ \t]import\b))[ \t]+([A-Za-z_]\w*)", re.MULTILINE)

counts: Counter[str] = Counter()
for path in sys.argv[1:]:
    counts.update(IMPORT.findall(Path(path).read_text(errors="replace")))

paths = Path(os.environ["OUTPUT_FILES"]).read_text().splitlines()
texts = [""] * len(paths)
for name, count in counts.items():
    texts[zlib.crc32(name.encode()) % len(paths)] += f"{count} {name}\n"
for path, text in zip(paths, texts, strict=True):
    Path(path).write_text(text)
