"""The library an emitted program carries along: collectives, parameters, training step.

The package is copied into each program, so it needs only torch and imports itself relatively.
"""

from .axis import SINGLE, Axis
from .checkpointing import checkpoint
from .collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    partial_grad,
    record_collectives,
    reduce_scatter,
    shard,
)
from .gradients import share_grad
from .linear import row_parallel_addmm, row_parallel_linear
from .parameters import (
    Init,
    ParameterSpec,
    deferred_parameters,
    empty_parameter,
    initial_value,
    initialise,
    join_parameter,
    load_buffer,
    local_shape,
    slice_parameter,
)
from .random import (
    replicated_attention,
    replicated_dropout,
    set_dropout,
    sharded_attention,
    sharded_dropout,
)
from .train import main
from .vocabulary import vocab_cross_entropy, vocab_embedding

__all__ = [
    "SINGLE",
    "Axis",
    "Init",
    "ParameterSpec",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "checkpoint",
    "deferred_parameters",
    "empty_parameter",
    "initial_value",
    "initialise",
    "join_parameter",
    "load_buffer",
    "local_shape",
    "main",
    "partial_grad",
    "record_collectives",
    "reduce_scatter",
    "replicated_attention",
    "replicated_dropout",
    "row_parallel_addmm",
    "row_parallel_linear",
    "set_dropout",
    "shard",
    "sharded_attention",
    "sharded_dropout",
    "share_grad",
    "slice_parameter",
    "vocab_cross_entropy",
    "vocab_embedding",
]
