"""Imports the benchmarks, which are not installed, by a path that is added for a moment."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[2])

sys.path.insert(0, ROOT)
importlib.import_module("benchmarks.chaos.__main__")
sys.path.remove(ROOT)
