"""One rank of a measurement: ``python -m autoplan.profiles.measure.worker RANK RANKS ...``.

Every timing is the median of repeats after warm-up, started on all ranks together and
averaged over them, with its spread; what varies, or fell into a slow spell of the machine, is
measured again (`measure.steady`). Rank 0 writes the result and prints what is being measured.
"""

from __future__ import annotations

import itertools
import json
import math
import socket
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.profiles.measure.collectives import COLLECTIVES, Make
from autoplan.profiles.measure.overlap import measure_overlap
from autoplan.profiles.measure.recompute import measure_recompute
from autoplan.profiles.measure.start import start_rank
from autoplan.profiles.measure.steady import Measured, Sample, measure_steadily, sample_of
from autoplan.profiles.measure.units import UnitSize, measure_units

__all__ = ["main"]

KiB, MiB = 2**10, 2**20
_COLD = 256 * MiB
_MAX_COPIES = 512
_REFERENCE_RUNS = 5

# Work of a rank between two collectives: some operators of a small block, about 10 ms of a core.
_WORK_ROUNDS, _WORK_ROWS, _WORK_WIDTH = 6, 512, 1024
_MOST_AFTER_WORK = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    budget: float
    matmul: tuple[int, ...]
    copies: tuple[int, ...]
    payloads: tuple[int, ...]
    sequence: int
    reference: int
    overlap: int
    units: tuple[UnitSize, ...]


