"""The parts of `ciel submit`: elements of arrays, standard input, and the files of outputs."""
