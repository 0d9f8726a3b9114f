"""One rank of a measurement: ``python -m autoplan.profiles.measure.worker RANK RANKS ...``.

Every timing is the median of repeats after warm-up, started on all ranks together and
averaged over them. Rank 0 writes the result and prints what is being measured.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["main"]

KiB, MiB = 2**10, 2**20
_COLD = 64 * MiB
_MAX_COPIES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    budget: float
    matmul: tuple[int, ...]
    copies: tuple[int, ...]
    payloads: tuple[int, ...]
    sequence: int


_SIZES = {
    "tiny": _Sizes(
        budget=0.02,
        matmul=(32, 64, 128),
        copies=(64 * KiB, MiB),
        payloads=(4 * KiB, 64 * KiB),
        sequence=64,
    ),
    "quick": _Sizes(
        budget=0.25,
        matmul=(64, 128, 256, 512, 1024),
        copies=(64 * KiB, 512 * KiB, 4 * MiB, 32 * MiB),
        payloads=(4 * KiB, 64 * KiB, MiB, 8 * MiB, 64 * MiB),
        sequence=512,
    ),
    "full": _Sizes(
        budget=0.35,
        matmul=(32, 64, 128, 256, 512, 1024, 2048),
        copies=(16 * KiB, 64 * KiB, 256 * KiB, MiB, 4 * MiB, 16 * MiB, 64 * MiB),
        payloads=(4 * KiB, 32 * KiB, 256 * KiB, MiB, 4 * MiB, 16 * MiB, 64 * MiB),
        sequence=512,
    ),
}


class _Bench:
    """Times functions on all ranks at once."""

    def __init__(self, rank: int, ranks: int, budget: float) -> None:
        self.rank = rank
        self.ranks = ranks
        self._budget = budget

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)

    def together(self, value: float) -> float:
        """Mean of a value over the ranks."""
        if self.ranks == 1:
            return value
        total = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(total)
        return float(total) / self.ranks

    def seconds(self, run: Callable[[], object], *, least: int = 3) -> float:
        """Median seconds of ``run``, the number of repeats agreed by all ranks."""
        run()
        start = time.perf_counter()
        run()
        once = self.together(time.perf_counter() - start)
        repeats = max(least, min(2000, int(self._budget / max(once, 1e-7))))
        if self.ranks > 1:
            dist.barrier()
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return self.together(statistics.median(times))


def main(argv: list[str]) -> None:
    """Measure and, on rank 0, write the timings as JSON."""
    rank, ranks, threads = map(int, argv[:3])
    sizes, store, result = _SIZES[argv[3]], argv[4], Path(argv[5])
    torch.set_num_threads(threads)
    torch.manual_seed(rank)
    if ranks > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=60),
        )
    bench = _Bench(rank, ranks, sizes.budget)
    timings: dict[str, object] = {
        "kernel_latency": _text(_latency(bench)),
        "matmul": _matmuls(bench, sizes),
        "copies": _copies(bench, sizes),
        "updates": _updates(bench, sizes),
        "attention": _attention(bench, sizes),
        "collectives": _collectives(bench, sizes),
    }
    if rank == 0:
        result.write_text(json.dumps(timings), encoding="utf-8")
    if ranks > 1:
        dist.destroy_process_group()


def _text(seconds: float) -> str:
    return f"{seconds:.9g} s"


def _latency(bench: _Bench) -> float:
    bench.say("latency of a small operator")
    x = torch.ones(16, requires_grad=True)

    def run() -> None:
        y = x
        for _ in range(20):
            y = y * 1.5

    return bench.seconds(run) / 20


class _Cold:
    """Runs an operator on operands, and into memory, that no cache holds any more.

    In a training step every tensor is touched once a pass and kept for the backward; the same
    operands again and again would measure the cache instead.
    """

    def __init__(self, make: Callable[[], tuple[Tensor, ...]], run: Callable[..., Tensor]) -> None:
        first = make()
        size = sum(x.numel() * x.element_size() for x in first)
        copies = max(1, min(_MAX_COPIES, _COLD // size))
        self._operands = itertools.cycle([first, *(make() for _ in range(copies - 1))])
        self._kept: deque[Tensor] = deque(maxlen=copies)
        self._run = run

    def __call__(self) -> None:
        self._kept.append(self._run(*next(self._operands)))


def _matmuls(bench: _Bench, sizes: _Sizes) -> list[dict[str, object]]:
    timings: list[dict[str, object]] = []
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        slowest = 0.0
        for n in sizes.matmul:
            # A type without native support takes seconds where float32 takes milliseconds.
            if dtype is not torch.float32 and slowest * 8 > 2.0:
                break
            bench.say(f"matmul {name} {n}")
            run = _Cold(
                lambda n=n, dtype=dtype: (torch.randn(n, n).to(dtype), torch.randn(n, n).to(dtype)),  # type: ignore[misc]
                torch.nn.functional.linear,
            )
            slowest = bench.seconds(run)
            timings.append({"dtype": name, "shape": [n, n, n], "time": _text(slowest)})
    return timings


def _copies(bench: _Bench, sizes: _Sizes) -> list[dict[str, object]]:
    timings: list[dict[str, object]] = []
    for size in sizes.copies:
        bench.say(f"memory {size // KiB} KiB")
        # float32, read once and written once
        run = _Cold(lambda size=size: (torch.ones(size // 8),), lambda x: x * 1.5)  # type: ignore[misc]
        seconds = bench.seconds(run)
        timings.append({"moved": f"{size} B", "time": _text(seconds)})
    return timings


def _updates(bench: _Bench, sizes: _Sizes) -> list[dict[str, object]]:
    timings: list[dict[str, object]] = []
    for size in sizes.copies:
        bench.say(f"update {size // KiB} KiB")
        # float32, two read and one of them written
        numel = size // 12
        run = _Cold(
            lambda numel=numel: (torch.ones(numel), torch.ones(numel)),  # type: ignore[misc]
            lambda x, y: x.add_(y, alpha=0.5),
        )
        timings.append({"moved": f"{12 * numel} B", "time": _text(bench.seconds(run))})
    return timings


def _attention(bench: _Bench, sizes: _Sizes) -> dict[str, object]:
    bench.say("attention")
    heads, head_size, length = 12, 64, sizes.sequence
    q, k, v = (torch.randn(1, heads, length, head_size) for _ in range(3))
    seconds = bench.seconds(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v))
    flop = 4 * heads * length * length * head_size
    return {"dtype": "float32", "flop": flop, "time": _text(seconds)}


def _collectives(bench: _Bench, sizes: _Sizes) -> list[dict[str, object]]:
    timings: list[dict[str, object]] = []
    for ranks in range(2, bench.ranks + 1):
        if bench.ranks % ranks:
            continue
        mine = None
        for first in range(0, bench.ranks, ranks):
            group = dist.new_group(list(range(first, first + ranks)))
            if first <= bench.rank < first + ranks:
                mine = group
        assert mine is not None
        first = bench.rank - bench.rank % ranks
        for kind, make in _KINDS.items():
            if kind == "p2p" and ranks != 2:
                continue
            bench.say(f"{kind} on {ranks} ranks")
            for payload in sizes.payloads:
                run = make(payload // 4 // ranks * ranks, ranks, first, mine)
                seconds = bench.seconds(run, least=2) / (2 if kind == "p2p" else 1)
                timings.append(
                    {
                        "kind": kind,
                        "ranks": ranks,
                        "payload": f"{payload // 4 // ranks * ranks * 4} B",
                        "time": _text(seconds),
                    }
                )
    return timings


_Make = Callable[[int, int, int, dist.ProcessGroup], Callable[[], object]]


def _all_reduce(
    numel: int, ranks: int, first: int, group: dist.ProcessGroup
) -> Callable[[], object]:
    x = torch.zeros(numel)
    return lambda: dist.all_reduce(x, group=group)


def _all_gather(
    numel: int, ranks: int, first: int, group: dist.ProcessGroup
) -> Callable[[], object]:
    whole, part = torch.zeros(numel), torch.zeros(numel // ranks)
    return lambda: dist.all_gather_into_tensor(whole, part, group=group)


def _reduce_scatter(
    numel: int, ranks: int, first: int, group: dist.ProcessGroup
) -> Callable[[], object]:
    whole, part = torch.zeros(numel), torch.zeros(numel // ranks)
    return lambda: dist.reduce_scatter_tensor(part, whole, group=group)


def _all_to_all(
    numel: int, ranks: int, first: int, group: dist.ProcessGroup
) -> Callable[[], object]:
    share = numel // ranks // ranks * ranks
    sent, received = torch.zeros(share), torch.zeros(share)
    return lambda: dist.all_to_all_single(received, sent, group=group)


def _broadcast(
    numel: int, ranks: int, first: int, group: dist.ProcessGroup
) -> Callable[[], object]:
    x = torch.zeros(numel)
    return lambda: dist.broadcast(x, src=first, group=group)


def _p2p(numel: int, ranks: int, first: int, group: dist.ProcessGroup) -> Callable[[], object]:
    x = torch.zeros(numel)
    mine = dist.get_rank()

    def there_and_back() -> None:
        if mine == first:
            dist.send(x, dst=first + 1, group=group)
            dist.recv(x, src=first + 1, group=group)
        else:
            dist.recv(x, src=first, group=group)
            dist.send(x, dst=first, group=group)

    return there_and_back


_KINDS: dict[str, _Make] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "p2p": _p2p,
}


if __name__ == "__main__":
    main(sys.argv[1:])
