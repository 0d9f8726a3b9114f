"""Copies of one block that are planned differently, as classes of their own.

Pricing, plan, program and reports go by class. So a plan in which copies of a block differ is one
of a *variant graph*: the same chain, in which those copies are instances of several classes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from autoplan.ir.graph import BlockClass, Graph
from autoplan.ir.memo import by_identity

__all__ = ["Variants", "class_families", "split_classes"]

Pick = TypeVar("Pick", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variants(Generic[Pick]):
    """A variant graph; for each of its classes, which class it was and what was picked for it."""

    graph: Graph
    origins: tuple[int, ...]
    picks: tuple[Pick, ...]


def split_classes(graph: Graph, picks: Sequence[Pick]) -> Variants[Pick]:
    """The graph in which instances of a class with different ``picks`` (by instance) part.

    Classes are in the order of their origins, and variants of one in the order in which the chain
    first has them; the first keeps its name. It is ``graph`` itself when the copies of every class
    agree. A class without instances is left out. Raises ValueError unless each instance has a pick.
    """
    if len(picks) != len(graph.instances):
        raise ValueError(f"{len(picks)} picks for {len(graph.instances)} blocks")
    chosen: list[dict[Pick, int]] = [{} for _ in graph.classes]
    for instance, pick in zip(graph.instances, picks, strict=True):
        chosen[instance.block_class].setdefault(pick, -1)
    if all(len(variants) == 1 for variants in chosen):
        return Variants(
            graph=graph,
            origins=tuple(range(len(graph.classes))),
            picks=tuple(pick for variants in chosen for pick in variants),
        )
    taken = {block.name for block in graph.classes}
    classes: list[BlockClass] = []
    origins: list[int] = []
    for origin, variants in enumerate(chosen):
        block = graph.classes[origin]
        for number, pick in enumerate(variants):
            variants[pick] = len(classes)
            name = _new_name(block.name, taken) if number else block.name
            classes.append(replace(block, name=name) if number else block)
            origins.append(origin)
    instances = tuple(
        instance if index == instance.block_class else replace(instance, block_class=index)
        for instance, index in (
            (instance, chosen[instance.block_class][pick])
            for instance, pick in zip(graph.instances, picks, strict=True)
        )
    )
    return Variants(
        graph=replace(graph, classes=tuple(classes), instances=instances),
        origins=tuple(origins),
        picks=tuple(pick for variants in chosen for pick in variants),
    )


def _new_name(stem: str, taken: set[str]) -> str:
    number = 2
    while f"{stem}_variant_{number}" in taken:
        number += 1
    taken.add(f"{stem}_variant_{number}")
    return f"{stem}_variant_{number}"


@by_identity(64)
def class_families(graph: Graph) -> tuple[int, ...]:
    """For each class the first one that has the same operators: variants of one are a family.

    Captured classes all differ, so a family of several was made by `split_classes`.
    """
    families: list[int] = []
    for index, block in enumerate(graph.classes):
        alike = (k for k in range(index) if families[k] == k and _same(graph.classes[k], block))
        families.append(next(alike, index))
    return tuple(families)


def _same(one: BlockClass, other: BlockClass) -> bool:
    return one.ops == other.ops and replace(one, name=other.name) == other
