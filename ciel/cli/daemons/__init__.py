"""The daemons `ciel-master` and `ciel-worker`: their options, and how each builds its parts."""
