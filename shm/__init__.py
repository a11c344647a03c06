"""The store `shm`: objects in the memory of one host, as files under `/dev/shm` (CIB-20)."""
