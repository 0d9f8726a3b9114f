"""One rank of a measurement: ``python -m autoplan.profiles.measure.worker RANK RANKS ...``.

Every timing is the median of repeats after warm-up, started on all ranks together and
averaged over them, with its spread; what varies, or fell into a slow spell of the machine, is
measured again (`measure.steady`). Rank 0 writes the result and prints what is being measured.
"""

from __future__ import annotations

import json
import math
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from autoplan.profiles.measure.cold import Cold
from autoplan.profiles.measure.collectives import COLLECTIVES, Make
from autoplan.profiles.measure.device import Cpu, Device, open_device, timed
from autoplan.profiles.measure.matmuls import matmul_of
from autoplan.profiles.measure.overlap import measure_overlap
from autoplan.profiles.measure.recompute import measure_recompute
from autoplan.profiles.measure.sizes import SIZES, KiB, Sizes
from autoplan.profiles.measure.start import start_rank
from autoplan.profiles.measure.steady import Measured, Sample, measure_steadily, sample_of
from autoplan.profiles.measure.units import measure_units

__all__ = ["main"]

_REFERENCE_RUNS = 5

_MOST_AFTER_WORK = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """One thing to time: where its record goes, what it says, how to make what is run.

    ``make`` gives None where the thing is left out. ``share`` divides the seconds of a run.
    ``after_work``: each run follows work of its rank, which ends at another moment on each.
    ``on_host``: what the host takes to issue it, whether or not the device is done.
    """

    section: str
    label: str
    record: dict[str, object]
    make: Callable[[], Callable[[], object] | None]
    least: int = 3
    share: int = 1
    after_work: bool = False
    on_host: bool = False


class _Bench:
    """Times functions on all ranks at once."""

    def __init__(self, rank: int, ranks: int, device: Device, sizes: Sizes) -> None:
        self.rank = rank
        self.ranks = ranks
        self.seconds: dict[str, float] = {}
        self.left_out: list[str] = []
        self.device = device
        self._host = Cpu()
        self._issue = 0.0  # seconds that the host takes to call what is timed
        self._budget = sizes.budget
        x = torch.randn(sizes.reference, sizes.reference, device=device.place).to(device.usual)
        self._kernel: Callable[[], object] = lambda: torch.mm(x, x)
        seconds, rows, width = sizes.work
        self._rows = torch.randn(rows, width // 4, device=device.place)
        self._weight = torch.randn(width // 4, width, device=device.place)
        self._rounds = 1
        self._work()
        (once,) = self.together(min(timed(device, self._work) for _ in range(3)))
        self._rounds = max(1, round(seconds / once))

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)

    def together(self, *values: float) -> list[float]:
        """Means of values over the ranks."""
        if self.ranks == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device.place)
        dist.all_reduce(total)
        return [float(value) / self.ranks for value in total]

    def _once(self, run: Callable[[], object], *, on_host: bool, after_work: bool) -> float:
        if on_host:
            self.device.wait()
            return timed(self._host, run)
        if after_work:
            self._work()
        else:
            self.device.lead(self._issue)
        return timed(self.device, run)

    def sample(
        self,
        run: Callable[[], object],
        *,
        least: int = 3,
        after_work: bool = False,
        on_host: bool = False,
    ) -> Sample:
        """Sample of ``run``, the number of repeats agreed by all ranks.

        In a step no rank is in a collective before it has done its part of the work, the first
        one waits for the last, and the threads that communicate must be woken. That varies a
        lot, and a step adds up many: of collectives the mean counts.
        """
        run()
        self.device.wait()
        start = time.perf_counter()
        self._issue = timed(self._host, run)
        self.device.wait()
        (once,) = self.together(time.perf_counter() - start)
        most = _MOST_AFTER_WORK if after_work else 2000
        repeats = max(least, min(most, int(self._budget / max(once, 1e-7))))
        if self.ranks > 1:
            dist.barrier()
        times = [self._once(run, on_host=on_host, after_work=after_work) for _ in range(repeats)]
        return self.shared(sample_of(times, mean=after_work))

    def _work(self) -> None:
        for _ in range(self._rounds):
            torch.tanh(torch.mm(self._rows, self._weight) * 1.5)

    def shared(self, sample: Sample) -> Sample:
        """Means over the ranks."""
        seconds, spread = self.together(sample.seconds, sample.spread)
        return Sample(seconds=seconds, spread=spread, repeats=sample.repeats)

    def measure(self, task: _Task) -> Sample | None:
        """Sample of a task."""
        run = self._made(task)
        if run is None:
            return None
        self.say(task.label)
        sample = self.sample(
            run, least=task.least, after_work=task.after_work, on_host=task.on_host
        )
        self.seconds[task.label] = sample.seconds
        return sample

    def _made(self, task: _Task) -> Callable[[], object] | None:
        """What a task runs; None, and it is noted, where some rank has no memory for it.

        Collectives are not tried alone: a rank that failed would leave the others waiting.
        """
        run, short = None, False
        try:
            run = task.make()
            if run is not None and task.section != "collectives":
                run()
                self.device.wait()
        except Exception as error:
            if not self.device.is_out_of_memory(error):
                raise
            short = True
        (anyone,) = self.together(float(short))
        if not anyone:
            return run
        run = None
        self.device.recover()
        self.left_out.append(task.label)
        self.say(f"{task.label}: out of memory")
        return None

    def reference(self) -> float:
        """Seconds of the reference kernel, the best of a few in a row."""
        times = []
        for _ in range(_REFERENCE_RUNS):
            self.device.lead(0.0)
            times.append(timed(self.device, self._kernel))
        (seconds,) = self.together(statistics.median(times))
        return seconds


