"""The program that the executor `skypy` runs: it runs scripts, which may `import skypy`."""

import ciel_task
import skypy  # type: ignore[import-not-found]  # in the same directory

ciel_task.serve(skypy.run)
