"""Commands for memory that several processes or kernels share."""
