"""The SDKs for task programs: `ciel_task.py` for Python, and `c/`, `java/` and `ocaml/`."""
