"""Authentication: keys, the access file that contains one, and how a process finds its master.

Client, master, worker and HTTP all authenticate with this package. It reads and writes the access
file, reads the configuration file, and opens no socket. The environment is always passed in.
"""
