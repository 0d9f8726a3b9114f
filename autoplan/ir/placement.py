"""Placements of a tensor on one mesh axis, and how one becomes another.

A placement says what a rank of the axis holds: the whole value (``R``), a slice of one
dimension (``S(dim)``), its slice of each of ``blocks`` equal blocks of a dimension
(``S(dim, blocks)``), its slice of a dimension that does not divide (``S(dim, pad)``), or an
addend of the value (``P``). At the input of an operator a replicated tensor may in addition
send back a *partial* gradient, written ``R*``.

Every rank of a padded shard holds ``ceil(size / ranks)`` elements; the last rank's surplus is
padding. Its values mean nothing but are finite, and gradients are zero there.

The gradient law fixes which: where some output of the operator is not replicated, each
rank sees only part of it, so the gradient of a replicated, differentiable input is partial.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "CollectiveKind",
    "Conversion",
    "Partial",
    "Placement",
    "Replicate",
    "Shard",
    "can_pad",
    "conversion",
    "padded_shape",
    "parse_placement",
    "required_state",
    "shard_shape",
]


class CollectiveKind(StrEnum):
    """Collectives that a program may issue."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    P2P = "p2p"


@dataclass(frozen=True, slots=True)
class Replicate:
    """Whole value on each rank; ``partial_grad`` marks the input state ``R*``."""

    partial_grad: bool = False

    def __str__(self) -> str:
        return "R*" if self.partial_grad else "R"


@dataclass(frozen=True, slots=True)
class Shard:
    """Slice of ``dim``; with ``blocks`` > 1 a slice of each of that many equal blocks.

    ``pad``: the dimension does not divide, and the last slice is filled up with padding.
    """

    dim: int
    blocks: int = 1
    pad: bool = False

    def __post_init__(self) -> None:
        if self.pad and self.blocks != 1:
            raise ValueError(f"a shard of {self.blocks} blocks can't be padded")

    def __str__(self) -> str:
        if self.pad:
            return f"S({self.dim},pad)"
        return f"S({self.dim})" if self.blocks == 1 else f"S({self.dim},{self.blocks})"


@dataclass(frozen=True, slots=True)
class Partial:
    """An addend: the value is the sum over the ranks of the axis."""

    def __str__(self) -> str:
        return "P"


Placement = Replicate | Shard | Partial

_SHARD = re.compile(r"^S\((\d+)(?:,(?:(\d+)|(pad)))?\)$")


def parse_placement(text: str) -> Placement:
    """Placement written by ``str``.

    >>> parse_placement("S(0,3)")
    Shard(dim=0, blocks=3, pad=False)
    """
    if text in ("R", "R*"):
        return Replicate(text == "R*")
    if text == "P":
        return Partial()
    match = _SHARD.match(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not a placement; expected R, R*, P, S(dim), S(dim,blocks) or S(dim,pad)"
        )
    return Shard(int(match[1]), int(match[2] or 1), match[3] is not None)


@dataclass(frozen=True, slots=True)
class Conversion:
    """Collectives that turn a produced placement into a required input state.

    ``None`` stands for nothing or a local slice. ``backward`` runs on the gradient.
    """

    forward: CollectiveKind | None
    backward: CollectiveKind | None


_NOTHING = Conversion(None, None)


def conversion(
    produced: Placement, required: Placement, *, differentiable: bool = True
) -> Conversion | None:
    """Collectives from a producer's placement to a consumer's input state.

    ``None`` when the pair is illegal. For a tensor that carries no gradient ``R*`` equals
    ``R`` and no backward collective is needed. Source: the table of the placement algebra
    (docs/placements.md).
    """
    pair = _conversion(produced, required)
    if pair is None or differentiable:
        return pair
    return Conversion(pair.forward, None)


def _conversion(produced: Placement, required: Placement) -> Conversion | None:
    kind = CollectiveKind
    match produced, required:
        case Replicate(), Replicate(partial_grad):
            return Conversion(None, kind.ALL_REDUCE) if partial_grad else _NOTHING
        case Replicate(), Shard():
            return Conversion(None, kind.ALL_GATHER)
        case Shard(), Replicate(partial_grad):
            return Conversion(kind.ALL_GATHER, kind.REDUCE_SCATTER if partial_grad else None)
        case Shard(), Shard():
            if produced == required:
                return _NOTHING
            if produced.dim == required.dim or not (_is_plain(produced) and _is_plain(required)):
                return None
            return Conversion(kind.ALL_TO_ALL, kind.ALL_TO_ALL)
        case Partial(), Replicate(partial_grad):
            return Conversion(kind.ALL_REDUCE, kind.ALL_REDUCE if partial_grad else None)
        case Partial(), Shard():
            return Conversion(kind.REDUCE_SCATTER, kind.ALL_GATHER)
        case Partial(), Partial():
            return _NOTHING
        case _:
            return None


def _is_plain(shard: Shard) -> bool:
    return shard.blocks == 1 and not shard.pad


def required_state(
    input_placement: Placement, outputs: tuple[Placement, ...], *, differentiable: bool
) -> Placement:
    """State an operator requires of one input, by the gradient law.

    >>> str(required_state(Replicate(), (Shard(0),), differentiable=True))
    'R*'
    """
    if not isinstance(input_placement, Replicate):
        return input_placement
    whole = all(isinstance(output, Replicate) for output in outputs)
    return Replicate(partial_grad=differentiable and not whole)


def shard_shape(shape: tuple[int, ...], placement: Placement, ranks: int) -> tuple[int, ...]:
    """Shape of what one rank of ``ranks`` holds, padding included.

    >>> shard_shape((8, 6), Shard(1, 3), 2)
    (8, 3)
    >>> shard_shape((8, 5), Shard(1, pad=True), 2)
    (8, 3)
    """
    if not isinstance(placement, Shard):
        return shape
    size = shape[placement.dim]
    if not placement.pad and size % (placement.blocks * ranks):
        raise ValueError(
            f"dim {placement.dim} of size {size} does not divide into "
            f"{placement.blocks} blocks x {ranks} ranks"
        )
    local = list(shape)
    local[placement.dim] = -(-size // ranks)
    return tuple(local)


def padded_shape(shape: tuple[int, ...], placement: Placement, ranks: int) -> tuple[int, ...]:
    """Shape of the ranks' shards put together: ``shape`` and the padding.

    >>> padded_shape((8, 5), Shard(1, pad=True), 2)
    (8, 6)
    """
    if not isinstance(placement, Shard):
        return shape
    whole = list(shape)
    whole[placement.dim] = shard_shape(shape, placement, ranks)[placement.dim] * ranks
    return tuple(whole)


def can_pad(size: int, ranks: int) -> bool:
    """Whether a dim of ``size`` has a padded shard: it does not divide, and no rank is empty.

    >>> can_pad(50257, 8), can_pad(50264, 8), can_pad(5, 4)
    (True, False, False)
    """
    return size % ranks != 0 and -(-size // ranks) * (ranks - 1) < size
