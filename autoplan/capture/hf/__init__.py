"""Models of Hugging Face configurations, built by ``transformers``."""

from __future__ import annotations

from autoplan.capture.hf.config import read_config
from autoplan.capture.hf.source import HuggingFaceSource, huggingface_source

__all__ = ["HuggingFaceSource", "huggingface_source", "read_config"]
