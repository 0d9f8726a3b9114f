"""Saved activations of whole models against what autograd really keeps."""

import pytest

from autoplan.costs.block import block_cost
from autoplan.ir.mesh import Group
from autoplan.ir.placement import Replicate
from autoplan.ir.recompute import Recompute
from autoplan.ir.strategy import OpStrategy
from autoplan.profiles import load_cluster

torch = pytest.importorskip("torch")

ROWS, LENGTH = 4, 64


def predicted(source):
    from autoplan.capture import capture

    graph = capture(source, seq_len=LENGTH, dtype="float32").at(ROWS)
    whole, cluster = Replicate(), load_cluster("cpu")
    saved = []
    for block in graph.classes:
        choice = {
            op.name: OpStrategy(
                inputs=(whole,) * len(op.inputs), outputs=(whole,) * len(op.outputs)
            )
            for op in block.ops
        }
        ends = (whole,) * len(block.inputs), (whole,) * len(block.outputs)
        saved.append(block_cost(block, choice, *ends, Group(1, 1), cluster).kept(Recompute.NONE))
    return sum(saved[instance.block_class] for instance in graph.instances)


def kept_by_autograd(source):
    from autoplan.capture import disable_dropout

    model = source.build(dtype=torch.float32, device="cpu").train()
    disable_dropout(model)
    batch = source.batch(ROWS, LENGTH, seed=0, device="cpu")
    outside = [*model.parameters(), *model.buffers(), *batch.values()]
    skipped = {tensor.untyped_storage().data_ptr() for tensor in outside}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in skipped:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(**batch)
    return sum(size for size, _ in kept.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama3-8b", "nanogpt"])
def test_saved_bytes_match_autograd(name):
    from autoplan.capture import load_model

    if name != "nanogpt":
        pytest.importorskip("transformers")
    source = load_model(name).reduced(layers=3, tp=2)
    # On the CPU the attention's output needs no copy to become contiguous; the trace has one.
    assert predicted(source) == pytest.approx(kept_by_autograd(source), rel=0.06)
