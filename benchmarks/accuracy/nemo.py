"""What NeMo on Megatron-Core runs that plans of the search space don't: terms on top of a price.

- Context parallelism: a rank has 1/cp of the sequence, and keys and values go around a ring. Of
  the causal mask each step computes as much as attention within a part, so attention takes cp
  times as long as captured for a part, and a transfer hides behind a step (TransformerEngine;
  arXiv 2310.01889). The backward sends keys and values and their gradients.
- Tensor parallelism with sequence shards in user buffers: a gather or scatter is cut into tp
  chunks, each beside the matmul of another, and one chunk is left (NeMo user guide 24.12,
  communication overlap).
- Interleaved 1F1B: stages of several chunks, messages beside compute (the same).
- Products of layers in fp8 with delayed scaling: TransformerEngine writes each input and each
  gradient of an output once more, plain and transposed, a byte each; what a norm makes is
  written so at once. Embedding, head and attention stay in bfloat16.
- Experts on an axis of their own (ep), which runs over data-parallel ranks: rows go to the ranks of
  their experts and back, two all_to_alls in each pass; tp ranks of an expert gather the rows and
  scatter the sums (Megatron-Core, transformer/moe/token_dispatcher.py), which user buffers do not
  hide. Gradients of experts are summed with those of the rest, over all data-parallel ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoplan.costs.block import BlockCost
from autoplan.costs.collectives import collective_time
from autoplan.costs.compute import memory_time
from autoplan.costs.step import unit_time
from autoplan.costs.terms import op_term
from autoplan.ir.graph import BlockClass, Graph, Op, TensorKind
from autoplan.ir.hardware import Accelerator, Cluster
from autoplan.ir.mesh import Group, spread
from autoplan.ir.placement import CollectiveKind, Shard, shard_shape
from autoplan.ir.strategy import OpStrategy
from autoplan.simulate import simulate_pipeline
from autoplan.solver.between import send_times, tied_times
from autoplan.solver.inter import StageCut
from autoplan.solver.pricing import Priced
from benchmarks.accuracy.rows import Skip

__all__ = ["NO_EXTRAS", "Extras", "fp8_accelerator", "interleaved_time", "with_extras"]

_ATTENTION = "scaled_dot_product"
_FP8 = "float8_e4m3fn"
_ENDS = ("aten.embedding.", "aten.cross_entropy_loss.")
_NORMS = ("aten.layer_norm.", "aten.rms_norm.")
_EXPERT_PRODUCT = "aten.bmm."


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """Mechanisms of a run: ranks of a sequence, chunks a rank, tp beside matmuls, fp8 products.

    ``attention_again``: the backward runs attention's forward again (selective recompute of
    Megatron-Core, which keeps all else). ``layers_again``: full recompute runs the layers again,
    not embedding and head. ``stops_early``: it ends with the last tensor that a layer saved.
    ``part_again``: part of the layers that full recompute is set for. ``products_again``: parts of
    a layer's products, in their order, that selective recompute runs again; a plan's keeps all.
    ``experts``: ranks that the experts of a layer are spread over.
    """

    context: int = 1
    chunks: int = 1
    hides_tp: bool = False
    fp8: bool = False
    attention_again: bool = False
    layers_again: bool = False
    stops_early: bool = False
    part_again: float = 1.0
    products_again: tuple[float, ...] = ()
    experts: int = 1


NO_EXTRAS = Extras()


def fp8_accelerator(accelerator: Accelerator) -> Accelerator:
    """The device for layers whose products are in fp8 and whose attention is not."""
    rates = dict(accelerator.matmul_peak)
    if _FP8 not in rates:
        raise Skip(f"no fp8 rate of {accelerator.name}")
    ratio = rates[_FP8] / rates["bfloat16"]
    return replace(
        accelerator,
        matmul_peak=tuple({**rates, "bfloat16": rates[_FP8]}.items()),
        attention_efficiency=accelerator.attention_efficiency / ratio,
    )


def with_extras(
    cost: BlockCost,
    block: BlockClass,
    chosen: dict[str, OpStrategy],
    group: Group,
    cluster: Cluster,
    extras: Extras,
) -> BlockCost:
    """Cost of a block with what the run does on top."""
    forward = backward = tp_forward = tp_backward = 0.0
    kept = 0.0
    for op in block.ops:
        if op.target.startswith(_EXPERT_PRODUCT) and _is_projection(op, block):
            kept += _around_expert(op, block, group, cluster)
            sent = _exchange(op, block, group, cluster, extras.experts)
            tp_forward += sent
            tp_backward += sent
        if _ATTENTION in op.target:
            term = op_term(op, block, chosen[op.name], group, cluster)
            ring = _ring(op, block, chosen[op.name], group, cluster, extras.context)
            forward += (extras.context - 1) * term.forward
            backward += (extras.context - 1) * term.backward
            tp_forward += (extras.context - 1) * max(0.0, ring - term.forward)
            tp_backward += (extras.context - 1) * max(0.0, 2 * ring - term.backward)
            if extras.attention_again:
                backward += extras.context * term.forward
        elif extras.fp8 and _is_projection(op, block):
            casts = _casts(op, block, chosen[op.name], group, cluster.accelerator)
            forward += casts[0]
            backward += casts[1]
    if extras.layers_again:
        if any(op.target.startswith(_ENDS) for op in block.ops):
            backward -= cost.forward + cost.tp_forward
        else:
            backward -= (1 - extras.part_again) * (cost.forward + cost.tp_forward)
            if extras.stops_early:
                backward -= extras.part_again * sum(
                    op_term(op, block, chosen[op.name], group, cluster).forward
                    for op in _after_last_saved(block)
                )
    if extras.products_again and _has_attention(block):
        products = [op for op in block.ops if _is_projection(op, block)]
        for part, op in zip(extras.products_again, products, strict=True):
            backward += part * op_term(op, block, chosen[op.name], group, cluster).forward
    if not any((forward, backward, tp_forward, extras.hides_tp)):
        return cost
    left_forward, left_backward = cost.tp_forward, cost.tp_backward
    if extras.hides_tp and _has_attention(block):
        left_forward = kept + _left(cost.tp_forward - kept, cost.forward, group.ranks)
        left_backward = kept + _left(cost.tp_backward - kept, cost.backward, group.ranks)
    return replace(
        cost,
        forward=cost.forward + forward,
        backward=cost.backward + backward,
        tp_forward=left_forward + tp_forward,
        tp_backward=left_backward + tp_backward,
    )


def interleaved_time(
    graph: Graph, priced: Priced, cluster: Cluster, cut: StageCut, chunks: int
) -> float:
    """Seconds of a step whose ranks have that many chunks each, dealt out in turn."""
    configuration, point = priced.configuration, priced.point
    ranks = configuration.mesh.pp
    forward, backward = (
        _dealt([getattr(stage.time, name) for stage in priced.stages], layers, chunks)
        for name, layers in zip(("forward", "backward"), _layers(graph, priced), strict=True)
    )
    send = send_times(graph, configuration, point, cluster)[cut.ranges[0][1] - 1]
    timeline = simulate_pipeline(
        "interleaved1f1b",
        forward,
        backward,
        [send] * (ranks * chunks - 1),
        configuration.microbatches,
        ranks=ranks,
    )
    tied = tied_times(graph, configuration, point, cluster, cut)
    ends = [max(timeline.end_of_stage[rank::ranks]) for rank in range(ranks)]
    finishes = [
        end + stage.time.tail_dp + stage.time.tail_tp + summing
        for end, stage, summing in zip(ends, priced.stages, tied, strict=True)
    ]
    return max(finishes) + priced.optimizer


def _layers(graph: Graph, priced: Priced) -> tuple[float, float]:
    """Seconds of the layers of a rank, forward and backward."""
    ranks = len(priced.stages)
    if ranks > 2:  # a rank inside the pipeline has nothing else
        return priced.stages[1].time.forward, priced.stages[1].time.backward
    classes = [instance.block_class for instance in graph.instances]
    ((layer, count),) = Counter(classes).most_common(1)
    unit = unit_time(
        priced.block_times[layer],
        zero=priced.configuration.zero,
        pipelined=True,
        microbatches=priced.configuration.microbatches,
    )
    each = count // ranks
    return each * (unit.forward + unit.tp_forward), each * (unit.backward + unit.tp_backward)


def _dealt(seconds: Sequence[float], layers: float, chunks: int) -> list[float]:
    """Seconds of each chunk in order; what a rank has beside layers is at the model's ends."""
    ranks = len(seconds)
    layers /= chunks
    dealt = [layers] * (ranks * chunks)
    dealt[0] = seconds[0] - (chunks - 1) * layers
    dealt[-1] = seconds[-1] - (chunks - 1) * layers
    return dealt


