"""Recompute levels on one rank: gradients, random masks, counters, and the bytes kept."""

from __future__ import annotations

import gc
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from autoplan.costs.block import block_cost
from autoplan.ir.mesh import Group
from autoplan.ir.placement import Replicate
from autoplan.ir.recompute import Recompute
from autoplan.ir.strategy import OpStrategy
from autoplan.profiles import load_cluster
from tests.plans import Setup, make_plan

torch = pytest.importorskip("torch")

import autoplan.runtime as rt  # noqa: E402
from autoplan.runtime import norm, random  # noqa: E402
from autoplan.runtime.axis import SINGLE  # noqa: E402
from autoplan.runtime.checkpointing import keep  # noqa: E402

ROWS, LENGTH = 4, 64
RUN = {
    Recompute.NONE: lambda block, *args: block(*args),
    Recompute.SELECTIVE: rt.checkpoint_selectively,
    Recompute.FULL: rt.checkpoint,
}


class _LiveStorages(torch.utils._python_dispatch.TorchDispatchMode):
    """Storages that operators made, and which of them are alive."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, tuple[Any, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_address(x) for x in torch.utils._pytree.tree_leaves((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            address = _address(tensor)
            if address is not None and address not in given:
                storage = tensor.untyped_storage()
                weak = torch.multiprocessing.reductions.StorageWeakRef(storage)
                self._made[address] = weak, storage.nbytes()
        return result

    def bytes(self, *, without: torch.Tensor) -> int:
        gc.collect()
        return sum(
            size
            for address, (weak, size) in self._made.items()
            if not weak.expired() and address != _address(without)
        )


def _address(tensor: Any) -> int | None:
    return tensor.untyped_storage().data_ptr() if isinstance(tensor, torch.Tensor) else None


@pytest.fixture(scope="module", params=["gpt2", "llama3-8b"])
def emitted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """The first block that repeats: its class in the graph, and as a module of the program."""
    pytest.importorskip("transformers")
    from autoplan.capture import capture, load_model
    from autoplan.emit import emit_program

    # Attention with dropout is several operators on the CPU, and no kernel as on a GPU.
    drops = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0)
    overrides = drops if request.param == "gpt2" else {}
    source = load_model(request.param, overrides=overrides).reduced(layers=3, tp=2)
    found = capture(source, seq_len=LENGTH, dtype="float32")
    graph = found.at(ROWS)
    folder = tmp_path_factory.mktemp("programs") / "program"
    emit_program(make_plan(graph, found.record(), Setup(), seq_len=LENGTH), folder)
    module = _module(folder / "model.py")
    stage = module.build_stage(0, SINGLE, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    for parameter in stage.parameters():
        torch.nn.init.normal_(parameter, std=0.05, generator=generator)
    position = 1
    instance = graph.instances[position]
    return graph.block_class(instance), stage, position, source


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("emitted_model", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path.parent))
        spec.loader.exec_module(module)
    for name in [name for name in sys.modules if name.partition(".")[0] == "runtime"]:
        del sys.modules[name]
    return module


def _measure(emitted, level: Recompute):
    """Bytes kept by a block, its input included, and the gradients."""
    block_class, stage, position, source = emitted
    batch = source.batch(ROWS, LENGTH, seed=0, device="cpu")
    handed: list[tuple[Any, ...]] = []
    block = stage.blocks[position]
    hook = block.register_forward_pre_hook(lambda _, args: handed.append(args))
    stage(**batch)
    hook.remove()
    count = len(block_class.inputs)
    tensors = [x.detach().requires_grad_() for x in handed[0][:count]]
    live = _LiveStorages()
    with live:
        output = RUN[level](block, *tensors, *handed[0][count:])[0]
        kept = live.bytes(without=output)
    kept += sum(x.untyped_storage().nbytes() for x in tensors)
    wanted = [*tensors, *(p for p in block.parameters() if p.requires_grad)]
    return kept, torch.autograd.grad((output * output).sum(), wanted)


def _predicted(block_class, level: Recompute) -> int:
    whole = Replicate()
    choice = {
        op.name: OpStrategy(inputs=(whole,) * len(op.inputs), outputs=(whole,) * len(op.outputs))
        for op in block_class.ops
    }
    ends = (whole,) * len(block_class.inputs), (whole,) * len(block_class.outputs)
    cost = block_cost(block_class, choice, *ends, Group(1, 1), load_cluster("cpu"))
    return cost.kept(level)


def test_bytes_kept_are_those_predicted(emitted) -> None:
    measured = {level: _measure(emitted, level) for level in Recompute}
    for level, (kept, _) in measured.items():
        assert kept == pytest.approx(_predicted(emitted[0], level), rel=0.03), level
    kept = [measured[level][0] for level in Recompute]
    assert kept[0] > 1.2 * kept[1] > 2.4 * kept[2]


def test_gradients_are_equal_at_all_levels(emitted) -> None:
    _, expected = _measure(emitted, Recompute.NONE)
    for level in (Recompute.SELECTIVE, Recompute.FULL):
        _, found = _measure(emitted, level)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


class _Odd(torch.nn.Module):
    """Dropout before, in and after attention, batch norm, products of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.inner = torch.nn.Parameter(torch.randn(16, 16, generator=generator) / 4)
        self.outer = torch.nn.Parameter(torch.randn(16, 16, generator=generator) / 4)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("var", torch.ones(8))
        self.runs = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        x = random.replicated_dropout(x, 0.5, True, axis=SINGLE)
        y = torch.nn.functional.linear(x, self.inner).unsqueeze(1)
        y = random.replicated_attention(y, y, y, dropout_p=0.5, axis=SINGLE).squeeze(1)
        y = random.replicated_dropout(y.exp(), 0.3, True, axis=SINGLE)
        y = norm.batch_norm(y, None, None, self.mean, self.var, True, 0.1, 1e-5, False, axis=SINGLE)
        return (y @ self.outer).tanh() + x


