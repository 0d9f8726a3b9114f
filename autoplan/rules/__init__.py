"""Legal strategies of each operator on one mesh axis; one file a family.

`strategies` lists them, `localize` rewrites an operator's literals for local shards, and
`rule` or `register_rule` adds operators (docs/placements.md).
"""

from autoplan.rules import (
    attention,
    convolution,
    embedding,
    indexing,
    matmul,
    norm,
    pointwise,
    random,
    reduction,
    views,
)
from autoplan.rules.registry import (
    OpView,
    has_rule,
    localize,
    register_rule,
    registered_targets,
    rule,
    strategies,
)

__all__ = [
    "OpView",
    "has_rule",
    "localize",
    "register_rule",
    "registered_targets",
    "rule",
    "strategies",
]

# Imported for their registrations.
_FAMILIES = (
    attention,
    convolution,
    embedding,
    indexing,
    matmul,
    norm,
    pointwise,
    random,
    reduction,
    views,
)