def _left(collectives: float, compute: float, chunks: int) -> float:
    """Seconds left of collectives cut into chunks beside compute."""
    return max(collectives / chunks, collectives - compute)


def _is_projection(op: Op, block: BlockClass) -> bool:
    """Whether it multiplies by a parameter, in a layer."""
    return op.target.startswith(("aten.linear.", _EXPERT_PRODUCT)) and any(
        block.tensor(name).kind is TensorKind.PARAMETER for name in op.inputs
    )


def _rows(op: Op, block: BlockClass) -> int:
    """Bytes of the rows that an expert's product reads or writes, of the hidden size: the less."""
    (name,) = (n for n in op.inputs if block.tensor(n).kind is not TensorKind.PARAMETER)
    return min(block.tensor(name).size, block.tensor(op.outputs[0]).size)


def _around_expert(op: Op, block: BlockClass, group: Group, cluster: Cluster) -> float:
    """Seconds in which tp ranks gather rows before an expert's first product, or scatter sums."""
    return collective_time(CollectiveKind.ALL_GATHER, _rows(op, block), group, cluster)


def _exchange(op: Op, block: BlockClass, group: Group, cluster: Cluster, experts: int) -> float:
    """Seconds in which rows go to the ranks of their experts, or come back from there."""
    ring = spread(experts, group.ranks, cluster.sizes, world=cluster.ranks)
    payload = _rows(op, block) // group.ranks * experts
    return collective_time(CollectiveKind.ALL_TO_ALL, payload, ring, cluster)