def main(argv: list[str]) -> None:
    """Measure and, on rank 0, write the timings as JSON."""
    rank, ranks, threads = map(int, argv[:3])
    sizes, store, result = SIZES[argv[6]][argv[3]], argv[4], Path(argv[5])
    device = open_device(argv[6], rank)
    start_rank(rank, ranks, device, threads=threads, store=store, timeout=timedelta(seconds=60))
    bench = _Bench(rank, ranks, device, sizes)
    tasks = [
        *_latencies(device),
        *_matmuls(bench, sizes),
        *_copies(sizes, device.place),
        *_updates(sizes, device.place),
        _attention(sizes, device),
        *_collectives(bench, sizes),
    ]
    for _ in range(3):  # the first kernels of a process are slow
        bench.reference()
    measured = measure_steadily(tasks, bench.measure, bench.reference, say=bench.say)
    timings = _document(measured)
    timings["out_of_memory"] = bench.left_out
    timings["hosts"] = len(set(_hosts(ranks)))
    timings["recompute"] = measure_recompute(device, bench.together, bench.reference, bench.say)
    if ranks > 1:
        bench.say("overlap")
        timings["overlap"] = measure_overlap(device, bench.together, bench.reference, sizes.overlap)
        timings["units"] = measure_units(
            device, bench.together, bench.reference, sizes.units, bench.say
        )
    if rank == 0:
        result.write_text(json.dumps(timings), encoding="utf-8")
    if ranks > 1:
        dist.destroy_process_group()


def _document(measured: Sequence[Measured[_Task]]) -> dict[str, object]:
    sections: dict[str, list[dict[str, object]]] = {
        name: []
        for name in (
            *("matmul", "copies", "updates", "attention", "collectives"),
            *("kernel_latency", "dispatch_latency"),
        )
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
    (attention,) = sections.pop("attention")
    latencies = {
        name: latency["time"]
        for name in ("kernel_latency", "dispatch_latency")
        for latency in sections.pop(name)
    }
    return {**latencies, "attention": attention, **sections}


def _hosts(ranks: int) -> list[str]:
    """Host of each rank."""
    if ranks == 1:
        return [socket.gethostname()]
    hosts: list[str] = [""] * ranks
    dist.all_gather_object(hosts, socket.gethostname())
    return hosts


def _text(seconds: float) -> str:
    return f"{seconds:.9g} s"


def _latencies(device: Device) -> Iterator[_Task]:
    x = torch.ones(16, device=device.place, requires_grad=True)

    def run() -> None:
        y = x
        for _ in range(20):
            y = y * 1.5

    label = "latency of a small operator"
    yield _Task(section="kernel_latency", label=label, record={}, make=lambda: run, share=20)
    if device.kind != "cpu":  # there both are one
        yield _Task(
            section="dispatch_latency",
            label="issuing a small operator",
            record={},
            make=lambda: run,
            share=20,
            on_host=True,
        )


def _matmuls(bench: _Bench, sizes: Sizes) -> Iterator[_Task]:
    for dtype in bench.device.dtypes:
        name = str(dtype).removeprefix("torch.")
        smaller = ""
        for n in sizes.matmul:

            def make(n: int = n, dtype: torch.dtype = dtype, smaller: str = smaller) -> Cold | None:
                # A type without native support takes seconds where float32 takes milliseconds.
                last = bench.seconds.get(smaller, 0.0 if not smaller else math.inf)
                if dtype is not torch.float32 and last * 8 > 2.0:
                    return None
                return matmul_of(n, dtype, bench.device.place)

            smaller = f"matmul {name} {n}"
            record: dict[str, object] = {"dtype": name, "shape": [n, n, n]}
            yield _Task(section="matmul", label=smaller, record=record, make=make)


def _copies(sizes: Sizes, place: torch.device) -> Iterator[_Task]:
    for size in sizes.copies:

        def make(size: int = size) -> Cold:
            # float32, read once and written once
            return Cold(lambda: (torch.ones(size // 8, device=place),), lambda x: x * 1.5)

        label = f"memory {size // KiB} KiB"
        yield _Task(section="copies", label=label, record={"moved": f"{size} B"}, make=make)


def _updates(sizes: Sizes, place: torch.device) -> Iterator[_Task]:
    for size in sizes.copies:
        numel = size // 12

        def make(numel: int = numel) -> Cold:
            # float32, two read and one of them written
            operands = lambda: tuple(torch.ones(numel, device=place) for _ in range(2))  # noqa: E731
            return Cold(operands, lambda x, y: x.add_(y, alpha=0.5))

        label = f"update {size // KiB} KiB"
        yield _Task(section="updates", label=label, record={"moved": f"{12 * numel} B"}, make=make)


def _attention(sizes: Sizes, device: Device) -> _Task:
    heads, head_size, length = sizes.attention
    dtype = device.usual
    shape = (1, heads, length, head_size)
    q, k, v = (torch.randn(shape, dtype=dtype, device=device.place) for _ in range(3))
    flop = 4 * heads * length * length * head_size
    return _Task(
        section="attention",
        label="attention",
        record={"dtype": str(dtype).removeprefix("torch."), "flop": flop},
        make=lambda: lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v),
    )


def _collectives(bench: _Bench, sizes: Sizes) -> Iterator[_Task]:
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
                    return ready(numel, ranks, first, group, bench.device.place)

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
