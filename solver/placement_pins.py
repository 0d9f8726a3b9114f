"""Placements on tp that the user fixes for parameters, by patterns of their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from autoplan.errors import UsageError
from autoplan.ir.graph import Graph, Parameter
from autoplan.ir.hardware import Cluster
from autoplan.ir.names import near_matches
from autoplan.ir.placement import Placement, Replicate, Shard, parse_placement
from autoplan.ir.variants import split_classes
from autoplan.solver.frames import storage_options

__all__ = [
    "PlacementPin",
    "degrees_that_take",
    "parameter_patterns",
    "parse_placement_pin",
    "pinned_graph",
    "pinned_storage",
    "require_degree",
    "require_parameters",
]

_EXAMPLE = "--pin 'model.layers.*.mlp.up_proj.weight=Shard(0)'"
_WORDS = {"Replicate": "R", "Replicate()": "R"}
_SHARD = re.compile(r"^Shard\((?:dim=)?(\d+)(?:,(?:blocks=)?(\d+)|,(?:pad=True|pad))?\)$")


@dataclass(frozen=True, slots=True)
class PlacementPin:
    """Parameters whose FQN matches ``pattern`` are stored so on the model axis."""

    pattern: str
    placement: Placement

    def __str__(self) -> str:
        return f"{self.pattern}={self.placement}"

    def matches(self, parameter: Parameter) -> bool:
        """Whether a parameter has a name of the pattern; tied ones have several."""
        return any(fnmatchcase(name, self.pattern) for name in (parameter.fqn, *parameter.aliases))


def parse_placement_pin(text: str) -> PlacementPin:
    """Pin of ``PATTERN=PLACEMENT``; UsageError where it is none.

    >>> str(parse_placement_pin("*.up_proj.weight=Shard(0)"))
    '*.up_proj.weight=S(0)'
    """
    pattern, _, words = text.partition("=")
    pattern, words = pattern.strip(), words.replace(" ", "")
    if not pattern or not words:
        raise UsageError(f"--pin {text!r} is not PATTERN=PLACEMENT", hint=_EXAMPLE)
    try:
        placement = parse_placement(_short(words))
    except ValueError:
        placement = None
    if not isinstance(placement, Replicate | Shard) or placement == Replicate(True):
        raise UsageError(
            f"--pin {text!r}: {words!r} is no placement of a parameter",
            hint="Replicate, Shard(dim), Shard(dim,blocks) or Shard(dim,pad); plans write them as "
            "R, S(0), S(0,3), S(0,pad)",
        )
    return PlacementPin(pattern, placement)


def _short(words: str) -> str:
    """A placement as plans write it, of one as torch prints it."""
    match = _SHARD.match(words)
    if match is None:
        return _WORDS.get(words, words)
    more = f",{match[2]}" if match[2] else ",pad" if "pad" in words else ""
    return f"S({match[1]}{more})"


def require_parameters(graph: Graph, pins: Sequence[PlacementPin]) -> None:
    """Raise UsageError for a pin that matches no parameter, or one that two pins place apart."""
    pinned_by: dict[str, PlacementPin] = {}
    for pin in pins:
        matched = [p for p in graph.parameters if pin.matches(p)]
        if not matched:
            raise UsageError(
                f"--pin {pin}: no parameter of {graph.name} has such a name",
                hint=near_matches(
                    pin.pattern, parameter_patterns(graph), what="parameters", most=12
                ),
            )
        for parameter in matched:
            other = pinned_by.setdefault(parameter.fqn, pin)
            if other.placement != pin.placement:
                raise UsageError(
                    f"--pin {other} and --pin {pin} both match {parameter.fqn}",
                    hint="make one of the patterns narrower",
                )


def parameter_patterns(graph: Graph) -> list[str]:
    """Names of parameters, those of repeated modules once, with a star for the number."""
    names = (name for p in graph.parameters for name in (p.fqn, *p.aliases))
    return list(dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.)", "*", name) for name in names))


def pinned_storage(graph: Graph, pins: Sequence[PlacementPin]) -> dict[str, Placement]:
    """Fixed placements of parameters by FQN."""
    return {
        parameter.fqn: pin.placement
        for parameter in graph.parameters
        for pin in pins
        if pin.matches(parameter)
    }


def pinned_graph(graph: Graph, pins: Sequence[PlacementPin]) -> Graph:
    """The graph, copies of a block with other pins in classes of their own."""
    if not pins:
        return graph
    stored = pinned_storage(graph, pins)
    picks = [tuple(map(stored.get, instance.parameters)) for instance in graph.instances]
    return split_classes(graph, picks).graph


def degrees_that_take(
    graph: Graph, stored: Mapping[str, Placement], degrees: Iterable[int], cluster: Cluster
) -> set[int]:
    """Those of the degrees of tp at which some strategies store every parameter as it is fixed."""
    return {
        tp
        for tp in degrees
        if all(p in _options(graph, fqn, tp, cluster) for fqn, p in _one_a_class(graph, stored))
    }


def require_degree(
    graph: Graph, pins: Sequence[PlacementPin], degrees: Iterable[int], cluster: Cluster
) -> None:
    """Raise UsageError when the pins hold at none of the degrees of tp, with what would."""
    tried = sorted(degrees)
    if degrees_that_take(graph, pinned_storage(graph, pins), tried, cluster):
        return
    for pin in pins:
        stored = pinned_storage(graph, [pin])
        if degrees_that_take(graph, stored, tried, cluster):
            continue
        for fqn, placement in _one_a_class(graph, stored):
            offered = {tp: _options(graph, fqn, tp, cluster) for tp in tried}
            if any(placement in options for options in offered.values()):
                continue
            raise UsageError(
                f"--pin {pin}: no operator takes {fqn} so at tp {', '.join(map(str, tried))}",
                hint="; ".join(
                    f"at tp {tp} it may be {', '.join(map(str, options))}"
                    for tp, options in offered.items()
                ),
            )
    raise UsageError(
        f"no degree of tp of {', '.join(map(str, tried))} takes all of "
        + ", ".join(f"--pin {pin}" for pin in pins),
        hint="drop one of them",
    )


def _one_a_class(graph: Graph, stored: Mapping[str, Placement]) -> list[tuple[str, Placement]]:
    """Fixed parameters of one block of each class: its copies are fixed alike."""
    first = {i.block_class: i for i in reversed(graph.instances)}
    fqns = dict.fromkeys(fqn for _, i in sorted(first.items()) for fqn in i.parameters)
    return [(fqn, stored[fqn]) for fqn in fqns if fqn in stored]


def _options(graph: Graph, fqn: str, tp: int, cluster: Cluster) -> list[Placement]:
    """Storages of a parameter that all its uses take, in whatever blocks."""
    found: list[Placement] | None = None
    for index, block in enumerate(graph.classes):
        first = next((i for i in graph.instances if i.block_class == index), None)
        if first is None or fqn not in first.parameters:
            continue
        for local, name in zip(block.parameters, first.parameters, strict=True):
            if name == fqn:
                options = storage_options(block, local, tp, cluster)
                found = options if found is None else [p for p in found if p in options]
    return found or [Replicate()]
