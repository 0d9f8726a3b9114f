"""From a model's name to its `Graph`: building without weights, tracing, folding repeats."""

from __future__ import annotations

from autoplan.capture.captured import Captured, capture
from autoplan.capture.load import list_models, load_model, model_from_record
from autoplan.capture.source import ModelSource, disable_dropout

__all__ = [
    "Captured",
    "ModelSource",
    "capture",
    "disable_dropout",
    "list_models",
    "load_model",
    "model_from_record",
]
