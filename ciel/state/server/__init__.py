"""`ciel-kv`: a key-value base as a daemon, which clients of Redis can use (RESP 2 and 3).

`resp` reads and writes the protocol; `sessions` decides, with the commands of `values`, `hashes`,
and `batch_commands`; `buffered` keeps the rows, in `layers` above LMDB, and a `log`; `service` owns
the sockets; `metrics` counts.
"""
