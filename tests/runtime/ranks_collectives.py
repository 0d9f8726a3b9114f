"""Run by each rank: collectives and sharded calls against the whole tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

import autoplan.runtime as rt

SHAPE = (4, 12, 6)
LAYOUTS = [(0, 1), (1, 1), (2, 1), (1, 3), (1, 2), (0, 2), (2, 3)]


def whole_shard(x: Tensor, dim: int, blocks: int, rank: int, ranks: int) -> Tensor:
    """Shard by definition: the rank's slice of each block, one after another."""
    return torch.cat([b.chunk(ranks, dim)[rank] for b in x.chunk(blocks, dim)], dim)


def same(name: str, got: Tensor | None, expected: Tensor) -> None:
    assert got is not None, f"{name}: no result"
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9, msg=lambda m: f"{name}: {m}")


def check(name: str, x: Tensor, edge: Callable[[Tensor], Tensor], w: Tensor, y: Tensor, g: Tensor):
    """Edge on this rank's x gives y, and g comes back when w arrives."""
    for strided in (False, True):
        local = x.transpose(0, 1).contiguous().transpose(0, 1) if strided else x.clone()
        local.requires_grad_()
        result = edge(local)
        same(f"{name} forward", result.detach(), y)
        result.backward(w.transpose(0, 1).contiguous().transpose(0, 1) if strided else w)
        same(f"{name} backward", local.grad, g)


def edges(axis: rt.Axis) -> None:
    n, r = axis.size, axis.rank
    torch.manual_seed(7)
    draw = lambda: [torch.randn(SHAPE, dtype=torch.float64) for _ in range(n)]  # noqa: E731
    x, addends, weights = draw()[0], draw(), draw()
    total, summed = sum(addends), sum(weights)
    w = weights[0]
    check("R->R*", x, lambda t: rt.partial_grad(t, axis), weights[r], x, summed)
    check("P->R", addends[r], lambda t: rt.all_reduce(t, axis), w, total, w)
    check(
        "P->R*",
        addends[r],
        lambda t: rt.all_reduce(t, axis, backward="all_reduce"),
        weights[r],
        total,
        summed,
    )
    for dim, k in LAYOUTS:
        cut = lambda t: whole_shard(t, dim, k, r, n)  # noqa: B023, E731
        name = f"S({dim},{k})"
        check(f"R->{name}", x, lambda t: rt.shard(t, axis, dim, k), cut(w), cut(x), w)  # noqa: B023
        check(
            f"{name}->R",
            cut(x),
            lambda t: rt.all_gather(t, axis, dim, k, backward="slice"),  # noqa: B023
            w,
            x,
            cut(w),
        )
        check(
            f"{name}->R*",
            cut(x),
            lambda t: rt.all_gather(t, axis, dim, k),  # noqa: B023
            weights[r],
            x,
            cut(summed),
        )
        check(
            f"P->{name}",
            addends[r],
            lambda t: rt.reduce_scatter(t, axis, dim, k),  # noqa: B023
            cut(w),
            cut(total),
            w,
        )
        for plain in (torch.arange(288).view(SHAPE), x > 0, x.to(torch.bfloat16)):
            shard = rt.shard(plain, axis, dim, k)
            assert torch.equal(shard, cut(plain))
            assert torch.equal(rt.all_gather(shard, axis, dim, k), plain)
    for a in range(3):
        for b in range(3):
            if a != b:
                check(
                    f"S({a})->S({b})",
                    whole_shard(x, a, 1, r, n),
                    lambda t: rt.all_to_all(t, axis, a, b),  # noqa: B023
                    whole_shard(w, b, 1, r, n),
                    whole_shard(x, b, 1, r, n),
                    whole_shard(w, a, 1, r, n),
                )
    flags = whole_shard(x > 0, 0, 1, r, n)
    assert torch.equal(rt.all_to_all(flags, axis, 0, 1), whole_shard(x > 0, 1, 1, r, n))