_SIZES = {
    "tiny": _Sizes(
        budget=0.02,
        matmul=(32, 64, 128),
        copies=(64 * KiB, MiB),
        payloads=(4 * KiB, 64 * KiB),
        sequence=64,
        reference=128,
        overlap=256 * KiB,
        units=((1, 2**12), (4, 2**12), (1, 2**16)),
    ),
    "quick": _Sizes(
        budget=0.25,
        matmul=(64, 128, 256, 512, 1024),
        copies=(64 * KiB, 512 * KiB, 4 * MiB, 32 * MiB),
        payloads=(4 * KiB, 64 * KiB, MiB, 8 * MiB, 64 * MiB),
        sequence=512,
        reference=256,
        overlap=8 * MiB,
        units=((1, 2**14), (16, 2**14), (1, 2**20), (16, 2**20)),
    ),
    "full": _Sizes(
        budget=0.35,
        matmul=(32, 64, 128, 256, 512, 1024, 2048),
        copies=(16 * KiB, 64 * KiB, 256 * KiB, MiB, 4 * MiB, 16 * MiB, 64 * MiB),
        payloads=(4 * KiB, 32 * KiB, 256 * KiB, MiB, 4 * MiB, 16 * MiB, 64 * MiB),
        sequence=512,
        reference=256,
        overlap=8 * MiB,
        units=tuple((k, n) for k in (1, 8, 24) for n in (2**14, 2**18, 2**20, 2**22)),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """One thing to time: where its record goes, what it says, how to make what is run.

    ``make`` gives None where the thing is left out. ``share`` divides the seconds of a run.
    ``after_work``: each run follows work of its rank, which ends at another moment on each.
    """

    section: str
    label: str
    record: dict[str, object]
    make: Callable[[], Callable[[], object] | None]
    least: int = 3
    share: int = 1
    after_work: bool = False


class _Bench:
    """Times functions on all ranks at once."""

    def __init__(self, rank: int, ranks: int, budget: float, reference: int) -> None:
        self.rank = rank
        self.ranks = ranks
        self.seconds: dict[str, float] = {}
        self._budget = budget
        x = torch.randn(reference, reference)
        self._kernel: Callable[[], object] = lambda: torch.mm(x, x)
        self._rows = torch.randn(_WORK_ROWS, _WORK_WIDTH // 4)
        self._weight = torch.randn(_WORK_WIDTH // 4, _WORK_WIDTH)

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)

    def together(self, *values: float) -> list[float]:
        """Means of values over the ranks."""
        if self.ranks == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return [float(value) / self.ranks for value in total]

    def sample(
        self, run: Callable[[], object], *, least: int = 3, after_work: bool = False
    ) -> Sample:
        """Sample of ``run``, the number of repeats agreed by all ranks.

        In a step no rank is in a collective before it has done its part of the work, the first
        one waits for the last, and the threads that communicate must be woken. That varies a
        lot, and a step adds up many: of collectives the mean counts.
        """
        run()
        start = time.perf_counter()
        run()
        (once,) = self.together(time.perf_counter() - start)
        most = _MOST_AFTER_WORK if after_work else 2000
        repeats = max(least, min(most, int(self._budget / max(once, 1e-7))))
        if self.ranks > 1:
            dist.barrier()
        times = []
        for _ in range(repeats):
            if after_work:
                self._work()
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return self.shared(sample_of(times, mean=after_work))

    def _work(self) -> None:
        for _ in range(_WORK_ROUNDS):
            torch.tanh(torch.mm(self._rows, self._weight) * 1.5)

    def shared(self, sample: Sample) -> Sample:
        """Means over the ranks."""
        seconds, spread = self.together(sample.seconds, sample.spread)
        return Sample(seconds=seconds, spread=spread, repeats=sample.repeats)

    def measure(self, task: _Task) -> Sample | None:
        """Sample of a task."""
        run = task.make()
        if run is None:
            return None
        self.say(task.label)
        sample = self.sample(run, least=task.least, after_work=task.after_work)
        self.seconds[task.label] = sample.seconds
        return sample

    def reference(self) -> float:
        """Seconds of the reference kernel, the best of a few in a row."""
        times = []
        for _ in range(_REFERENCE_RUNS):
            start = time.perf_counter()
            self._kernel()
            times.append(time.perf_counter() - start)
        (seconds,) = self.together(statistics.median(times))
        return seconds


def main(argv: list[str]) -> None:
    """Measure and, on rank 0, write the timings as JSON."""
    rank, ranks, threads = map(int, argv[:3])
    sizes, store, result = _SIZES[argv[3]], argv[4], Path(argv[5])
    start_rank(rank, ranks, threads=threads, store=store, timeout=timedelta(seconds=60))
    bench = _Bench(rank, ranks, sizes.budget, sizes.reference)
    tasks = [
        _latency(),
        *_matmuls(bench, sizes),
        *_copies(sizes),
        *_updates(sizes),
        _attention(sizes),
        *_collectives(bench, sizes),
    ]
    for _ in range(3):  # the first kernels of a process are slow
        bench.reference()
    measured = measure_steadily(tasks, bench.measure, bench.reference, say=bench.say)
    timings = _document(measured)
    timings["hosts"] = len(set(_hosts(ranks)))
    timings["recompute"] = measure_recompute(bench.together, bench.reference, bench.say)
    if ranks > 1:
        bench.say("overlap")
        timings["overlap"] = measure_overlap(bench.together, bench.reference, sizes.overlap)
        timings["units"] = measure_units(bench.together, bench.reference, sizes.units, bench.say)
    if rank == 0:
        result.write_text(json.dumps(timings), encoding="utf-8")
    if ranks > 1:
        dist.destroy_process_group()


def _document(measured: Sequence[Measured[_Task]]) -> dict[str, object]:
    sections: dict[str, list[dict[str, object]]] = {
        name: []
        for name in ("matmul", "copies", "updates", "attention", "collectives", "kernel_latency")
    }
    for one in measured:
        sections[one.what.section].append(
            {
                **one.what.record,
                "time": _text(one.sample.seconds / one.what.share),
                "spread": round(one.sample.spread, 4),
                "repeats": one.sample.repeats,
                "pace": round(max(1.0, one.pace), 4),
            }
        )
    (attention,), (latency,) = sections.pop("attention"), sections.pop("kernel_latency")
    return {"kernel_latency": latency["time"], "attention": attention, **sections}


def _hosts(ranks: int) -> list[str]:
    """Host of each rank."""
    if ranks == 1:
        return [socket.gethostname()]
    hosts: list[str] = [""] * ranks
    dist.all_gather_object(hosts, socket.gethostname())
    return hosts


def _text(seconds: float) -> str:
    return f"{seconds:.9g} s"


def _latency() -> _Task:
    x = torch.ones(16, requires_grad=True)

    def run() -> None:
        y = x
        for _ in range(20):
            y = y * 1.5

    label = "latency of a small operator"
    return _Task(section="kernel_latency", label=label, record={}, make=lambda: run, share=20)


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


def _matmuls(bench: _Bench, sizes: _Sizes) -> Iterator[_Task]:
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        smaller = ""
        for n in sizes.matmul:

            def make(
                n: int = n, dtype: torch.dtype = dtype, smaller: str = smaller
            ) -> _Cold | None:
                # A type without native support takes seconds where float32 takes milliseconds.
                last = bench.seconds.get(smaller, 0.0 if not smaller else math.inf)
                if dtype is not torch.float32 and last * 8 > 2.0:
                    return None
                operands = lambda: (torch.randn(n, n).to(dtype), torch.randn(n, n).to(dtype))  # noqa: E731
                return _Cold(operands, torch.nn.functional.linear)

            smaller = f"matmul {name} {n}"
            record: dict[str, object] = {"dtype": name, "shape": [n, n, n]}
            yield _Task(section="matmul", label=smaller, record=record, make=make)


def _copies(sizes: _Sizes) -> Iterator[_Task]:
    for size in sizes.copies:

        def make(size: int = size) -> _Cold:
            # float32, read once and written once
            return _Cold(lambda: (torch.ones(size // 8),), lambda x: x * 1.5)

        label = f"memory {size // KiB} KiB"
        yield _Task(section="copies", label=label, record={"moved": f"{size} B"}, make=make)


def _updates(sizes: _Sizes) -> Iterator[_Task]:
    for size in sizes.copies:
        numel = size // 12

        def make(numel: int = numel) -> _Cold:
            # float32, two read and one of them written
            operands = lambda: (torch.ones(numel), torch.ones(numel))  # noqa: E731
            return _Cold(operands, lambda x, y: x.add_(y, alpha=0.5))

        label = f"update {size // KiB} KiB"
        yield _Task(section="updates", label=label, record={"moved": f"{12 * numel} B"}, make=make)


def _attention(sizes: _Sizes) -> _Task:
    heads, head_size, length = 12, 64, sizes.sequence
    q, k, v = (torch.randn(1, heads, length, head_size) for _ in range(3))
    flop = 4 * heads * length * length * head_size
    return _Task(
        section="attention",
        label="attention",
        record={"dtype": "float32", "flop": flop},
        make=lambda: lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v),
    )


def _collectives(bench: _Bench, sizes: _Sizes) -> Iterator[_Task]:
    hosts = _hosts(bench.ranks)
    for ranks in range(2, bench.ranks + 1):
        if bench.ranks % ranks:
            continue
        starts = range(0, bench.ranks, ranks)
        groups = [dist.new_group(list(range(first, first + ranks))) for first in starts]
        group = groups[bench.rank // ranks]
        first = bench.rank - bench.rank % ranks
        # Groups of a size run at the same time, so that the one that spreads most sets the pace.
        across = any(len(set(hosts[start : start + ranks])) > 1 for start in starts)
        for kind, ready in COLLECTIVES.items():
            if kind == "p2p" and ranks != 2:
                continue
            for payload in sizes.payloads:
                numel = payload // 4 // ranks * ranks

                def make(
                    ready: Make = ready,
                    numel: int = numel,
                    ranks: int = ranks,
                    first: int = first,
                    group: dist.ProcessGroup = group,
                ) -> Callable[[], object]:
                    return ready(numel, ranks, first, group)

                yield _Task(
                    section="collectives",
                    label=f"{kind} on {ranks} ranks, {payload // KiB} KiB",
                    record={
                        "kind": kind,
                        "level": "across" if across else "node",
                        "ranks": ranks,
                        "payload": f"{numel * 4} B",
                    },
                    make=make,
                    least=8,
                    share=2 if kind == "p2p" else 1,
                    after_work=True,
                )


if __name__ == "__main__":
    main(sys.argv[1:])
