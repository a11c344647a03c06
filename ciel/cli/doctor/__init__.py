"""The checks of `ciel doctor`."""
