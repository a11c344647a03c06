"""Clusters with memory servers, for checks and benchmarks of remote memory."""
