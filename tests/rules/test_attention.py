"""Attention beyond the oracle: dropout on shards, reasons, prices and saved bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from autoplan import runtime
from autoplan.capture.saved import op_saved
from autoplan.capture.trace import TracedOp, TracedTensor
from autoplan.costs.compute import op_time
from autoplan.ir.graph import Ref, TensorKind
from autoplan.profiles import load_cluster
from autoplan.rules import strategies
from autoplan.rules.attention import why_not

from .engine import Prepared, prepare
from .samples import call, t

_NAME = "scaled_dot_product_attention.default"


def _prepared(heads: int, groups: int, rows: int = 8, *, causal: bool = True) -> Prepared:
    query, key = t(2, heads, rows, 4), t(2, groups, rows, 4)
    return prepare(call(_NAME, query, key, key, None, 0.0, causal, enable_gqa=True))


def _calls(prepared: Prepared, ranks: int) -> dict[str, str]:
    found = strategies(prepared.op, prepared.block, ranks)
    return {",".join(map(str, s.inputs)): s.call for s in found}


def test_key_heads_stay_whole_where_they_do_not_divide() -> None:
    assert _calls(_prepared(8, 4), 4)["S(1),S(1),S(1)"] == ""
    assert _calls(_prepared(8, 2), 4)["S(1),R,R"] == "grouped_attention"
    assert _calls(_prepared(8, 1), 4)["S(1),R,R"] == ""
    assert "S(1),R,R" not in _calls(_prepared(6, 2), 4)


def test_causal_rows_are_offered_with_whole_keys() -> None:
    assert _calls(_prepared(8, 4), 4)["S(2),R,R"] == "row_attention"
    assert _calls(_prepared(8, 4, causal=False), 4)["S(2),R,R"] == ""


def test_why_not_names_the_sizes() -> None:
    prepared = _prepared(12, 12, rows=10)
    reasons = why_not(prepared.op, prepared.block, 8)
    assert reasons == (
        "12 heads don't divide into 8",
        "10 query rows don't divide into 8",
        "2 samples don't divide into 8",
    )
    assert why_not(prepared.op, prepared.block, 2) == ()


@pytest.mark.parametrize("name", ["grouped_attention", "row_attention", "sharded_attention"])
def test_dropout_of_shards_drops_and_scales(name: str) -> None:
    torch.manual_seed(0)
    ranks, heads, rows, dropout = 2, 4, 16, 0.25
    query = torch.randn(1, heads, rows, 8, dtype=torch.float64)
    groups = heads if name == "sharded_attention" else 1
    key = torch.randn(1, groups, rows, 8, dtype=torch.float64)
    # Values of one are the weights themselves.
    value = torch.eye(rows, dtype=torch.float64).expand(1, groups, rows, rows)
    whole = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    dim = 2 if name == "row_attention" else 1

    def body(axis: runtime.Axis) -> torch.Tensor:
        local = [x.chunk(ranks, dim)[axis.rank] for x in (query,)]
        keys = [x.chunk(ranks, 1)[axis.rank] if groups > 1 else x for x in (key, value)]
        function: Any = getattr(runtime, name)
        torch.manual_seed(5)
        found = function(*local, *keys, None, dropout, True, enable_gqa=True, axis=axis)
        assert isinstance(found, torch.Tensor)
        return found

    # One after another: the threads of a process share its generator.
    found = [body(runtime.Axis(group=object(), rank=r, size=ranks)) for r in range(ranks)]  # type: ignore[arg-type]
    kept = [part != 0 for part in found]
    for part, mask, exact in zip(found, kept, whole.chunk(ranks, dim), strict=True):
        expected = exact * mask / (1 - dropout)
        torch.testing.assert_close(part, expected, rtol=1e-10, atol=1e-10)
        share = float((mask & (exact != 0)).sum() / (exact != 0).sum())
        assert 0.6 < share < 0.9
    if dim == 1:
        assert not torch.equal(*kept)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_sharded_rows_cost_what_the_last_rank_computes(ranks: int) -> None:
    prepared = prepare(call(_NAME, *[t(2, 8, 64, 4, dtype="float32")] * 3, None, 0.0, True))
    op = replace(prepared.op, flop=10**15)
    accelerator = replace(load_cluster("8xh100").accelerator, kernel_latency=0.0)
    times = {
        s.call or str(s.outputs[0]): op_time(op, prepared.block, s, ranks, accelerator).forward
        for s in strategies(op, prepared.block, ranks)
    }
    rows = 64 // ranks
    last = sum(range(64 - rows + 1, 65)) / sum(range(1, 65))
    assert times["row_attention"] / times["R"] == pytest.approx(last, rel=0.03)
    assert times["S(1)"] / times["R"] == pytest.approx(1 / ranks)


_CASES: dict[str, dict[str, Any]] = {
    "causal": {"is_causal": True},
    "groups": {"is_causal": True, "enable_gqa": True},
    "boolean mask": {"attn_mask": torch.ones(1, 1, 32, 32, dtype=torch.bool)},
    "expanded mask": {"attn_mask": torch.ones(32, 32, dtype=torch.bool).expand(2, 1, 32, 32)},
    "additive mask": {"attn_mask": torch.zeros(1, 1, 32, 32)},
}


@pytest.mark.parametrize("case", _CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_saved_bytes_are_those_autograd_keeps(case: str, dtype: torch.dtype) -> None:
    settings = dict(_CASES[case])
    heads = 2 if "enable_gqa" in settings else 4
    shapes = ((2, 4, 32, 16), (2, heads, 32, 16), (2, heads, 32, 16))
    tensors = {f"x{i}": torch.randn(s).to(dtype).requires_grad_() for i, s in enumerate(shapes)}
    mask = settings.pop("attn_mask", None)
    if mask is not None:
        tensors["mask"] = mask if mask.dtype == torch.bool else mask.to(dtype)
    kept: dict[int, int] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = F.scaled_dot_product_attention(
            *[tensors[f"x{i}"] for i in range(3)], tensors.get("mask"), **settings
        )
    args = (*(Ref(f"x{i}") for i in range(3)), Ref("mask") if mask is not None else None)
    op = TracedOp(
        target=f"aten.{_NAME}", args=args, kwargs=(), outputs=("y",), module_path="", source=""
    )
    described = {name: _described(name, x) for name, x in {**tensors, "y": out}.items()}
    names, extra = op_saved(op, described)
    sizes = {name: x.numel() * x.element_size() for name, x in {**tensors, "y": out}.items()}
    assert sum(sizes[name] for name in names) + extra == sum(kept.values())


def _described(name: str, x: torch.Tensor) -> TracedTensor:
    return TracedTensor(
        shape=tuple(x.shape),
        dtype=str(x.dtype).removeprefix("torch."),
        kind=TensorKind.ACTIVATION,
        requires_grad=x.requires_grad,
        dependent=x.requires_grad,
        base=name,
    )
