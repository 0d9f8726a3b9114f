"""Automatic parallel plans for training PyTorch models.

`register_rule` and the names it needs are those of `autoplan.rules`, `register_experts` and
`experts` those of `autoplan.capture.experts` (which need torch); loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from autoplan._version import __version__

if TYPE_CHECKING:
    from autoplan.capture.experts import experts, register_experts
    from autoplan.rules.registry import OpView, P, R, S, register_rule

__all__ = [
    "OpView",
    "P",
    "R",
    "S",
    "__version__",
    "experts",
    "register_experts",
    "register_rule",
]

_LAZY = frozenset({"OpView", "P", "R", "S", "register_rule"})
_EXPERTS = frozenset({"experts", "register_experts"})


def __getattr__(name: str) -> object:
    if name in _EXPERTS:
        return getattr(importlib.import_module("autoplan.capture.experts"), name)
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # All rules of the project first: a rule of the user's may not take the place of one.
    importlib.import_module("autoplan.rules")
    value: object = getattr(importlib.import_module("autoplan.rules.registry"), name)
    return value