def _after_last_saved(block: BlockClass) -> Sequence[Op]:
    """Operators that run after the last saved tensor is made; inputs are saved before a kernel."""
    last = max(i for i, op in enumerate(block.ops) if op.saved)
    made = set(block.ops[last].saved) & set(block.ops[last].outputs)
    return block.ops[last + 1 if made else last :]


def _has_attention(block: BlockClass) -> bool:
    return any(_ATTENTION in op.target for op in block.ops)


def _ring(
    op: Op, block: BlockClass, strategy: OpStrategy, group: Group, cluster: Cluster, context: int
) -> float:
    """Seconds to hand on keys and values; ranks of a ring are ``group.ranks`` apart."""
    if context == 1:
        return 0.0
    size = 0
    for name, placement in zip(op.inputs[1:3], strategy.inputs[1:3], strict=True):
        tensor = block.tensor(name)
        part = group.ranks if isinstance(placement, Shard) else 1
        size += tensor.size // part
    ring = spread(context, group.ranks, cluster.sizes, world=cluster.ranks)
    return collective_time(CollectiveKind.P2P, size, ring, cluster)


def _casts(
    op: Op, block: BlockClass, strategy: OpStrategy, group: Group, accelerator: Accelerator
) -> tuple[float, float]:
    """Seconds to write a product's input, and its output's gradient, in fp8."""
    made_by_norm = {n for o in block.ops if o.target.startswith(_NORMS) for n in o.outputs}
    (name,) = (n for n in op.inputs if block.tensor(n).kind is not TensorKind.PARAMETER)
    sizes = []
    for tensor, placement in (
        (block.tensor(name), strategy.inputs[op.inputs.index(name)]),
        (block.tensor(op.outputs[0]), strategy.outputs[0]),
    ):
        local = 1
        for size in shard_shape(tensor.shape, placement, group.ranks):
            local *= size
        sizes.append(4 * local)  # two bytes read, two written
    times = [memory_time(size, accelerator) + accelerator.kernel_latency for size in sizes]
    return (0.0 if name in made_by_norm else times[0]), times[1]
