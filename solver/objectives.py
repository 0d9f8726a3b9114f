"""What a sweep ranks its points by: time, device-hours, cost, the Pareto front and its knee.

With T seconds of a step, B samples of it and n ranks:

    time         T / B          for a fixed batch that of the step
    device-hours n T / B        those of a sample
    cost         price n T / B  with the price of a device-hour

The **knee** of a sweep over cluster sizes has the least n (T / B)^2. As efficiency is speedup by
ranks, that is the most efficiency for a unit of time (Eager, Zahorjan and Lazowska, "Speedup versus
efficiency in parallel systems", IEEE Transactions on Computers 38(3), 1989): beyond it, twice the
ranks are less than the square root of two times as fast. Where only memory limits differ, it
is the point of the Pareto front furthest below the chord between its ends, limit and time scaled to
0..1 (Satopaa et al., "Finding a 'kneedle' in a haystack", 2011).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoplan.ir.plan import Plan
from autoplan.ir.sweep import Objective, PointRecord

__all__ = ["judged", "knee", "pareto_front", "with_plan"]

_SECONDS_PER_HOUR = 3600.0
_DUST = 1e-9  # relative: equal times


def with_plan(point: PointRecord, plan: Plan, price_per_hour: float | None) -> PointRecord:
    """``point`` with the numbers of its plan."""
    prediction, workload = plan.prediction, plan.workload
    step_time, batch = plan.effective_step_time, workload.global_batch
    device_seconds = point.ranks * step_time / batch
    per_sample = {"device_seconds": device_seconds}
    if price_per_hour is not None:
        per_sample["cost"] = device_seconds / _SECONDS_PER_HOUR * price_per_hour
    costs = {f"{name}_per_sample": value for name, value in per_sample.items()}
    if workload.seq_len:
        costs |= {f"{name}_per_token": v / workload.seq_len for name, v in per_sample.items()}
    return point.model_copy(
        update={
            "status": "solved",
            "step_time": step_time,
            "gap": prediction.gap,
            "termination": prediction.termination,
            "samples_per_second": batch / step_time,
            "tokens_per_second": batch * workload.seq_len / step_time if workload.seq_len else None,
            "mfu": prediction.mfu * prediction.step_time / step_time,
            "peak_memory": plan.expected_peak_memory,
            "label": _label(plan),
            **costs,
        }
    )


def _label(plan: Plan) -> str:
    axes = [f"{axis} {size}" for axis, size in plan.mesh.model_dump().items() if size > 1]
    parts = [" x ".join(axes) or "1 rank", f"mbs {plan.pipeline.micro_batch_size}"]
    if plan.mesh.dp_replicate * plan.mesh.dp_shard > 1:
        parts.append(f"zero {plan.zero}")
    if plan.recompute != "none":
        parts.append(f"recompute {plan.recompute}")
    return ", ".join(parts)


def judged(points: Sequence[PointRecord], objective: Objective) -> tuple[PointRecord, ...]:
    """The points, with the Pareto-optimal ones, the knee and the one to choose marked."""
    front, bend = pareto_front(points), knee(points)
    chosen = bend if objective == "knee" else _least(points, _OBJECTIVES[objective])
    return tuple(
        point.model_copy(
            update={"pareto": index in front, "knee": index == bend, "chosen": index == chosen}
        )
        for index, point in enumerate(points)
    )


def pareto_front(points: Sequence[PointRecord]) -> tuple[int, ...]:
    """Points that no other one beats: on at most its ranks, batch and memory, as fast a sample.

    Of equal points the first counts.
    """
    solved = _solved(points)
    keys = {i: (*_spent(points[i]), _time(points[i])) for i in solved}

    def beats(other: int, one: int) -> bool:
        *spent, time = keys[other]
        *most, longest = keys[one]
        if any(a > b for a, b in zip(spent, most, strict=True)) or time > longest * (1 + _DUST):
            return False
        return spent != most or time < longest * (1 - _DUST) or other < one

    return tuple(i for i in solved if not any(beats(j, i) for j in solved if j != i))


def knee(points: Sequence[PointRecord]) -> int | None:
    """The point where more of a resource begins to pay less; None where nothing tells.

    >>> knee([])
    """
    solved = _solved(points)
    ranks, batches = ({getattr(points[i], name) for i in solved} for name in _SPENT[:2])
    if len(ranks) > 1:
        return _least(points, lambda point: point.ranks * _time(point) ** 2)
    if len(batches) > 1 or len({points[i].memory_limit for i in solved}) < 2:
        return None
    front = sorted(pareto_front(points), key=lambda i: points[i].memory_limit)
    if len(front) == 1:
        return front[0]
    first, last = points[front[0]], points[front[-1]]
    span, gain = last.memory_limit - first.memory_limit, _time(first) - _time(last)

    def below(index: int) -> float:
        point = points[index]
        limit = (point.memory_limit - first.memory_limit) / span
        return 1 - limit - (_time(point) - _time(last)) / gain

    bend = max(front, key=below)
    return bend if below(bend) > _DUST else None


def _least(points: Sequence[PointRecord], value: Callable[[PointRecord], float]) -> int | None:
    """Point with the least value; of those alike the one that takes the least."""
    solved = _solved(points)
    if not solved:
        return None
    least = min(value(points[i]) for i in solved)
    alike = [i for i in solved if value(points[i]) <= least * (1 + _DUST)]
    return min(alike, key=lambda i: _spent(points[i]))


def _solved(points: Sequence[PointRecord]) -> list[int]:
    return [i for i, point in enumerate(points) if point.status == "solved"]


_SPENT = ("ranks", "global_batch", "memory_limit")


def _spent(point: PointRecord) -> tuple[int, ...]:
    return tuple(getattr(point, name) for name in _SPENT)


def _time(point: PointRecord) -> float:
    """Seconds for a sample."""
    assert point.step_time is not None
    return point.step_time / point.global_batch


def _device_time(point: PointRecord) -> float:
    return point.ranks * _time(point)


# A price is the same for all devices of a sweep, so costs rank as device-hours do.
_OBJECTIVES: dict[str, Callable[[PointRecord], float]] = {
    "step-time": _time,
    "device-hours": _device_time,
    "cost": _device_time,
}
