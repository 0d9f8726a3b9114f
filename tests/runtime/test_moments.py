"""AdamW with small moments: codes, updates against torch's, training, bytes of state."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoplan.costs.memory import MemorySettings, state_bytes
from autoplan.ir import optimizer as rules
from autoplan.ir.optimizer import UPDATE_RULES, update_rule
from autoplan.runtime import moments
from autoplan.runtime.axis import SINGLE
from autoplan.runtime.moments import BLOCK, BlockwiseCode, ChunkedAdamW, round_stochastically
from autoplan.runtime.optimizer import FlatOptimizer

CPU = torch.device("cpu")


def test_costs_and_runtime_agree_on_blocks_and_chunks() -> None:
    assert rules.MOMENT_BLOCK == moments.BLOCK
    assert rules.UPDATE_CHUNK == moments.CHUNK


@pytest.mark.parametrize("signed", [True, False])
def test_a_code_has_256_values_from_one_down_by_seven_decades(signed: bool) -> None:
    values = BlockwiseCode(1, signed=signed, device=CPU)._values
    assert len(values.unique()) == 256
    assert (values.max(), values.min()) == (1.0, -values[:-1].max() if signed else 0.0)
    assert 0 < values[values > 0].min() < 1e-6


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("numel", [1, 255, 256, 1000])
def test_values_come_back_within_half_a_gap_of_the_code(signed: bool, numel: int) -> None:
    torch.manual_seed(numel)
    exact = torch.randn(numel) * torch.logspace(-6, 3, numel)
    if not signed:
        exact = exact**2
    code = BlockwiseCode(numel, signed=signed, device=CPU)
    assert not code.load(0, numel).any()
    code.store(0, numel, exact)
    back = code.load(0, numel)
    values = code._values
    gap = (values[1:] - values[:-1]).max()
    for first in range(0, numel, BLOCK):
        part, got = exact[first : first + BLOCK], back[first : first + BLOCK]
        largest = part.abs().max()
        assert (got - part).abs().max() <= largest * (gap / 2 + 2**-9)
        # The largest values keep two digits, and nothing changes its sign.
        big = part.abs() > 0.1 * largest
        assert ((got - part) / part)[big].abs().max() < (0.08 if signed else 0.04)
        assert (got * part >= 0).all()
    if not signed:
        assert (back[exact > 0] > 0).all()


def test_infinities_and_zeros_do_not_become_numbers() -> None:
    code = BlockwiseCode(4, signed=True, device=CPU)
    code.store(0, 4, torch.zeros(4))
    assert not code.load(0, 4).any()
    code.store(0, 4, torch.tensor([1.0, float("nan"), 0.0, 2.0]))
    assert not code.load(0, 4).isfinite().all()


def test_rounding_by_chance_is_exact_on_average_and_equal_on_copies() -> None:
    value = 1.0 + 0.3 * 2**-7
    tries = torch.stack(
        [round_stochastically(torch.full((8,), value), torch.bfloat16, s) for s in range(1, 4001)]
    )
    assert set(tries.flatten().tolist()) == {1.0, 1.0 + 2**-7}
    assert tries.double().mean() == pytest.approx(value, abs=0.03 * 2**-7)
    assert (tries == tries[:, :1]).all()
    many = torch.rand(100_000) + 1
    rounded = round_stochastically(many, torch.bfloat16, 3).double()
    assert (rounded - many).mean().abs() < 0.01 * 2**-7
    assert (rounded - many).abs().max() < 2**-7
    special = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0, -1.5])
    got = round_stochastically(special, torch.bfloat16, 7)
    assert torch.equal(got.float().nan_to_num(7.0), special.nan_to_num(7.0))


def gradients(steps: int, shapes: list[tuple[int, ...]]) -> list[list[Tensor]]:
    torch.manual_seed(0)
    scales = [torch.rand(shape) for shape in shapes]
    return [[torch.randn(s.shape) * s for s in scales] for _ in range(steps)]


def run(optimizer: torch.optim.Optimizer, held: list[nn.Parameter], grads: list[Tensor]) -> None:
    for parameter, grad in zip(held, grads, strict=True):
        parameter.grad = grad.clone()
    optimizer.step()


SHAPES = [(40, 70), (3,), (1000,), (17, 5)]


def groups(held: list[nn.Parameter]) -> list[dict[str, object]]:
    return [
        {"params": [p for p in held if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in held if p.dim() == 1], "weight_decay": 0.0},
    ]


@pytest.mark.parametrize(("bits", "tolerance"), [(32, 1e-6), (16, 0.02), (8, 0.12)])
def test_updates_are_those_of_torch_within_the_moments_precision(
    bits: int, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments, "CHUNK", 2 * BLOCK)  # several chunks, across parameters
    ours = [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    theirs = [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    mine = ChunkedAdamW(groups(ours), rate=1e-2, bits=bits)
    reference = torch.optim.AdamW(groups(theirs), lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    for grads in gradients(10, SHAPES):
        run(mine, ours, grads)
        run(reference, theirs, grads)
    for a, b in zip(ours, theirs, strict=True):
        assert ((a - b).norm() / b.norm()) < tolerance


def toy_loss(held: dict[str, nn.Parameter], x: Tensor, y: Tensor) -> Tensor:
    dtype = held["up"].dtype
    hidden = F.gelu(F.linear(x.to(dtype), held["up"], held["bias"]))
    return F.mse_loss(F.linear(hidden, held["down"]).float(), y)


def train(name: str, *, dtype: torch.dtype = torch.float32, master: bool = True) -> list[float]:
    torch.manual_seed(1)
    held = {
        "up": nn.Parameter((torch.randn(64, 16) / 4).to(dtype)),
        "bias": nn.Parameter(torch.zeros(64, dtype=dtype)),
        "down": nn.Parameter((torch.randn(8, 64) / 8).to(dtype)),
    }
    x, target = torch.randn(256, 16), torch.randn(16, 8)
    y = (x @ target).tanh()
    optimizer = FlatOptimizer(held, SINGLE, name=name, rate=1e-2, weight_decay=0.01, master=master)
    losses = []
    for _ in range(150):
        for parameter in held.values():
            parameter.grad = None
        loss = toy_loss(held, x, y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_every_kind_learns_as_float32_adamw_does() -> None:
    reference = train("adamw")
    assert reference[-1] < 0.1 * reference[0]
    for name in ("adamw-bf16", "adamw-8bit"):
        losses = train(name)
        assert losses[-1] == pytest.approx(reference[-1], rel=0.25), name
    for name, master in (
        ("adamw", True),
        ("adamw", False),
        ("adamw-bf16", False),
        ("adamw-8bit", False),
        ("adamw-8bit", True),
    ):
        losses = train(name, dtype=torch.bfloat16, master=master)
        assert losses[-1] < 0.15 * losses[0], (name, master)
    assert train("sgd-momentum")[-1] < train("sgd")[-1] < 0.9 * train("sgd")[0]


def test_small_updates_of_bf16_parameters_without_masters_are_not_lost() -> None:
    parameter = nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
    optimizer = ChunkedAdamW([{"params": [parameter]}], rate=1e-4, bits=8)
    for _ in range(100):  # each is an eightieth of the gap between neighbours
        parameter.grad = (torch.rand(4096) / 2 + 0.25).bfloat16()
        optimizer.step()
    assert float(parameter.detach().float().mean()) == pytest.approx(1 - 100 * 1e-4, abs=2e-3)


@pytest.mark.parametrize(
    ("name", "dtype", "master"),
    [
        *(
            (name, dtype, True)
            for name in UPDATE_RULES
            for dtype in (torch.float32, torch.bfloat16)
        ),
        *((name, torch.bfloat16, False) for name in ("adamw", "adamw-bf16", "adamw-8bit")),
    ],
)
def test_predicted_bytes_of_state_are_those_of_its_tensors(
    name: str, dtype: torch.dtype, master: bool
) -> None:
    held = {str(i): nn.Parameter(torch.ones(s, dtype=dtype)) for i, s in enumerate(SHAPES)}
    optimizer = FlatOptimizer(held, SINGLE, name=name, rate=1e-2, weight_decay=0.1, master=master)
    for parameter in held.values():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    numel = sum(p.numel() for p in held.values())
    settings = MemorySettings(
        zero=0,
        dp_shard=1,
        itemsize=dtype.itemsize,
        update=update_rule(name, master=master),
        pipelined=False,
        microbatches=1,
        replicated=False,
    )
    measured = sum(t.numel() * t.element_size() for t in optimizer.state_tensors())
    assert state_bytes(numel, numel, settings)[2] == measured
