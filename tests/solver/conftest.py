"""Hand-made blocks, so that the solver is tested without torch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from autoplan.ir.graph import Arg, BlockClass, Op, Ref, Tensor, TensorKind, tensor_refs
from autoplan.ir.hardware import Accelerator, Cluster, Curve, Link


class BlockMaker:
    """Collects operators and tensors of a block."""

    def __init__(self, dtype: str = "bfloat16") -> None:
        self.dtype = dtype
        self.tensors: dict[str, Tensor] = {}
        self.ops: list[Op] = []

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        kind: TensorKind = TensorKind.ACTIVATION,
        *,
        base: str = "",
        grad: bool = True,
    ) -> Ref:
        """A tensor by name."""
        self.tensors[name] = Tensor(
            name=name,
            shape=tuple(shape),
            dtype=self.dtype,
            kind=kind,
            requires_grad=grad,
            base=base or name,
        )
        return Ref(name)

    def parameter(self, name: str, *shape: int) -> Ref:
        """A trainable parameter."""
        return self.tensor(name, shape, TensorKind.PARAMETER)

    def op(
        self,
        target: str,
        args: Sequence[Arg],
        shape: Sequence[int],
        *,
        flop: int = 0,
        saves: Sequence[str] = (),
        view: bool = False,
        kwargs: Sequence[tuple[str, Arg]] = (),
    ) -> Ref:
        """The result of an operator."""
        name = f"v{len(self.ops)}"
        first = next(iter(tensor_refs(tuple(args))))
        base = self.tensors[first].base if view else ""
        grad = any(self.tensors[n].requires_grad for n in tensor_refs(tuple(args)))
        out = self.tensor(name, shape, base=base, grad=grad)
        self.ops.append(
            Op(
                name=f"op{len(self.ops)}",
                target=target,
                args=tuple(args),
                kwargs=tuple(kwargs),
                outputs=(name,),
                flop=flop,
                flop_backward=2 * flop,
                saved=tuple(saves),
            )
        )
        return out

    def linear(self, x: Ref, out: int, weight: str) -> Ref:
        """Result of a bias-free linear layer with a weight of that name."""
        shape = self.tensors[x.name].shape
        w = self.parameter(weight, out, shape[-1])
        rows = 1
        for size in shape[:-1]:
            rows *= size
        return self.op(
            "aten.linear.default",
            (x, w),
            (*shape[:-1], out),
            flop=2 * rows * out * shape[-1],
            saves=(x.name, weight),
        )

    def block(self, inputs: Sequence[str], outputs: Sequence[str]) -> BlockClass:
        """The finished block."""
        by_kind = {
            kind: tuple(t.name for t in self.tensors.values() if t.kind is kind)
            for kind in TensorKind
        }
        return BlockClass(
            name="block",
            ops=tuple(self.ops),
            tensors=tuple(self.tensors.values()),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            parameters=by_kind[TensorKind.PARAMETER],
            buffers=by_kind[TensorKind.BUFFER],
            shared=by_kind[TensorKind.SHARED],
        )


def norm(make: BlockMaker, x: Ref, weight: str) -> Ref:
    """RMS norm written out, as model code does."""
    shape = make.tensors[x.name].shape
    squares = make.op("aten.pow.Tensor_Scalar", (x, 2), shape, saves=(x.name,))
    mean = make.op("aten.mean.dim", (squares, (-1,), True), (*shape[:-1], 1))
    shifted = make.op("aten.add.Tensor", (mean, 1e-6), (*shape[:-1], 1))
    root = make.op("aten.rsqrt.default", (shifted,), (*shape[:-1], 1), saves=(shifted.name,))
    scaled = make.op("aten.mul.Tensor", (x, root), shape, saves=(x.name, root.name))
    w = make.parameter(weight, shape[-1])
    return make.op("aten.mul.Tensor", (w, scaled), shape, saves=(weight, scaled.name))


def mlp_block(
    batch: int = 1, seq: int = 2048, width: int = 4096, hidden: int = 14336
) -> BlockClass:
    """Norm, gated MLP, residual."""
    make = BlockMaker()
    x = make.tensor("x", (batch, seq, width), TensorKind.BOUNDARY)
    normed = norm(make, x, "norm")
    gate = make.linear(normed, hidden, "gate")
    up = make.linear(normed, hidden, "up")
    active = make.op("aten.silu.default", (gate,), (batch, seq, hidden), saves=(gate.name,))
    both = make.op(
        "aten.mul.Tensor", (active, up), (batch, seq, hidden), saves=(active.name, up.name)
    )
    down = make.linear(both, width, "down")
    out = make.op("aten.add.Tensor", (x, down), (batch, seq, width))
    return make.block(("x",), (out.name,))


def llama_block(
    batch: int = 1, seq: int = 2048, width: int = 4096, heads: int = 32, hidden: int = 14336
) -> BlockClass:
    """Attention with rotary positions and a gated MLP, each behind a norm."""
    make = BlockMaker()
    size = width // heads
    x = make.tensor("x", (batch, seq, width), TensorKind.BOUNDARY)
    cos = make.tensor("cos", (1, 1, seq, size), TensorKind.SHARED, grad=False)
    sin = make.tensor("sin", (1, 1, seq, size), TensorKind.SHARED, grad=False)
    normed = norm(make, x, "norm1")
    split = []
    for letter in "qkv":
        flat = make.linear(normed, width, letter)
        parts = make.op(
            "aten.view.default",
            (flat, (batch, seq, heads, size)),
            (batch, seq, heads, size),
            view=True,
        )
        split.append(
            make.op("aten.transpose.int", (parts, 1, 2), (batch, heads, seq, size), view=True)
        )
    turned = [_rotate(make, part, cos, sin) for part in split[:2]]
    attended = make.op(
        "aten.scaled_dot_product_attention.default",
        (*turned, split[2], None, 0.0, True),
        (batch, heads, seq, size),
        flop=2 * batch * heads * seq * seq * size,
        saves=(turned[0].name, turned[1].name, split[2].name),
    )
    back = make.op("aten.transpose.int", (attended, 1, 2), (batch, seq, heads, size), view=True)
    joined = make.op("aten.reshape.default", (back, (batch, seq, width)), (batch, seq, width))
    first = make.op("aten.add.Tensor", (x, make.linear(joined, width, "o")), (batch, seq, width))
    normed = norm(make, first, "norm2")
    gate, up = make.linear(normed, hidden, "gate"), make.linear(normed, hidden, "up")
    active = make.op("aten.silu.default", (gate,), (batch, seq, hidden), saves=(gate.name,))
    both = make.op(
        "aten.mul.Tensor", (active, up), (batch, seq, hidden), saves=(active.name, up.name)
    )
    out = make.op("aten.add.Tensor", (first, make.linear(both, width, "down")), (batch, seq, width))
    return make.block(("x",), (out.name,))


def _rotate(make: BlockMaker, x: Ref, cos: Ref, sin: Ref) -> Ref:
    shape = make.tensors[x.name].shape
    half = (*shape[:-1], shape[-1] // 2)
    low = make.op("aten.slice.Tensor", (x, 3, 0, half[-1]), half, view=True)
    high = make.op("aten.slice.Tensor", (x, 3, half[-1], shape[-1]), half, view=True)
    minus = make.op("aten.neg.default", (high,), half)
    turned = make.op("aten.cat.default", ((minus, low), -1), shape)
    a = make.op("aten.mul.Tensor", (x, cos), shape, saves=("cos",))
    b = make.op("aten.mul.Tensor", (turned, sin), shape, saves=("sin",))
    return make.op("aten.add.Tensor", (a, b), shape)


@pytest.fixture
def mlp() -> BlockClass:
    """A gated MLP of Llama-3-8B's width."""
    return mlp_block()


@pytest.fixture
def llama() -> BlockClass:
    """A decoder block of Llama-2-7B's attention and Llama-3-8B's MLP width."""
    return llama_block()


@pytest.fixture
def cluster() -> Cluster:
    """Two nodes of eight fast accelerators."""
    flat = Curve(((1.0, 0.8),))
    return Cluster(
        spec="test",
        accelerator=Accelerator(
            name="test",
            memory=80 * 2**30,
            reserved=0,
            fragmentation=0.0,
            matmul_peak=(("bfloat16", 1e15), ("float32", 5e14)),
            matmul_efficiency=flat,
            attention_efficiency=0.5,
            memory_bandwidth=3e12,
            memory_efficiency=flat,
            kernel_latency=3e-6,
            sources=(),
        ),
        nodes=2,
        ranks_per_node=8,
        intra=Link(name="intra", latency=2e-6, bandwidth=4e11, sources=()),
        inter=Link(name="inter", latency=5e-6, bandwidth=5e10, sources=()),
    )
