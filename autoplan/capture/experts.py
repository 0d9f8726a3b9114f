"""The operator of routed experts, and adapters for modules that hold some.

A loop over experts selects tokens by value, which no export can follow. `experts` is one
operator instead (`autoplan.ir.experts` says what it computes): the models of transformers
reach it by their own dispatch (`autoplan.capture.hf.experts`), other modules by an adapter:
a function that `register_experts` puts in place of the module's forward while tracing.

The operator's kernel here is a plain loop, the reference that tests compare with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoplan.errors import CaptureError, UsageError
from autoplan.ir.experts import ACTIVATIONS, ARGUMENTS, LAYOUTS

__all__ = ["activate", "experts", "register_experts", "with_adapters"]

Adapter = TypeVar("Adapter", bound=Callable[..., Any])

_ADAPTERS: dict[type[nn.Module], Callable[..., Any]] = {}


def experts(
    hidden: Tensor,
    index: Tensor,
    weights: Tensor,
    up: Tensor,
    down: Tensor,
    *,
    gate: Tensor | None = None,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    gate_bias: Tensor | None = None,
    activation: str = "silu",
    layout: str = "",
    transposed: bool = False,
    alpha: float = 1.0,
    limit: float = 0.0,
) -> Tensor:
    """Weighted sum over each token's experts, as one operator of the captured graph.

    Shapes, with T tokens, k experts each of E, width d, inner width f:

    * ``hidden [..., d]``; ``index`` and ``weights [..., k]``, with T in all leading dims;
    * ``up [E, f, d]``, ``down [E, d, f]``, as `nn.Linear` stores its weight, or with the last
      two dims swapped where ``transposed``;
    * a gate, if any, as its own tensor like ``up``, or inside ``up [E, 2 f, d]``:
      ``layout="concatenated"`` (gate, then up) or ``"interleaved"`` (gate, up, gate, up, ...).

    ``activation`` is one of silu, gelu, gelu_tanh, quick_gelu, relu, relu2, sigmoid, tanh and
    swiglu_oai, ``(up + 1) * gate * sigmoid(alpha * gate)``. ``limit`` clamps gate (from above)
    and up (both ways) before it. Entries of ``index`` must lie in ``[0, E)``.
    """
    layout = layout or ("plain" if gate is None else "separate")
    lead = hidden.shape[:-1]
    call = _checked(
        hidden.reshape(-1, hidden.shape[-1]),
        index.reshape(-1, index.shape[-1]),
        weights.reshape(-1, weights.shape[-1]),
        up,
        down,
        gate,
        up_bias,
        down_bias,
        gate_bias,
        activation,
        layout,
        transposed,
        float(alpha),
        float(limit),
    )
    result: Tensor = torch.ops.autoplan.experts(*call)
    return result.reshape(*lead, result.shape[-1])


def register_experts(module_class: type[nn.Module]) -> Callable[[Adapter], Adapter]:
    """Return the decorator that registers an adapter for modules of ``module_class``.

    The adapter ``(module, *args, **kwargs)`` takes what the module's forward takes, and must
    return what it returns. While tracing it runs in place of that forward, and calls `experts`
    where forward loops over experts. The module itself stays the reference of ``verify``.
    """
    if not (isinstance(module_class, type) and issubclass(module_class, nn.Module)):
        raise UsageError(
            f"register_experts takes a class of modules, not {module_class!r}",
            hint="write @autoplan.register_experts(MyExperts) above the adapter",
        )

    def register(adapter: Adapter) -> Adapter:
        _ADAPTERS[module_class] = adapter
        return adapter

    return register


def with_adapters(module: nn.Module) -> nn.Module:
    """The module, in which each submodule with an adapter has it as its forward."""
    for child in module.modules():
        adapter = _ADAPTERS.get(type(child))
        if adapter is not None:
            child.forward = _Bound(adapter, child)
    return module


class _Bound:
    """An adapter bound to its module, with no attribute that a traversal could follow."""

    __slots__ = ("_adapter", "_module")

    def __init__(self, adapter: Callable[..., Any], module: nn.Module) -> None:
        self._adapter, self._module = adapter, module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._adapter(self._module, *args, **kwargs)


def _checked(*call: Any) -> tuple[Any, ...]:
    given = dict(zip((name for name, _ in ARGUMENTS), call, strict=True))
    hidden, index, up, down = (given[name] for name in ("hidden", "index", "up", "down"))
    layout, rows, columns = given["layout"], *((2, 1) if given["transposed"] else (1, 2))
    problem = ""
    if given["activation"] not in ACTIVATIONS:
        problem = f"activation {given['activation']!r} is none of {', '.join(ACTIVATIONS)}"
    elif layout not in LAYOUTS:
        problem = f"layout {layout!r} is none of {', '.join(LAYOUTS)}"
    elif given["activation"] == "swiglu_oai" and layout == "plain":
        problem = "swiglu_oai needs a gate"
    elif (given["gate"] is None) == (layout == "separate"):
        problem = f"layout {layout!r} and " + ("no gate" if layout == "separate" else "a gate")
    elif up.dim() != 3 or down.dim() != 3:
        problem = f"up and down must have 3 dims, not {tuple(up.shape)} and {tuple(down.shape)}"
    elif index.is_floating_point() or index.shape != given["weights"].shape:
        problem = f"index {tuple(index.shape)} must hold integers, one for each of the weights"
    else:
        count, width = up.shape[0], hidden.shape[1]
        ffn = down.shape[columns]
        inner = ffn * (2 if layout in ("concatenated", "interleaved") else 1)
        wanted: dict[str, tuple[tuple[int, ...], Any]] = {
            "index": ((hidden.shape[0], index.shape[1]), index),
            "up": (_sized(count, rows, inner, width), up),
            "down": (_sized(count, rows, width, ffn), down),
            "gate": (_sized(count, rows, ffn, width), given["gate"]),
            "up_bias": ((count, inner), given["up_bias"]),
            "down_bias": ((count, width), given["down_bias"]),
            "gate_bias": ((count, ffn), given["gate_bias"]),
        }
        for name, (shape, tensor) in wanted.items():
            if tensor is not None and tuple(tensor.shape) != shape:
                problem = problem or f"{name} has shape {tuple(tensor.shape)}, not {shape}"
    if problem:
        raise CaptureError(
            f"experts: {problem}", hint="see help(autoplan.experts) for shapes and names"
        )
    return call


def _sized(count: int, rows: int, height: int, width: int) -> tuple[int, ...]:
    return (count, height, width) if rows == 1 else (count, width, height)


_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x) ** 2,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def activate(
    name: str, gate: Tensor, up: Tensor | None = None, *, alpha: float = 1.0, limit: float = 0.0
) -> Tensor:
    """Activation of a gate and what it multiplies; without ``up``, of ``gate`` alone."""
    if up is None:
        return _PLAIN[name](gate)
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    if name == "swiglu_oai":
        return (up + 1) * (gate * torch.sigmoid(gate * alpha))
    return _PLAIN[name](gate) * up


def _definition(
    hidden: Tensor,
    index: Tensor,
    weights: Tensor,
    up: Tensor,
    down: Tensor,
    gate: Tensor | None = None,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    gate_bias: Tensor | None = None,
    activation: str = "silu",
    layout: str = "plain",
    transposed: bool = False,
    alpha: float = 1.0,
    limit: float = 0.0,
) -> Tensor:
    """The meaning of the operator, an expert and a choice at a time."""

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None, expert: int) -> Tensor:
        matrix = weight[expert].T if transposed else weight[expert]
        return F.linear(x, matrix, None if bias is None else bias[expert])

    total = (hidden.unsqueeze(1) * weights.unsqueeze(2)).sum(1) * 0
    for expert in range(up.shape[0]):
        inner = linear(hidden, up, up_bias, expert)
        if layout == "plain":
            inner = activate(activation, inner)
        else:
            if layout == "separate":
                assert gate is not None
                left, right = linear(hidden, gate, gate_bias, expert), inner
            elif layout == "concatenated":
                left, right = inner.chunk(2, -1)
            else:
                left, right = inner[:, ::2], inner[:, 1::2]
            inner = activate(activation, left, right, alpha=alpha, limit=limit)
        share = torch.where(index == expert, weights, torch.zeros_like(weights)).sum(1)
        total = total + linear(inner, down, down_bias, expert) * share.unsqueeze(1)
    return total.to(hidden.dtype)


def _fake(hidden: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(hidden, memory_format=torch.contiguous_format)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.call = tuple(None if isinstance(item, Tensor) else item for item in inputs)
    ctx.positions = [i for i, item in enumerate(inputs) if isinstance(item, Tensor)]
    ctx.save_for_backward(*(item for item in inputs if isinstance(item, Tensor)))


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    call = list(ctx.call)
    for position, tensor in zip(ctx.positions, ctx.saved_tensors, strict=True):
        wanted = ctx.needs_input_grad[position]
        call[position] = tensor.detach().requires_grad_(wanted)
    with torch.enable_grad():
        result = _definition(*call)
    wanted = [i for i in ctx.positions if ctx.needs_input_grad[i]]
    found = torch.autograd.grad(result, [call[i] for i in wanted], grad)
    gradients: list[Tensor | None] = [None] * len(call)
    for position, gradient in zip(wanted, found, strict=True):
        gradients[position] = gradient
    return tuple(gradients)


torch.library.custom_op(
    "autoplan::experts",
    _definition,
    mutates_args=(),
    schema="(Tensor hidden, Tensor index, Tensor weights, Tensor up, Tensor down, "
    "Tensor? gate=None, Tensor? up_bias=None, Tensor? down_bias=None, Tensor? gate_bias=None, "
    "str activation='silu', str layout='plain', bool transposed=False, float alpha=1.0, "
    "float limit=0.0) -> Tensor",
)
torch.library.register_fake("autoplan::experts", _fake)
torch.library.register_autograd("autoplan::experts", _backward, setup_context=_remember)
