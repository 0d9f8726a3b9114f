"""Plans made without the solver, for tests of what comes after it.

Strategies are chosen operator by operator in order: by a simple price (bytes moved and
computed), or at random among the legal ones. No cost model and no ILP is involved.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

from autoplan.ir.graph import BlockClass, Graph, Op, TensorKind
from autoplan.ir.levels import level_summary
from autoplan.ir.mesh import Mesh
from autoplan.ir.placement import (
    Partial,
    Placement,
    Replicate,
    Shard,
    conversion,
    required_state,
)
from autoplan.ir.plan import (
    ClusterRecord,
    MeshRecord,
    ModelRecord,
    PipelineRecord,
    Plan,
    PredictionRecord,
    StageRecord,
    TimeRecord,
    WorkloadRecord,
)
from autoplan.ir.recompute import Recompute
from autoplan.ir.record import graph_to_record
from autoplan.ir.strategy import OpStrategy
from autoplan.ir.variants import split_classes
from autoplan.rules import strategies

R = Replicate()


@dataclass(kw_only=True)
class Setup:
    mesh: Mesh = field(default_factory=Mesh)
    zero: int = 0
    schedule: str = "none"
    virtual_stages: int = 1
    microbatches: int = 1
    recompute: str | tuple[str, ...] = "none"
    """Of all blocks, or a pattern that the blocks of the chain repeat."""
    boundary: Placement = R
    seed: int | None = None
    stored: Mapping[str, Placement] = field(default_factory=dict)
    """Placements of parameters that are given, by FQN."""

    def levels(self, graph: Graph) -> list[Recompute]:
        pattern = (self.recompute,) if isinstance(self.recompute, str) else self.recompute
        return [Recompute(pattern[k % len(pattern)]) for k in range(len(graph.instances))]

    def samples(self, micro_batch_size: int) -> int:
        return self.mesh.dp * self.microbatches * micro_batch_size


def make_plan(graph: Graph, model: ModelRecord, setup: Setup, *, seq_len: int) -> Plan:
    """Plan of a graph; `setup.seed` chooses strategies at random instead of by price."""
    variants = split_classes(graph, setup.levels(graph))
    graph = variants.graph
    chosen, boundaries, placements = choose(graph, setup)
    count, stages = len(graph.instances), setup.mesh.pp * setup.virtual_stages
    cuts = [round(index * count / stages) for index in range(stages + 1)]
    mesh = setup.mesh
    return Plan(
        autoplan_version="0",
        model=model,
        workload=WorkloadRecord(
            global_batch=setup.samples(graph.micro_batch_size),
            seq_len=seq_len,
            dtype=graph.dtype,
            optimizer="adamw",
        ),
        cluster=ClusterRecord(
            spec=f"cpu:{mesh.ranks}",
            accelerator="cpu",
            nodes=1,
            ranks_per_node=mesh.ranks,
            memory=2**30,
            usable_memory=2**30,
            digest="0" * 16,
            profile_digest="0" * 16,
            sources=(),
        ),
        mesh=MeshRecord(
            pp=mesh.pp, dp_replicate=mesh.dp_replicate, dp_shard=mesh.dp_shard, tp=mesh.tp
        ),
        pipeline=PipelineRecord.model_validate(
            {
                "schedule": setup.schedule,
                "microbatches": setup.microbatches,
                "micro_batch_size": graph.micro_batch_size,
                "stages": tuple(
                    StageRecord(first=first, last=last)
                    for first, last in pairwise(cuts)
                ),
            }
        ),
        zero=setup.zero,
        recompute=level_summary(setup.levels(graph)),
        graph=graph_to_record(
            graph,
            strategies=chosen,
            boundaries=boundaries,
            placements=placements,
            levels=variants.picks,
        ),
        prediction=PredictionRecord(
            step_time=1.0,
            lower_bound=1.0,
            gap=0.0,
            termination="optimal",
            tokens_per_second=1.0,
            samples_per_second=1.0,
            mfu=0.5,
            flop_per_step=1,
            peak_memory=1,
            memory_limit=2**30,
            time=TimeRecord(
                compute=1, recompute=0, exposed_tp=0, exposed_dp=0, exposed_pp=0, bubble=0,
                optimizer=0,
            ),
            stages=(),
        ),
        baselines=(),
        considered=(),
    )  # fmt: skip


class _DeadEnd(Exception):
    """Earlier choices leave an operator without a strategy (a blocked shard, a tied weight)."""


def choose(graph: Graph, setup: Setup):
    """Strategies and boundary placements of each class; placement and partiality by FQN."""
    if setup.seed is None:
        return _choose(graph, setup, None)
    generator = random.Random(setup.seed)
    for _ in range(20):
        with suppress(_DeadEnd):
            return _choose(graph, setup, generator)
    return _choose(graph, setup, generator)


def _choose(graph: Graph, setup: Setup, generator: random.Random | None):
    stored: dict[str, Placement] = dict(setup.stored)
    uses: dict[str, set[bool]] = {}
    chosen: list[Mapping[str, OpStrategy]] = []
    boundaries = []
    for index, block in enumerate(graph.classes):
        instances = [i for i in graph.instances if i.block_class == index]
        # FQNs that one local name stands for, over all instances.
        names = {
            local: [i.parameters[k] for i in instances] for k, local in enumerate(block.parameters)
        }
        ends = tuple(_boundary(block, name, setup) for name in block.inputs)
        outs = tuple(
            R if block.tensor(name).shape == () else _boundary(block, name, setup)
            for name in block.outputs
        )
        chosen.append(
            _choose_block(block, ends, outs, names, stored, uses, setup.mesh.tp, generator)
        )
        boundaries.append((ends, outs))
    placements = {
        parameter.fqn: (stored.get(parameter.fqn, R), True in uses.get(parameter.fqn, ()))
        for parameter in graph.parameters
    }
    return tuple(chosen), tuple(boundaries), placements


def _boundary(block: BlockClass, name: str, setup: Setup) -> Placement:
    shape = block.tensor(name).shape
    if isinstance(setup.boundary, Shard) and len(shape) > setup.boundary.dim:
        return setup.boundary
    return R


def _choose_block(
    block: BlockClass,
    ends: tuple[Placement, ...],
    outs: tuple[Placement, ...],
    names: Mapping[str, list[str]],
    stored: dict[str, Placement],
    uses: dict[str, set[bool]],
    ranks: int,
    generator: random.Random | None,
) -> dict[str, OpStrategy]:
    produced: dict[str, Placement] = dict(zip(block.inputs, ends, strict=True))
    result = {}
    for op in block.ops:
        options = []
        for strategy in strategies(op, block, ranks):
            price = _price(op, block, strategy, produced, names, stored, uses, ranks)
            if price is not None:
                options.append((price, len(options), strategy))
        if not options:
            raise _DeadEnd(f"no strategy of {op.name} {op.target} fits those chosen before")
        if generator is None:
            strategy = min(options)[2]
        else:
            strategy = generator.choice(options)[2]
        result[op.name] = strategy
        produced.update(zip(op.outputs, strategy.outputs, strict=True))
        for name, state in zip(op.inputs, _states(op, block, strategy), strict=True):
            for fqn in names.get(name, ()):
                stored[fqn] = state if isinstance(state, Shard) else R
                uses.setdefault(fqn, set()).add(state == Replicate(True))
    for name, out in zip(block.outputs, outs, strict=True):
        assert conversion(produced.get(name, R), out) is not None
    return result


def _states(op: Op, block: BlockClass, strategy: OpStrategy) -> list[Placement]:
    return [
        required_state(p, strategy.outputs, differentiable=block.tensor(name).requires_grad)
        for name, p in zip(op.inputs, strategy.inputs, strict=True)
    ]


def _price(op, block, strategy, produced, names, stored, uses, ranks) -> float | None:
    price = 0.0
    for name, state in zip(op.inputs, _states(op, block, strategy), strict=True):
        tensor = block.tensor(name)
        if tensor.kind is TensorKind.PARAMETER:
            for fqn in names[name]:
                have = stored.get(fqn)
                want = state if isinstance(state, Shard) else R
                if have is not None and have != want:
                    return None
            if want == R:
                price += 0.3 * tensor.numel
            continue
        pair = conversion(produced.get(name, R), state, differentiable=tensor.requires_grad)
        if pair is None:
            return None
        for kind in (pair.forward, pair.backward):
            price += 0.0 if kind is None else (2.0 if kind == "all_reduce" else 1.0) * tensor.numel
    whole = sum(block.tensor(name).numel for name in op.outputs)
    sharded = all(isinstance(p, Shard | Partial) for p in strategy.outputs)
    price += (whole + op.flop * 0.05) / (ranks if sharded else 1)
    price += sum(block.tensor(n).numel for n, p in zip(op.outputs, strategy.outputs, strict=True)
                 if isinstance(p, Partial))  # fmt: skip
    return price


Chooser = Callable[[Graph, Setup], object]
