"""Who may come in: keys, the access file that carries one, and where a process finds its master.

Client, master, worker and HTTP all knock at the same door, and this room is that door. It reads and
writes two files (the access file and the configuration file) and opens no socket; the environment
is always passed in.
"""
