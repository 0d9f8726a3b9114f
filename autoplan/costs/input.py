"""Ceiling of the input path: samples/s that a node's loader can give, and what a step needs.

Stages (read, decode, augment, batch) share the cores. With ``R_i`` samples/s of stage ``i`` on
one core and ``c_i`` cores given to it, the rate ``X`` is the optimum of

    max X   s.t.   X <= R_i c_i,   sum c_i <= cores,   c_i <= 1 for sequential i,
                   X size <= disk bandwidth

(the linear program of Plumber, arXiv 2111.04131). The cores a rate takes are ``X / R_i`` each, so
the optimum is the least of three caps and needs no solver.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["InputStage", "input_rate", "input_step_time"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputStage:
    """A stage's samples/s on one core; a ``sequential`` one can't use more than one core."""

    rate: float
    sequential: bool = False


def input_rate(
    stages: Sequence[InputStage],
    *,
    cores: int,
    sample_size: float = 0.0,
    disk_bandwidth: float = math.inf,
) -> float:
    """Samples/s of the stages on ``cores`` cores, each sample ``sample_size`` bytes of disk.

    >>> stages = [InputStage(rate=rate) for rate in (2.0, 4.0, 50.0)]
    >>> round(input_rate(stages, cores=8, sample_size=15e6, disk_bandwidth=200e6), 4)
    10.3896
    """
    caps = [cores / sum(1 / stage.rate for stage in stages)] if stages else []
    caps += [stage.rate for stage in stages if stage.sequential]
    if sample_size > 0:
        caps.append(disk_bandwidth / sample_size)
    return min(caps, default=math.inf)


def input_step_time(rate: float, *, global_batch: int, dp: int, ranks_per_node: int) -> float:
    """Seconds the input needs for a step, when a node's loaders give ``rate`` samples/s.

    A program's ranks each read the share of their data-parallel rank, so those that share an
    operator or a pipeline read the same samples once more.

    >>> input_step_time(100.0, global_batch=64, dp=8, ranks_per_node=8)
    0.64
    """
    return ranks_per_node * (global_batch / dp) / rate
