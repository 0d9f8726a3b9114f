"""Points in which copies of a block are planned differently.

A search solves blocks by class, at one recompute level and memory weight for all. Here what
several such `ModelPoint`s say is picked block by block, which makes a point of a variant graph
(`autoplan.ir.variants`): what follows the search takes the two as any graph and point.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoplan.ir.graph import Graph
from autoplan.ir.memo import by_identity
from autoplan.ir.variants import Variants, split_classes
from autoplan.solver.blocks import ModelPoint
from autoplan.solver.frames import shared_parameters

__all__ = ["pick_points"]


def pick_points(
    graph: Graph, points: Sequence[ModelPoint], picks: Sequence[int]
) -> tuple[Graph, ModelPoint]:
    """Variant graph and point in which block ``i`` is as ``points[picks[i]]`` has its class.

    The points are of ``graph``. Copies for which two points say the same stay in one class. Raises
    ValueError for points that do not fit together: other tensors between blocks, or another
    storage of a parameter that several picked classes use.
    """
    if any(point.frame.boundary != points[0].frame.boundary for point in points):
        raise ValueError("the points have other tensors between blocks")
    if all(pick == picks[0] for pick in picks):
        return graph, points[picks[0]]
    pairs = [(i.block_class, pick) for i, pick in zip(graph.instances, picks, strict=True)]
    alike = {pair: _first_alike(points, *pair) for pair in set(pairs)}
    variants = _split(graph, tuple(alike[pair] for pair in pairs))
    chosen = [
        (points[pick], origin)
        for origin, pick in zip(variants.origins, variants.picks, strict=True)
    ]
    point = ModelPoint(
        frame=points[0].frame,
        boundaries=tuple(p.boundaries[k] for p, k in chosen),
        levels=tuple(p.levels[k] for p, k in chosen),
        solutions=tuple(p.solutions[k] for p, k in chosen),
        costs=tuple(p.costs[k] for p, k in chosen),
        microbatch_bound=sum(
            points[pick].solutions[instance.block_class].bound
            for instance, pick in zip(graph.instances, picks, strict=True)
        ),
        scattered=points[0].scattered,
    )
    _require_one_storage(variants.graph, point)
    return variants.graph, point


@by_identity(256)
def _split(graph: Graph, picks: tuple[int, ...]) -> Variants[int]:
    """One graph for all points with the same picks, so that what is known of it is kept."""
    return split_classes(graph, picks)


def _first_alike(points: Sequence[ModelPoint], index: int, pick: int) -> int:
    """The first point that says the same of a class as the picked one."""
    wanted = points[pick]
    for number, point in enumerate(points[:pick]):
        if (
            point.levels[index] == wanted.levels[index]
            and point.boundaries[index] == wanted.boundaries[index]
            and point.solutions[index].strategies == wanted.solutions[index].strategies
        ):
            return number
    return pick


def _require_one_storage(graph: Graph, point: ModelPoint) -> None:
    for fqn, uses in shared_parameters(graph).items():
        stored = {point.solutions[index].placements[local][0] for index, local in uses}
        if len(stored) > 1:
            raise ValueError(f"{fqn} is stored as {' and as '.join(sorted(map(str, stored)))}")
