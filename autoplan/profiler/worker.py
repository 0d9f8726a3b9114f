"""One rank of a measurement: ``python -m autoplan.profiler.worker TASK RANK STORE``.

Ranks on one machine share its cores and memory, so all measure the same target at a time.
An operator runs on several sets of operands one after another, whose results are all held until
their backward, latest first, as a training step does: so what is read in the forward has just
been written, what backward reads has not been touched for a while, and memory that was freed is
used again as often as in a step. Before each run other memory is passed over, as the other
operators of a step do: a small operator takes two to four times as long then, since its code,
its parameters and the memory of its results are in none of the core's own caches.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.profiler.clock import Stopwatch
from autoplan.profiler.operator import Operands, Operator
from autoplan.profiler.silence import silent_collectives
from autoplan.profiles.measure.device import Device, open_device
from autoplan.profiles.measure.start import start_rank

__all__ = ["Timing", "main", "measure"]

_MOST_SETS = 64
_LEAST_ROUNDS = 3
_MOST_ROUNDS = 50
_HELD = 2**27  # bytes of operands and results that all sets may hold together

Timing = dict[str, Any]


def main(argv: list[str]) -> None:
    """Measure the targets of a task; rank 0 appends each to the task's journal at once."""
    task = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    rank, ranks = int(argv[1]), int(task["ranks"])
    threads = int(task["threads"])
    device = open_device(str(task["device"]), rank)
    start_rank(rank, ranks, device, threads=threads, store=argv[2], timeout=timedelta(minutes=10))
    with Path(task["journal"]).open("a", encoding="utf-8") as journal:
        for index, record in enumerate(task["targets"]):
            timing = _timing(record, device, float(task["budget"]))
            broken = "failure" in timing and _broken(device)
            if not broken:
                timing = _shared(timing, ranks)
            if rank == 0:
                journal.write(json.dumps(timing) + "\n")
                journal.flush()
                print(index + 1, flush=True)
            if broken:
                sys.exit(f"{timing['failure']}: the device is of no use to this process any more")
    if ranks > 1:
        dist.destroy_process_group()


def _broken(device: Device) -> bool:
    """Whether a kernel that failed, as by an index out of range, took the device with it."""
    try:
        device.wait()
    except RuntimeError:
        return True
    return False


def _timing(record: dict[str, Any], device: Device, budget: float) -> Timing:
    try:
        return measure(Operator(record, device.place), device, budget)
    except Exception as error:
        # Whatever an operator raises is the finding; the ranks must stay together.
        reason = (str(error).splitlines() or [""])[0]
        failure = f"{type(error).__name__}: {reason}"[:200]
        if device.is_out_of_memory(error):
            failure = "out of memory"
    # Not in the handler: there the error's frames still hold the tensors.
    if failure == "out of memory":
        device.recover()
    return {"signature": record["signature"], "failure": failure}


def _shared(timing: Timing, ranks: int) -> Timing:
    """Mean over the ranks, of whom each must have measured it."""
    if ranks == 1:
        return timing
    everyones: list[Timing] = [{}] * ranks
    dist.all_gather_object(everyones, timing)
    failed = [t for t in everyones if "failure" in t]
    if failed:
        return failed[0]
    return {
        "signature": timing["signature"],
        "forward": statistics.fmean(t["forward"] for t in everyones),
        "backward": statistics.fmean(t["backward"] for t in everyones),
        "spread": max(t["spread"] for t in everyones),
        "repeats": min(t["repeats"] for t in everyones),
    }


def measure(operator: Operator, device: Device, budget: float) -> Timing:
    """Median seconds of forward and backward, and the spread of their sum, within a budget."""
    watch = Stopwatch(device)
    with silent_collectives(watch.exclude):
        started = time.perf_counter()
        empty = _empty_backward(watch)
        held = _bytes(operator, watch)
        once = time.perf_counter() - started
        sets = max(1, min(_MOST_SETS, _HELD // max(1, held)))
        sets = max(1, min(sets, int(budget / max(once, 1e-9))))
        operands = [operator.operands() for _ in range(sets)]
        forwards: list[float] = []
        backwards: list[float] = []
        rounds = 0
        started = time.perf_counter()
        while rounds < _LEAST_ROUNDS or (
            time.perf_counter() - started < budget and rounds < _MOST_ROUNDS
        ):
            timed = _round(operator, operands, watch)
            if rounds or budget < once:  # the first warms up
                forwards += [forward for forward, _ in timed]
                backwards += [max(0.0, backward - empty) for _, backward in timed]
            rounds += 1
            if time.perf_counter() - started > 4 * budget and rounds > 1:
                break
    sums = sorted(f + b for f, b in zip(forwards, backwards, strict=True))
    low, high = sums[len(sums) // 10], sums[len(sums) * 9 // 10]
    return {
        "signature": operator.signature,
        "forward": statistics.median(forwards),
        "backward": statistics.median(backwards),
        "spread": (high - low) / max(statistics.median(sums), 1e-9),
        "repeats": len(sums),
    }


def _bytes(operator: Operator, watch: Stopwatch) -> int:
    """Bytes that one set of operands and results takes; runs the operator once."""
    operands = operator.operands()
    results = operator(Operator.unkept(operands))
    _backward(results, _seeds(results), watch)
    return sum(x.numel() * x.element_size() for x in (*operands, *results))


def _empty_backward(watch: Stopwatch) -> float:
    """Seconds that torch takes to start a backward, which a step does once."""
    place = watch.device.place
    x = torch.ones(8, device=place, requires_grad=True)
    seed = [torch.ones(8, device=place)]
    times = []
    for _ in range(21):
        _others(watch)
        times.append(_backward([Operator.unkept([x])[0]], seed, watch))
    return statistics.median(times)


def _round(
    operator: Operator, operands: list[Operands], watch: Stopwatch
) -> list[tuple[float, float]]:
    """Seconds of forward and backward of each set."""
    forwards: list[float] = []
    held: list[list[Tensor]] = []
    for one in operands:
        _others(watch)
        for x in operator.computed(one):
            _touch(x)
        inputs = Operator.unkept(one)
        made: list[list[Tensor]] = []
        forwards.append(watch(_run(operator, inputs, made)))
        held.append(made[0])
        del inputs
    backwards: list[float] = []
    seeds = _seeds(held[0])
    while held:
        _others(watch)
        for x in seeds:
            _touch(x)
        backwards.append(_backward(held.pop(), seeds, watch))
    return list(zip(forwards, reversed(backwards), strict=True))


def _others(watch: Stopwatch) -> None:
    """What the other operators of a step do to the caches, and to the device's queue."""
    watch.device.flush()
    watch.device.lead(watch.host)


def _run(operator: Operator, inputs: Operands, made: list[list[Tensor]]) -> Callable[[], None]:
    return lambda: made.append(operator(inputs))


def _touch(x: Tensor) -> None:
    """Bring a tensor to where it would be if it had just been computed."""
    with torch.no_grad():
        x.add_(0) if x.dtype != torch.bool else x.logical_not_().logical_not_()


def _seeds(results: list[Tensor]) -> list[Tensor]:
    return [torch.rand_like(y) for y in results if y.requires_grad]


def _backward(results: list[Tensor], seeds: list[Tensor], watch: Stopwatch) -> float:
    wanted = [y for y in results if y.requires_grad]
    if not wanted:
        return 0.0
    return watch(lambda: torch.autograd.backward(wanted, seeds))


if __name__ == "__main__":
    main(sys.argv[1:])
