"""The command line: the commands of `ciel`, and the daemons' composition roots."""
