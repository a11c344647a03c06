"""The masters and standbys of a simulation, the votes of its workers, and what binds them."""