def padded(axis: rt.Axis) -> None:
    """Edges of a dim that does not divide; the padding that is gathered is garbage."""
    n, r = axis.size, axis.rank
    torch.manual_seed(8)
    for dim in range(3):
        size = 5 * n - 1
        shape = [4, 3, 6]
        shape[dim] = size
        draw = lambda: [torch.randn(shape, dtype=torch.float64) for _ in range(n)]  # noqa: B023, E731
        x, addends, weights = draw()[0], draw(), draw()

        def cut(t: Tensor, filler: float = 0.0) -> Tensor:
            more = list(shape)  # noqa: B023
            more[dim] = 1  # noqa: B023
            return torch.cat([t, t.new_full(more, filler)], dim).chunk(n, dim)[r].contiguous()  # noqa: B023

        nan = float("nan")
        w, summed, total = weights[0], sum(weights), sum(addends)
        shard = lambda t: rt.shard(t, axis, dim, pad=True)  # noqa: B023, E731
        scatter = lambda t: rt.reduce_scatter(t, axis, dim, pad=True)  # noqa: B023, E731
        gather = lambda t: rt.all_gather(t, axis, dim, size=size)  # noqa: B023, E731
        whole = lambda t: rt.all_gather(t, axis, dim, size=size, backward="slice")  # noqa: B023, E731
        check(f"R->S({dim},pad)", x, shard, cut(w, nan), cut(x), w)
        check(f"S({dim},pad)->R", cut(x, nan), whole, w, x, cut(w))
        check(f"S({dim},pad)->R*", cut(x, nan), gather, weights[r], x, cut(summed))
        check(f"P->S({dim},pad)", addends[r], scatter, cut(w, nan), cut(total), w)
        with rt.record_collectives() as log:
            gather(cut(x))
            scatter(x)
        sent = x.numel() // size * (size + 1) * 8
        assert log == [("all_gather", sent), ("reduce_scatter", sent)], log


