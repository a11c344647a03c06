"""What programs of the executor `proc` are written with: `ciel_task.py`, and libciel in `c/`."""
