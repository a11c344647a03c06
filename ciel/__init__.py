"""ciel: a universal execution engine."""
