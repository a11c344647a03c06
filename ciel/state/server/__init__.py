"""`ciel-kv`: a key-value base as a daemon, which clients of Redis can use (RESP 2 and 3).

`resp` reads and writes the protocol, `sessions` decides, with `commands`; `held` keeps the rows, in
LMDB and a log; `service` owns the sockets.
"""
