"""Routed experts of a block as one region: `ExpertsRegion`.

Whatever a model's own code looks like, the captured graph holds one operator,
``autoplan.experts.default``, with the arguments of `ARGUMENTS`:

* ``hidden [T, d]``, the tokens; ``index [T, k]``, the experts of each, in ``[0, E)``;
  ``weights [T, k]``, what each of them counts;
* ``up [E, u, d]`` and ``down [E, d, f]``, or ``[E, d, u]`` and ``[E, f, d]`` where
  ``transposed``; ``up_bias [E, u]`` and ``down_bias [E, d]``;
* ``layout``: ``plain`` has no gate and ``u = f``; ``concatenated`` (gate, then up) and
  ``interleaved`` (gate, up, gate, up, ...) have ``u = 2 f``; ``separate`` has ``u = f`` and a
  ``gate`` like ``up`` with a ``gate_bias``;
* ``activation``, one of `ACTIVATIONS`, with ``alpha`` and ``limit`` (0: none) where it is
  clamped: ``gate <= limit`` and ``-limit <= up <= limit`` before it is applied.

The result ``[T, d]`` is the weighted sum over a token's experts of
``down(activation(gate(x)) * up(x))``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from autoplan.ir.graph import Arg, BlockClass, Ref, dtype_size

__all__ = [
    "ACTIVATIONS",
    "ARGUMENTS",
    "EXPERTS",
    "LAYOUTS",
    "Call",
    "Described",
    "ExpertsRegion",
    "argument",
    "experts_region",
    "experts_regions",
]

EXPERTS = "autoplan.experts.default"
LAYOUTS = ("plain", "concatenated", "interleaved", "separate")
ACTIVATIONS = (
    "silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2", "sigmoid", "tanh", "swiglu_oai",
)  # fmt: skip
"""Names of activations; ``swiglu_oai`` is ``(up + 1) * gate * sigmoid(alpha * gate)``."""

ARGUMENTS: tuple[tuple[str, Arg], ...] = (
    ("hidden", None), ("index", None), ("weights", None), ("up", None), ("down", None),
    ("gate", None), ("up_bias", None), ("down_bias", None), ("gate_bias", None),
    ("activation", "silu"), ("layout", "plain"), ("transposed", False),
    ("alpha", 1.0), ("limit", 0.0),
)  # fmt: skip
"""Arguments of the operator in order, with their defaults."""


class Call(Protocol):
    """An operator, traced or in a block."""

    @property
    def args(self) -> tuple[Arg, ...]:
        """Positional arguments."""

    @property
    def kwargs(self) -> tuple[tuple[str, Arg], ...]:
        """Keyword arguments."""


class Described(Protocol):
    """A tensor, traced or in a block."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of its dims."""

    @property
    def dtype(self) -> str:
        """Name of its dtype."""

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient flows to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsRegion:
    """Sizes of one operator of routed experts.

    ``rows`` is the pairs of a token and an expert that are computed: all ``tokens * top_k``
    of them in a graph, a rank's part in `costs.experts`. ``dtype`` is that of the tokens,
    ``weight_dtype`` that of the routing weights. The four flags say which operands need a
    gradient; ``biased`` that rows look up a bias.
    """

    name: str
    tokens: int
    top_k: int
    rows: int
    num_experts: int
    hidden: int
    ffn: int
    layout: str
    transposed: bool
    activation: str
    biased: bool
    dtype: str
    weight_dtype: str
    hidden_grad: bool
    weights_grad: bool
    up_grad: bool
    down_grad: bool

    @property
    def gated(self) -> bool:
        """Whether a gate multiplies the up projection."""
        return self.layout != "plain"

    @property
    def projected(self) -> int:
        """Features of a row before the activation, the gate's included."""
        return self.ffn * (2 if self.gated else 1)

    @property
    def flop(self) -> int:
        """FLOP of the products with the experts' weights."""
        return 2 * self.rows * self.hidden * (self.projected + self.ffn)

    @property
    def flop_backward(self) -> int:
        """FLOP of their gradients: one product for each operand that needs one."""
        into_up = self.hidden_grad or self.up_grad
        up = self.projected * (self.hidden_grad + self.up_grad)
        down = self.ffn * ((into_up or self.weights_grad) + self.down_grad)
        return 2 * self.rows * self.hidden * (up + down)

    @property
    def saved(self) -> int:
        """Bytes kept for backward that are no argument: rows inside the experts, and indices.

        Rows as wide as a token are not kept, and of the activation only the inputs
        (`runtime.experts` computes both again).
        """
        size, into_up = dtype_size(self.dtype), self.hidden_grad or self.up_grad
        kept = self.projected * into_up + self.ffn * (self.down_grad or self.weights_grad)
        weights = dtype_size(self.weight_dtype) * (into_up or self.down_grad)
        return self.rows * (kept * size + weights + 8 * (1 + self.biased)) + 4 * self.num_experts

    @property
    def saved_arguments(self) -> tuple[str, ...]:
        """Arguments kept for backward, by name."""
        into_up = self.hidden_grad or self.up_grad
        kept = {
            "hidden": self.up_grad,
            "up": self.hidden_grad,
            "gate": self.hidden_grad,
            "down": into_up or self.weights_grad,
            "down_bias": self.weights_grad,
        }
        return tuple(name for name, is_kept in kept.items() if is_kept)


def argument(op: Call, name: str) -> Arg:
    """Argument of an operator of experts, by position or keyword, else its default."""
    for position, (known, default) in enumerate(ARGUMENTS):
        if known == name:
            if position < len(op.args):
                return op.args[position]
            return dict(op.kwargs).get(name, default)
    raise KeyError(name)


def experts_region(op: Call, find: Callable[[str], Described], *, name: str = "") -> ExpertsRegion:
    """Region of one operator; ``find`` gives a tensor by its name."""

    def tensor(argument_name: str) -> Described | None:
        found = argument(op, argument_name)
        return find(found.name) if isinstance(found, Ref) else None

    def grad(*names: str) -> bool:
        return any(t is not None and t.requires_grad for t in map(tensor, names))

    hidden, index, weights, down = map(tensor, ("hidden", "index", "weights", "down"))
    assert hidden and index and weights and down, name
    transposed = argument(op, "transposed") is True
    tokens, top_k = index.shape
    return ExpertsRegion(
        name=name,
        tokens=tokens,
        top_k=top_k,
        rows=tokens * top_k,
        num_experts=down.shape[0],
        hidden=hidden.shape[1],
        ffn=down.shape[1 if transposed else 2],
        layout=str(argument(op, "layout")),
        transposed=transposed,
        activation=str(argument(op, "activation")),
        biased=any(map(tensor, ("up_bias", "down_bias", "gate_bias"))),
        dtype=hidden.dtype,
        weight_dtype=weights.dtype,
        hidden_grad=hidden.requires_grad,
        weights_grad=weights.requires_grad,
        up_grad=grad("up", "gate"),
        down_grad=grad("down"),
    )


def experts_regions(block: BlockClass) -> Iterator[ExpertsRegion]:
    """Regions of a block, in order."""
    for op in block.ops:
        if op.target == EXPERTS:
            yield experts_region(op, block.tensor, name=op.name)
