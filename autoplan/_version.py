"""Version of the package, in a module without imports so that a build can read it."""

__version__ = "0.1.0"
