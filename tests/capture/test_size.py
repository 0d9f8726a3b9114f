"""Parameter and FLOP counts against known numbers and torch's own counter."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from autoplan.capture import capture, disable_dropout, load_model
from autoplan.ir.graph import TensorKind

# Published counts; bert's has the masked-LM head with its own bias and transform.
COUNTS = {
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "resnet50": 25_557_032,
    "vit-large": 304_326_632,
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_count(name):
    module = load_model(name).build_for_trace(dtype="bfloat16").module
    assert sum(p.numel() for p in module.parameters()) == COUNTS[name]


@cache
def _small(name):
    source = load_model(name).reduced(layers=2, tp=1)
    return source, capture(source, seq_len=32, dtype="float32", dropout=False).at(4)


@pytest.mark.parametrize("name", ["gpt2", "llama3-8b", "resnet50", "nanogpt"])
def test_flop_equals_torch(name):
    source, graph = _small(name)
    module = disable_dropout(source.build())
    batch = source.batch(4, 32)
    # The math kernel shows its two batched products to the counter.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss = module(**batch)
    forward = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        loss.backward()
    backward = counter.get_total_flops()
    ops = [op for i in graph.instances for op in graph.block_class(i).ops]
    attention = sum(op.flop for op in ops if "attention" in op.target)
    assert sum(op.flop for op in ops) == pytest.approx(forward, rel=0.01)
    # Four products without recomputing the scores, where the fused kernel has five.
    ours = sum(op.flop_backward for op in ops) - attention // 2
    assert ours == pytest.approx(backward, rel=0.01)


@pytest.mark.parametrize("name", ["gpt2", "llama3-8b", "nanogpt", "resnet50"])
def test_parameters_and_saved_bytes(name):
    """Parameters by name and size are the module's; saved bytes are what autograd packs."""
    source, graph = _small(name)
    module = disable_dropout(source.build())
    expected = {fqn: tuple(p.shape) for fqn, p in module.named_parameters()}
    assert {p.fqn: p.shape for p in graph.parameters} == expected
    resident = {p.untyped_storage()._cdata for p in module.parameters()}
    packed = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in resident and tensor.dim():
            packed[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = module(**source.batch(4, 32))
    measured = sum(storage.nbytes() for storage in packed.values())
    assert loss.dim() == 0
    assert _saved(graph) == pytest.approx(measured, rel=0.03)


def _saved(graph):
    total, shared = 0, set()
    previous = None
    for instance in graph.instances:
        block = graph.block_class(instance)
        kept, held = {}, set()
        for op in block.ops:
            total += op.saved_extra
            for name in op.saved:
                tensor = block.tensor(name)
                base = block.tensor(tensor.base)
                if base.kind is TensorKind.BOUNDARY:
                    # Held once for both sides: by the block before if that keeps it too.
                    held.add(block.inputs.index(base.name))
                elif base.kind in {TensorKind.SHARED, TensorKind.INPUT}:
                    if base.name not in shared:
                        shared.add(base.name)
                        total += base.size
                elif base.kind is TensorKind.ACTIVATION:
                    kept[base.name] = base.size
        if previous is not None:
            block_before, kept_before = previous
            for index in held:
                name = block_before.tensor(block_before.outputs[index]).base
                if name not in kept_before:
                    total += block_before.tensor(name).size
        total += sum(kept.values())
        previous = block, kept
    return total
