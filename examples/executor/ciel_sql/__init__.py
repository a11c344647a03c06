"""An executor for ciel: queries over tables of comma-separated values."""
