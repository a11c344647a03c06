"""Conformance suites of plugins that reach other systems."""
