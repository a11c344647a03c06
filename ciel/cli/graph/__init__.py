"""`ciel job graph`: the tasks of a job and the objects between them, as DOT, SVG or JSON."""
