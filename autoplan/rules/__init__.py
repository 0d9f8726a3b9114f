"""Legal strategies of each operator on one mesh axis; one file a family.

`strategies` lists them, `localize` rewrites an operator's literals for local shards, and
`rule` or `register_rule` adds operators (docs/placements.md).
"""

from autoplan.rules import (
    attention,
    contraction,
    convolution,
    embedding,
    experts,
    indexing,
    loss,
    matmul,
    norm,
    patches,
    pointwise,
    pooling,
    random,
    reduction,
    views,
)
from autoplan.rules.reasons import reasons
from autoplan.rules.registry import (
    OpView,
    has_rule,
    library_of,
    localize,
    register_rule,
    registered_targets,
    rule,
    strategies,
)

__all__ = [
    "OpView",
    "has_rule",
    "library_of",
    "localize",
    "reasons",
    "register_rule",
    "registered_targets",
    "rule",
    "strategies",
]

# Imported for their registrations.
_FAMILIES = (
    attention,
    contraction,
    convolution,
    embedding,
    experts,
    indexing,
    loss,
    matmul,
    norm,
    pointwise,
    pooling,
    random,
    reduction,
    views,
    patches,
)