@pytest.mark.parametrize("level", [Recompute.SELECTIVE, Recompute.FULL])
def test_masks_repeat_and_statistics_count_once(level: Recompute) -> None:
    results = []
    for chosen in (Recompute.NONE, level):
        torch.manual_seed(1)
        block = _Odd()
        x = torch.randn(5, 8, 16, generator=torch.Generator().manual_seed(2)).requires_grad_()
        y = RUN[chosen](block, x)
        y = y + RUN[chosen](block, y)
        y.square().sum().backward()
        results.append((block, [y.detach(), x.grad, block.inner.grad, block.outer.grad]))
    (plain, expected), (again, found) = results
    assert (plain.runs, again.runs) == (2, 4)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    torch.testing.assert_close(again.mean, plain.mean, rtol=0, atol=0)
    torch.testing.assert_close(again.var, plain.var, rtol=0, atol=0)


class _Counted(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        def make() -> list[torch.Tensor]:
            _Counted.calls += 1
            # In place, as collectives write: only the result may be handed out again.
            return [torch.zeros_like(x).add_(x).mul_(3)]

        return keep(make)[0]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return 3 * grad


@pytest.mark.parametrize(("level", "calls"), [*zip(Recompute, (2, 2, 4), strict=True)])
def test_what_is_kept_is_made_once(level: Recompute, calls: int) -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return _Counted.apply(_Counted.apply(x.sin()).sin()).exp()

    _Counted.calls = 0
    x = torch.linspace(0, 1, 6, requires_grad=True)
    (found,) = torch.autograd.grad(RUN[level](block, x).sum(), x)
    assert _Counted.calls == calls
    (expected,) = torch.autograd.grad((3 * (3 * x.sin()).sin()).exp().sum(), x)
    torch.testing.assert_close(found, expected)


def test_writing_into_what_is_kept_is_refused() -> None:
    """As recurrent layers do, which torch would not notice and compute wrong gradients of."""
    torch.manual_seed(0)
    layer = torch.nn.GRU(6, 8, batch_first=True)
    x = torch.randn(3, 5, 6, requires_grad=True)
    with pytest.raises(RuntimeError, match="writes into a tensor that selective recompute keeps"):
        rt.checkpoint_selectively(lambda x: layer(x)[0], x)


def test_experts_keep_their_products() -> None:
    from autoplan.runtime.experts import experts

    torch.manual_seed(0)
    hidden = torch.randn(10, 8, requires_grad=True)
    weights = torch.rand(10, 2, requires_grad=True)
    index = torch.stack([torch.randperm(3)[:2] for _ in range(10)])
    up, gate = (torch.randn(3, 12, 8, requires_grad=True) for _ in range(2))
    down = torch.randn(3, 8, 12, requires_grad=True)

    def block(x: torch.Tensor) -> torch.Tensor:
        return experts(
            x.sin(), index, weights, up, down, gate, layout="separate", axis=SINGLE
        ).cos()

    wanted = [hidden, weights, up, gate, down]
    expected = torch.autograd.grad(block(hidden).sum(), wanted)
    live = _LiveStorages()
    with live:
        output = rt.checkpoint_selectively(block, hidden)
        # Of 20 rows, gate and up projections and the result, as `costs.experts` has it.
        assert live.bytes(without=output) == 20 * (2 * 12 + 8) * 4
    found = torch.autograd.grad(output.sum(), wanted)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
