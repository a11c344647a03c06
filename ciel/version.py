"""The version of this release. A module of its own, since modules below the client need it."""

__version__ = "0.1.0"
