"""Routed experts: FLOP, bytes kept and time against torch and against hand counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.costs.compute import local_extra, op_time
from autoplan.costs.experts import experts_kernels, local_experts
from autoplan.ir.experts import EXPERTS, experts_region, experts_regions
from autoplan.ir.graph import BlockClass, Op, Ref, Tensor, TensorKind
from autoplan.ir.placement import Replicate
from autoplan.profiles import load_cluster
from autoplan.rules import strategies

torch = pytest.importorskip("torch")

T, K, E, D, F = 24, 2, 4, 16, 24
CASES = [
    ("plain", False, "relu2"),
    ("concatenated", False, "silu"),
    ("interleaved", True, "swiglu_oai"),
    ("separate", True, "gelu"),
]
FROZEN = [(), ("hidden",), ("up", "down", "gate"), ("weights",), ("hidden", "weights", "down")]


def operands(layout, biased, dtype, frozen=(), weight_dtype=None):
    """Tensors of one call by argument name; all need a gradient but those in ``frozen``."""
    packed = F * (2 if layout in ("concatenated", "interleaved") else 1)
    shapes = {"hidden": (T, D), "weights": (T, K), "up": (E, packed, D), "down": (E, D, F)}
    if layout == "separate":
        shapes["gate"] = (E, F, D)
    if biased:
        shapes |= {"up_bias": (E, packed), "down_bias": (E, D)}
    torch.manual_seed(0)
    found = {}
    for name, shape in shapes.items():
        kind = weight_dtype if name == "weights" and weight_dtype else dtype
        found[name] = torch.randn(shape, dtype=kind).requires_grad_(name not in frozen)
    found["index"] = torch.stack([torch.randperm(E)[:K] for _ in range(T)])
    return found


def block_of(tensors, layout, activation):
    """The call as a block of one operator."""
    order = ["hidden", "index", "weights", "up", "down"]
    named = [name for name in ("gate", "up_bias", "down_bias") if name in tensors]
    settings = (("activation", activation), ("layout", layout))
    op = Op(
        name="experts",
        target=EXPERTS,
        args=tuple(map(Ref, order)),
        kwargs=(*((name, Ref(name)) for name in named), *settings),
        outputs=("y",),
    )
    facts = {name: (tuple(x.shape), str(x.dtype)[6:], x.requires_grad) for name, x in
             tensors.items()} | {"y": ((T, D), str(tensors["hidden"].dtype)[6:], True)}  # fmt: skip
    held = {"up", "down", "gate", "up_bias", "down_bias"}
    described = tuple(
        Tensor(
            name=name,
            shape=shape,
            dtype=dtype,
            kind=TensorKind.PARAMETER if name in held else TensorKind.ACTIVATION,
            requires_grad=grad,
            base=name,
        )
        for name, (shape, dtype, grad) in facts.items()
    )
    region = experts_region(op, {t.name: t for t in described}.__getitem__)
    op = replace(op, flop=region.flop, flop_backward=region.flop_backward, saved_extra=region.saved)
    return BlockClass(
        name="block",
        ops=(op,),
        tensors=described,
        inputs=("hidden", "index", "weights"),
        outputs=("y",),
        parameters=tuple(name for name in facts if name in held),
        buffers=(),
        shared=(),
    )


def run(tensors, layout, activation):
    from autoplan.runtime import SINGLE, experts

    return experts(**tensors, activation=activation, layout=layout, limit=0.5, axis=SINGLE)


@pytest.mark.parametrize("frozen", FROZEN, ids=lambda names: "-".join(names) or "none")
@pytest.mark.parametrize(("layout", "biased", "activation"), CASES)
def test_saved_bytes_are_what_autograd_keeps(layout, biased, activation, frozen):
    for dtype, weight_dtype in ((torch.float32, None), (torch.float64, None),
                                (torch.bfloat16, torch.float32)):  # fmt: skip
        tensors = operands(layout, biased, dtype, frozen, weight_dtype)
        if all(not x.requires_grad for x in tensors.values()):
            continue
        outside = {x.untyped_storage().data_ptr(): name for name, x in tensors.items()}
        kept, named = {}, set()

        def pack(x, outside=outside, kept=kept, named=named):
            storage = x.untyped_storage()
            if storage.data_ptr() in outside:
                named.add(outside[storage.data_ptr()])
            else:
                kept[storage.data_ptr()] = (storage.nbytes(), x)
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            run(tensors, layout, activation)
        (region,) = experts_regions(block_of(tensors, layout, activation))
        assert region.saved == sum(size for size, _ in kept.values()), (dtype, region)
        assert named == set(region.saved_arguments) & tensors.keys(), (dtype, region)


@pytest.mark.parametrize("frozen", FROZEN, ids=lambda names: "-".join(names) or "none")
@pytest.mark.parametrize(("layout", "biased", "activation"), CASES)
def test_flop_are_those_torch_counts(layout, biased, activation, frozen):
    from torch.utils.flop_counter import FlopCounterMode

    tensors = operands(layout, biased, torch.float64, frozen)
    (region,) = experts_regions(block_of(tensors, layout, activation))
    with FlopCounterMode(display=False) as counter:
        y = run(tensors, layout, activation)
        forward = counter.get_total_flops()
        y.sum().backward()
    assert (region.flop, region.flop_backward) == (forward, counter.get_total_flops() - forward)


def test_each_strategy_divides_what_its_ranks_divide():
    tensors = operands("concatenated", False, torch.float32)
    block = block_of(tensors, "concatenated", "silu")
    (op,) = block.ops
    whole = next(experts_regions(block))
    found = {(s.call, str(s.outputs[0])): s for s in strategies(op, block, 2)}
    tokens, sharded, inner = (
        local_experts(op, block, found[key], 2)
        for key in (("experts", "S(0)"), ("sharded_experts", "P"), ("row_parallel_experts", "P"))
    )
    assert (tokens.rows, tokens.num_experts, tokens.ffn) == (T, E, F)
    assert (sharded.rows, sharded.num_experts, sharded.ffn) == (T, E // 2, F)
    assert (inner.rows, inner.num_experts, inner.ffn) == (2 * T, E, F // 2)
    for region in (tokens, sharded, inner):
        forward, backward = experts_kernels(region)
        assert sum(kernel.flop for kernel in forward) == whole.flop // 2
        assert sum(kernel.flop for kernel in backward) == whole.flop_backward // 2
    ends = 4 * E
    assert local_extra(op, block, found["experts", "S(0)"], 2) - ends == (whole.saved - ends) // 2
    # What belongs to a row as a whole is not divided with the features.
    rows = 2 * T * (4 + 8) + ends
    inside = 2 * T * 3 * F * 4
    assert whole.saved == rows + inside
    assert local_extra(op, block, found["row_parallel_experts", "P"], 2) == rows + inside // 2


def test_time_is_that_of_kernels_one_after_another():
    cluster = load_cluster("8xh100")
    block = block_of(operands("concatenated", False, torch.float32), "concatenated", "silu")
    (op,) = block.ops
    whole = next(s for s in strategies(op, block, 2) if s.outputs == (Replicate(),))
    forward, backward = experts_kernels(next(experts_regions(block)))
    time = op_time(op, block, whole, 1, cluster.accelerator)
    assert time.forward > len(forward) * cluster.accelerator.kernel_latency
    assert time.backward > len(backward) * cluster.accelerator.kernel_latency
    assert sum(kernel.flop > 0 for kernel in forward) == 2
    assert sum(kernel.flop > 0 for kernel in backward) == 4
