"""What is typed: one file for each command, and the composition roots of the daemons."""
