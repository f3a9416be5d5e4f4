"""The version of this package, once."""

__version__ = "0.1.0"
