"""What the executor `skypy` runs: scripts, which may `import skypy`."""

import ciel_task
import skypy  # type: ignore[import-not-found]  # it lies beside

ciel_task.serve(skypy.run)
