"""Cost of one block under chosen strategies: seconds, collectives, bytes.

The closed form that the integer program optimises: the same terms (`terms.block_terms`),
summed over the choices made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from autoplan.costs.compute import OpTime, dispatches, local_bytes
from autoplan.costs.liveness import Liveness, liveness
from autoplan.costs.terms import BlockTerms, block_terms, parameter_states
from autoplan.ir.graph import BlockClass, dtype_size
from autoplan.ir.hardware import Accelerator, Cluster
from autoplan.ir.memo import by_identity
from autoplan.ir.mesh import Group
from autoplan.ir.placement import CollectiveKind, Placement, shard_shape
from autoplan.ir.recompute import Recompute, is_kept
from autoplan.ir.strategy import OpStrategy

__all__ = [
    "NO_CALLS",
    "BlockCost",
    "CollectiveCall",
    "HostCalls",
    "block_cost",
    "collectives",
    "host_times",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCalls:
    """What a system's host runs besides operators and collectives, each as long as an operator.

    ``functions`` are calls around a collective in each of both passes, ``hooks`` calls on the
    gradient of a parameter. ``waits``: the host issues a kernel only when the one before is done
    (CUDA_LAUNCH_BLOCKING=1), so that its own time adds to the device's instead of hiding in it.
    """

    functions: int = 0
    hooks: int = 0
    waits: bool = False


NO_CALLS = HostCalls()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCost:
    """Seconds and bytes of one block for one microbatch on one rank.

    ``forward`` and ``backward`` are compute (with the time in which the device waits for the
    host, which issues operators ahead of it within a pass), ``tp_forward`` and ``tp_backward``
    collectives of the model axis. ``again`` and ``tp_again`` are what selective recompute pays a
    second time. ``boundary`` is bytes of the boundary inputs, ``boundary_out`` those handed on,
    and ``held`` has what is kept from forward to backward and what lives for a moment.
    ``parameters`` lists (local name, local elements, bytes of one), ``partial_grads`` the
    names whose gradient needs an all_reduce once a step.
    """

    forward: float
    backward: float
    tp_forward: float
    tp_backward: float
    again: float
    tp_again: float
    boundary: int
    boundary_out: int
    held: Liveness
    parameters: tuple[tuple[str, int, int], ...]
    partial_grads: tuple[str, ...]

    def kept(self, recompute: Recompute) -> int:
        """Bytes held from forward to backward."""
        return self.held.at(recompute).kept

    @property
    def parameter_bytes(self) -> int:
        """Bytes of a rank's part of the parameters, in their own dtype."""
        return sum(elements * size for _, elements, size in self.parameters)

    def seconds(self, recompute: Recompute) -> float:
        """Seconds of both passes, collectives included."""
        both = self.forward + self.tp_forward + self.backward + self.tp_backward
        return both + self.forward_again(recompute)

    def forward_again(self, recompute: Recompute) -> float:
        """Seconds of the forward, collectives included, that are paid again in backward."""
        return recompute.of(0.0, self.again + self.tp_again, self.forward + self.tp_forward)


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One collective of the program: kind, bytes of the whole tensor, and pass.

    ``inner``: it is part of an operator that selective recompute runs again.
    """

    kind: CollectiveKind
    payload: int
    backward: bool
    inner: bool = False

    def repeats(self, recompute: Recompute) -> bool:
        """Whether it is issued again when the forward is recomputed."""
        if self.backward or recompute is Recompute.NONE:
            return False
        return self.inner or recompute is Recompute.FULL


def block_cost(
    block: BlockClass,
    strategies: Mapping[str, OpStrategy],
    boundary_in: tuple[Placement, ...],
    boundary_out: tuple[Placement, ...],
    group: Group,
    cluster: Cluster,
    *,
    calls: HostCalls = NO_CALLS,
) -> BlockCost:
    """Cost of a block with those strategies (by operator name) and boundary placements."""
    ranks = group.ranks
    terms = block_terms(block, strategies, boundary_in, boundary_out, group, cluster)
    states = parameter_states(block, strategies)
    tp_forward = sum(term.tp_forward for term in terms.ops)
    tp_forward += sum(term.resharding.forward for term in terms.conversions)
    tp_backward = sum(term.tp_backward for term in terms.ops)
    tp_backward += sum(term.resharding.backward for term in terms.conversions)
    issued_calls = _calls(block, strategies, terms, ranks)
    issued = [call.backward for call in issued_calls]
    host = host_times(block, cluster.accelerator)
    latency = cluster.accelerator.dispatch_latency
    around = calls.functions * len(issued)
    hooks = calls.hooks * _gradients(block)
    host_forward = host.forward + latency * (issued.count(False) + around)
    host_backward = host.backward + latency * (issued.count(True) + around + hooks)
    tp_again = sum(term.tp_again for term in terms.ops)
    # Kept operators are issued too: each is handed what it made before.
    repeated = sum(call.repeats(Recompute.SELECTIVE) for call in issued_calls)
    host_again = host.forward + latency * repeated

    def compute(device: float, host: float, collective: float) -> float:
        return device + host if calls.waits else max(device, host - collective)

    return BlockCost(
        forward=compute(sum(term.forward for term in terms.ops), host_forward, tp_forward),
        backward=compute(sum(term.backward for term in terms.ops), host_backward, tp_backward),
        tp_forward=tp_forward,
        tp_backward=tp_backward,
        again=compute(sum(term.again for term in terms.ops), host_again, tp_again),
        tp_again=tp_again,
        boundary=_local_sum(block, block.inputs, boundary_in, ranks),
        boundary_out=_local_sum(block, block.outputs, boundary_out, ranks),
        held=liveness(
            block,
            strategies,
            boundary_in,
            boundary_out,
            ranks,
            cluster.accelerator.convolutions,
        ),
        parameters=tuple(
            (name, *_parameter(block, name, states[name][0], ranks)) for name in block.parameters
        ),
        partial_grads=tuple(name for name in block.parameters if states[name][1]),
    )


@by_identity(1024)
def host_times(block: BlockClass, accelerator: Accelerator) -> OpTime:
    """Seconds in which the host issues the operators of a block; collectives come on top.

    Backward also adds each parameter's gradient to that of earlier microbatches.
    """
    counts = [dispatches(op, block, accelerator) for op in block.ops]
    latency = accelerator.dispatch_latency
    return OpTime(
        forward=latency * sum(forward for forward, _ in counts),
        backward=latency * (_gradients(block) + sum(backward for _, backward in counts)),
    )


def _gradients(block: BlockClass) -> int:
    return sum(block.tensor(name).requires_grad for name in block.parameters)


def collectives(
    block: BlockClass,
    strategies: Mapping[str, OpStrategy],
    boundary_in: tuple[Placement, ...],
    boundary_out: tuple[Placement, ...],
    group: Group,
    cluster: Cluster,
) -> tuple[CollectiveCall, ...]:
    """Collectives of the model axis that the block issues for one microbatch."""
    terms = block_terms(block, strategies, boundary_in, boundary_out, group, cluster)
    return _calls(block, strategies, terms, group.ranks)


def _calls(
    block: BlockClass, strategies: Mapping[str, OpStrategy], terms: BlockTerms, ranks: int
) -> tuple[CollectiveCall, ...]:
    if ranks == 1:
        return ()
    calls = [
        CollectiveCall(inner.kind, inner.payload, inner.backward, not is_kept(op))
        for op in block.ops
        for inner in strategies[op.name].inner
    ]
    for term in terms.conversions:
        resharding = term.resharding
        for kind, backward in ((resharding.forward_kind, False), (resharding.backward_kind, True)):
            if kind is not None:
                calls.append(CollectiveCall(kind, resharding.payload, backward))
    return tuple(calls)


def _local_sum(
    block: BlockClass, names: tuple[str, ...], placements: tuple[Placement, ...], ranks: int
) -> int:
    return sum(
        local_bytes(block.tensor(name), placement, ranks)
        for name, placement in zip(names, placements, strict=True)
    )


def _parameter(block: BlockClass, name: str, storage: Placement, ranks: int) -> tuple[int, int]:
    tensor = block.tensor(name)
    return math.prod(shard_shape(tensor.shape, storage, ranks)), dtype_size(tensor.dtype)
