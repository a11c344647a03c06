"""The SDK for programs of the executor `proc`: `ciel_task.py`, and libciel in `c/`."""
