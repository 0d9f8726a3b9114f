"""Shards of parameters, initial values and buffers."""

from __future__ import annotations

import base64
import zlib

import pytest
import torch

import autoplan.runtime as rt


def axis(rank: int, size: int) -> rt.Axis:
    return rt.Axis(group=object(), rank=rank, size=size)  # type: ignore[arg-type]


@pytest.mark.parametrize(("dim", "blocks"), [(None, 1), (0, 1), (1, 1), (0, 3), (1, 2)])
@pytest.mark.parametrize("ranks", [1, 2])
def test_parts_join_to_the_whole(dim: int | None, blocks: int, ranks: int) -> None:
    spec = rt.ParameterSpec(shape=(12, 8), dim=dim, blocks=blocks)
    full = torch.arange(96.0).view(12, 8)
    parts = [rt.slice_parameter(full, spec, axis(r, ranks)) for r in range(ranks)]
    assert all(tuple(p.shape) == rt.local_shape(spec, axis(0, ranks)) for p in parts)
    assert torch.equal(rt.join_parameter(parts, spec), full)


def test_a_blocked_part_has_its_slice_of_each_block() -> None:
    spec = rt.ParameterSpec(shape=(6,), dim=0, blocks=3)
    full = torch.tensor([0, 1, 10, 11, 20, 21])
    assert rt.slice_parameter(full, spec, axis(1, 2)).tolist() == [1, 11, 21]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_padded_parts_join_to_the_whole_and_end_with_zeros(dim: int, ranks: int) -> None:
    spec = rt.ParameterSpec(shape=(11, 11), dim=dim, padded=True)
    full = torch.arange(1.0, 122.0).view(11, 11)
    parts = [rt.slice_parameter(full, spec, axis(r, ranks)) for r in range(ranks)]
    assert all(tuple(p.shape) == rt.local_shape(spec, axis(0, ranks)) for p in parts)
    assert parts[0].shape[dim] == -(-11 // ranks)
    assert not torch.cat(parts, dim).narrow(dim, 11, -11 % ranks).any()
    assert torch.equal(rt.join_parameter(parts, spec), full)


def test_padded_initial_values_are_those_of_the_whole() -> None:
    spec = rt.ParameterSpec(shape=(11, 4), dim=0, padded=True, init=rt.Init("normal", 1.0, 0.1))
    whole, part = torch.empty(11, 4), torch.empty(6, 4)
    rt.initialise(whole, spec, rt.SINGLE, name="w", seed=3)
    rt.initialise(part, spec, axis(1, 2), name="w", seed=3)
    assert torch.equal(part[:5], whole[6:])
    assert not part[5:].any()


def test_indivisible_and_misshapen_parameters_are_refused() -> None:
    spec = rt.ParameterSpec(shape=(6, 4), dim=0, blocks=2)
    with pytest.raises(ValueError, match="2 blocks x 2 ranks"):
        rt.local_shape(spec, axis(0, 2))
    with pytest.raises(ValueError, match=r"\(6, 4\) is planned"):
        rt.slice_parameter(torch.zeros(4, 6), spec, axis(0, 1))


def test_initial_values_are_slices_of_one_draw() -> None:
    spec = rt.ParameterSpec(shape=(512, 64), dim=0, init=rt.Init("normal", 1.0, 0.1))
    whole, part = torch.empty(512, 64), torch.empty(256, 64)
    rt.initialise(whole, spec, rt.SINGLE, name="w", seed=3)
    rt.initialise(part, spec, axis(1, 2), name="w", seed=3)
    assert torch.equal(part, whole[256:])
    assert abs(float(whole.mean()) - 1) < 0.01
    assert abs(float(whole.std()) - 0.1) < 0.01
    other = torch.empty(512, 64)
    rt.initialise(other, spec, rt.SINGLE, name="v", seed=3)
    assert not torch.equal(other, whole)


def test_deferred_parameters_have_no_memory() -> None:
    spec = rt.ParameterSpec(shape=(4, 4), trainable=False)
    with rt.deferred_parameters():
        deferred = rt.empty_parameter(spec, rt.SINGLE, torch.bfloat16, torch.device("cpu"))
    made = rt.empty_parameter(spec, rt.SINGLE, torch.bfloat16, torch.device("cpu"))
    assert deferred.is_meta
    assert not made.is_meta
    assert not made.requires_grad


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "bfloat16"])
def test_buffers_are_read_back(dtype: str) -> None:
    value = torch.tensor([[0, 1, 0], [1, 1, 0]], dtype=getattr(torch, dtype))
    raw = bytes(value.view(torch.uint8).flatten().tolist())
    data = base64.b64encode(zlib.compress(raw)).decode()
    record = {"fqn": "b", "shape": [2, 3], "dtype": dtype, "data": data}
    assert torch.equal(rt.load_buffer(record), value)
    with pytest.raises(ValueError, match="buffer b"):
        rt.load_buffer(record | {"shape": [2, 4]})


def test_an_axis_needs_a_group_and_a_coordinate_on_it() -> None:
    with pytest.raises(ValueError, match="needs a process group"):
        rt.Axis(group=None, rank=0, size=2)
    with pytest.raises(ValueError, match="does not lie"):
        axis(2, 2)


def test_on_one_rank_nothing_is_sent() -> None:
    x = torch.randn(4, 6)
    with rt.record_collectives() as log:
        for y in (
            rt.all_gather(x, rt.SINGLE, 0),
            rt.all_reduce(x, rt.SINGLE),
            rt.reduce_scatter(x, rt.SINGLE, 0),
            rt.all_to_all(x, rt.SINGLE, 0, 1),
            rt.partial_grad(x, rt.SINGLE),
            rt.shard(x, rt.SINGLE, 1),
        ):
            assert y is x
        rt.vocab_cross_entropy(x, torch.zeros(4, dtype=torch.long), axis=rt.SINGLE)
    assert log == []


def test_calls_refuse_what_they_do_not_do() -> None:
    x, ids = torch.randn(4, 6), torch.zeros(4, dtype=torch.long)
    for call in (
        lambda: rt.vocab_cross_entropy(x, ids, torch.ones(6), axis=rt.SINGLE),
        lambda: rt.vocab_cross_entropy(x[None], ids, axis=rt.SINGLE),
        lambda: rt.vocab_cross_entropy(x, x, axis=rt.SINGLE),
        lambda: rt.vocab_cross_entropy(x, ids, None, 3, axis=rt.SINGLE),
        lambda: rt.vocab_embedding(x, ids, -1, True, axis=rt.SINGLE),
        lambda: rt.all_gather(x, rt.SINGLE, 0, backward="all_reduce"),  # type: ignore[arg-type]
        lambda: rt.all_reduce(x, rt.SINGLE, backward="slice"),  # type: ignore[arg-type]
        lambda: rt.all_to_all(x, rt.SINGLE, 1, -1),
        lambda: rt.all_gather(x, axis(0, 2), 0, size=9),
        lambda: rt.all_gather(x, axis(0, 2), 0, 2, size=7),
        lambda: rt.row_cross_entropy(x, ids, None, 2, axis=rt.SINGLE),
        lambda: rt.row_nll_loss(x, ids, None, 0, axis=rt.SINGLE),
    ):
        with pytest.raises(ValueError):
            call()
    with pytest.raises(IndexError):
        rt.shard(x, rt.SINGLE, 2)
