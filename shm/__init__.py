"""Objects in the memory of one host: files under `/dev/shm` (CIB-20). Found by name, as `shm`."""