def rows(axis: rt.Axis) -> None:
    n, r = axis.size, axis.rank
    torch.manual_seed(9)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.bfloat16, 2e-2)):
        logits = torch.randn(6 * n, 7, dtype=torch.float64).to(dtype)
        target = torch.randint(7, (6 * n,))
        target[: 5 * n // 2] = -100  # uneven: some ranks have few labels that count
        classes = torch.rand(7, dtype=torch.float64).to(dtype) + 0.5
        for weight, smoothing in ((None, 0.0), (classes, 0.0), (classes, 0.1)):
            whole = logits.clone().requires_grad_()
            expected = F.cross_entropy(whole, target, weight, label_smoothing=smoothing)
            expected.backward()
            local = logits.chunk(n)[r].clone().requires_grad_()
            mine = target.chunk(n)[r]
            with rt.record_collectives() as log:
                part = rt.row_cross_entropy(local, mine, weight, 1, -100, smoothing, axis=axis)
                assert part.dtype == dtype
                part.backward()
            assert log == [("all_reduce", 8 if dtype == torch.float64 else 4)], log
            loss = rt.all_reduce(part.detach(), axis)
            torch.testing.assert_close(loss, expected.detach(), rtol=tolerance, atol=tolerance)
            assert whole.grad is not None
            torch.testing.assert_close(
                local.grad, whole.grad.chunk(n)[r], rtol=tolerance, atol=tolerance
            )


def counted(axis: rt.Axis) -> None:
    with rt.record_collectives() as log:
        local = torch.randn(4, 6, requires_grad=True)
        rt.all_gather(local, axis, 0).sum().backward()
        rt.all_to_all(local.detach(), axis, 0, 1)
    whole = 4 * 6 * 4 * axis.size
    assert log == [("all_gather", whole), ("reduce_scatter", whole), ("all_to_all", whole)], log


def vocabulary(axis: rt.Axis) -> None:
    n, r = axis.size, axis.rank
    torch.manual_seed(3)
    table = torch.randn(12, 5, dtype=torch.float64)
    ids = torch.randint(12, (3, 4))
    upstream = torch.randn(3, 4, 5, dtype=torch.float64)
    for padding in (-1, 0, 7):
        whole = table.clone().requires_grad_()
        F.embedding(ids, whole, padding_idx=padding if padding >= 0 else None).backward(upstream)
        local = table.chunk(n)[r].clone().requires_grad_()
        value = rt.all_reduce(rt.vocab_embedding(local, ids, padding, axis=axis), axis)
        same("embedding", value.detach(), F.embedding(ids, table))
        value.backward(upstream)
        assert whole.grad is not None
        same("embedding gradient", local.grad, whole.grad.chunk(n)[r])
    logits = torch.randn(9, 12, dtype=torch.float64) * 30
    target = torch.randint(12, (9,))
    target[4] = -100
    for reduction, name, smooth in ((0, "none", 0.0), (1, "mean", 0.0), (2, "sum", 0.1)):
        whole = logits.clone().requires_grad_()
        expected = F.cross_entropy(whole, target, reduction=name, label_smoothing=smooth)
        weight = torch.randn_like(expected)
        expected.backward(weight)
        local = logits.chunk(n, 1)[r].clone().requires_grad_()
        with rt.record_collectives() as log:
            loss = rt.vocab_cross_entropy(local, target, None, reduction, -100, smooth, axis=axis)
            loss.backward(weight)
        assert log == [("all_reduce", 9 * 8)] * 3, log
        same(f"cross entropy {name}", loss.detach(), expected.detach())
        assert whole.grad is not None
        same(f"cross entropy gradient {name}", local.grad, whole.grad.chunk(n, 1)[r])


def products(axis: rt.Axis) -> None:
    n, r = axis.size, axis.rank
    torch.manual_seed(4)
    x, w, b = (torch.randn(s, dtype=torch.float64) for s in ((3, 8), (5, 8), (5,)))
    local = b.clone().requires_grad_()
    part = rt.row_parallel_linear(x.chunk(n, 1)[r], w.chunk(n, 1)[r], local, axis=axis)
    value = rt.all_reduce(part, axis)
    same("linear", value.detach(), F.linear(x, w, b))
    value.sum().backward()
    # The bias is used as R*: its gradient is an addend on each rank.
    assert local.grad is not None
    dist.all_reduce(local.grad)
    same("linear bias", local.grad, torch.full((5,), 3.0, dtype=torch.float64))
    part = rt.row_parallel_addmm(
        b, x.chunk(n, 1)[r], w.t().chunk(n, 0)[r], beta=0.5, alpha=2, axis=axis
    )
    same("addmm", rt.all_reduce(part, axis), torch.addmm(b, x, w.t(), beta=0.5, alpha=2))


def masks(axis: rt.Axis) -> None:
    def gathered(x: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(x) for _ in range(axis.size)]
        dist.all_gather(parts, x.contiguous())
        return parts

    torch.manual_seed(11)
    ones = torch.ones(64, 64)
    first, second = gathered(rt.replicated_dropout(ones, 0.25, True, axis=axis))
    assert torch.equal(first, second)
    assert abs(float(first.mean()) - 1) < 0.05
    assert set(first.unique().tolist()) == {0.0, float(torch.tensor(1 / 0.75))}
    first, second = gathered(rt.sharded_dropout(ones, 0.25, True, axis=axis))
    assert not torch.equal(first, second)
    q = torch.randn(2, 4, 16, 8)
    first, second = gathered(rt.replicated_attention(q, q, q, dropout_p=0.5, axis=axis))
    assert torch.equal(first, second)
    first, second = gathered(rt.sharded_attention(q, q, q, dropout_p=0.5, axis=axis))
    assert not torch.equal(first, second)
    for function in (rt.replicated_dropout, rt.sharded_dropout):
        # The gradient shows the mask of the recomputation, the result that of the first pass.
        x = torch.ones(64, requires_grad=True)
        y = rt.checkpoint(lambda t: function(t, 0.5, True, axis=axis).exp(), x)  # noqa: B023
        y.sum().backward()
        torch.testing.assert_close(x.grad, torch.where(y > 1.5, 2 * y, 0.0 * y).detach())
    rt.set_dropout(False)
    assert torch.equal(rt.sharded_dropout(ones, 0.25, True, axis=axis), ones)
    rt.set_dropout(True)


def main() -> None:
    dist.init_process_group("gloo")
    axis = rt.Axis(group=dist.group.WORLD, rank=dist.get_rank(), size=dist.get_world_size())
    for checks in (edges, padded, rows, counted, vocabulary, products, masks):
        checks(axis)
        print(f"{checks.__name__} ok")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
