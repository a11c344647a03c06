"""Benchmarks are not installed, and are found here; what lies beside them is not to be."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[2])

sys.path.insert(0, ROOT)
importlib.import_module("benchmarks")
sys.path.remove(ROOT)
