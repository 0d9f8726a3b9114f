"""Automatic parallel plans for training PyTorch models."""

from __future__ import annotations

from autoplan._version import __version__

__all__ = ["__version__"]
