"""Launchers of workers: bring workers from a resource manager, such as Slurm, or over ssh.

A launcher of workers is a plugin (`ciel.launchers`). It asks for allocations, each of which runs
one worker. `scaling` decides how many. The program launcher, in `ciel.launch`, is another thing: it
starts the programs of tasks on one host.
"""
