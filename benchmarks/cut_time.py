"""CPU time of stage cuts by kind of chain, and ratios of it; objectives against all cuts of some.

    python -m benchmarks.cut_time

A chain is alike but for its ends (``alike``), repeats a pattern of three (``pattern``), or has no
two blocks the same (``distinct``). Memory limits lie between the least that any cut needs and
what the fastest takes; the time is the median over them.
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
import time
from collections.abc import Iterator

from autoplan.schedules import in_flight
from autoplan.solver.chain import ChainItem, Point
from autoplan.solver.inter import StageCut, cut_stages

KINDS = ("alike", "pattern", "distinct")
SHARES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
REPEATS, SMALL = 3, 200


def main() -> int:
    """Print a table of times and one of ratios; 1 when a small chain isn't cut best."""
    print(f"{'chain':<10}{'blocks':>7}{'stages':>8}{'points':>8}{'median':>11}{'most':>11}")
    found = {}
    for kind, (blocks, stages), points in itertools.product(KINDS, ((12, 2), (96, 16)), (1, 3, 8)):
        times = _times(kind, blocks, stages, points)
        median, most = statistics.median(times), max(times)
        found[kind, blocks, points] = median
        columns = f"{kind:<10}{blocks:>7}{stages:>8}{points:>8}"
        print(f"{columns}{median * 1e3:>8.2f} ms{most * 1e3:>8.2f} ms")
    print(f"\n{'chain':<10}{'96 blocks / 12':>16}{'3 points / 1':>16}{'8 points / 3':>16}")
    for kind in KINDS:
        print(
            f"{kind:<10}{found[kind, 96, 3] / found[kind, 12, 3]:>16.2f}"
            f"{found[kind, 96, 3] / found[kind, 96, 1]:>16.2f}"
            f"{found[kind, 96, 8] / found[kind, 96, 3]:>16.2f}"
        )
    worst = max(_over_the_best(seed) for seed in range(SMALL))
    print(
        f"\n{SMALL} chains of 6 blocks: at most {worst:.1e} over the best of all cuts and choices"
    )
    return int(worst > 1e-12)


def _chain(kind: str, blocks: int, points: int, seed: int = 0) -> list[ChainItem]:
    rng = random.Random(seed)
    if kind == "distinct":
        return [_item(rng, points, rng.uniform(0.5, 1.5)) for _ in range(blocks)]
    first, block, other, last = (_item(rng, points, scale) for scale in (0.1, 1.0, 1.7, 2.0))
    repeated = (block, block, other if kind == "pattern" else block)
    return [first, *(repeated[index % 3] for index in range(blocks - 2)), last]


def _item(rng: random.Random, points: int, scale: float) -> ChainItem:
    """A block whose later points save activations, for time and transients."""
    choices = []
    for index in range(points):
        less = index / max(1, points - 1)
        choices.append(
            Point(
                forward=scale * (1 + 0.15 * less * rng.uniform(0.8, 1.2)),
                backward=2 * scale * (1 + 0.1 * less**2),
                static=round(1e9 * rng.uniform(0.9, 1.1)),
                activation=round(3e8 * scale * (1 - 0.9 * less**0.7) * rng.uniform(0.9, 1.1)),
                transient=round(2e8 * scale * (1 + less)),
            )
        )
    return ChainItem(points=tuple(choices), boundary=20_000_000, send=1e-3)


def _cut(chain: list[ChainItem], stages: int, limit: int) -> StageCut:
    microbatches = 4 * stages
    flights = [in_flight("1f1b", stage, stages, microbatches) for stage in range(stages)]
    return cut_stages(
        chain, stages=stages, microbatches=microbatches, in_flight=flights, memory_limit=limit
    )


def _limits(chain: list[ChainItem], stages: int) -> Iterator[int]:
    least, most = (_cut(chain, stages, limit).peak_memory for limit in (0, 2**62))
    return (round(least + share * (most - least)) for share in SHARES)


def _times(kind: str, blocks: int, stages: int, points: int) -> list[float]:
    chain = _chain(kind, blocks, points)
    times = []
    for limit in _limits(chain, stages):
        runs = []
        for _ in range(REPEATS):
            start = time.process_time()
            _cut(chain, stages, limit)
            runs.append(time.process_time() - start)
        times.append(min(runs))
    return times


def _over_the_best(seed: int) -> float:
    """How far a cut in three stages is over the best of all, relative to that, at most."""
    chain, stages = _chain(KINDS[seed % 3], 6, 2, seed), 3
    microbatches, most = 4 * stages, 0.0
    outcomes = [
        _outcome(chain, (0, *inner, len(chain)), choices, microbatches)
        for inner in itertools.combinations(range(1, len(chain)), stages - 1)
        for choices in itertools.product(range(2), repeat=len(chain))
    ]
    for limit in _limits(chain, stages):
        best = min(seconds for seconds, peak in outcomes if peak <= limit)
        most = max(most, _cut(chain, stages, limit).objective / best - 1)
    return most


def _outcome(
    chain: list[ChainItem], edges: tuple[int, ...], choices: tuple[int, ...], microbatches: int
) -> tuple[float, int]:
    """Seconds of a step and bytes of the fullest stage."""
    stages = len(edges) - 1
    points = [item.points[choice] for item, choice in zip(chain, choices, strict=True)]
    times, peaks, sends = [], [], 0.0
    for stage, (first, last) in enumerate(itertools.pairwise(edges)):
        flight = in_flight("1f1b", stage, stages, microbatches)
        mine = points[first:last]
        peak = sum(p.static + flight * p.activation for p in mine) + max(p.transient for p in mine)
        peak += microbatches * chain[first - 1].boundary if first else 0
        if last < len(chain):
            peak += (microbatches + flight) * chain[last - 1].boundary
            sends += 2 * chain[last - 1].send
        times.append(sum(point.time for point in mine))
        peaks.append(peak)
    return sum(times) + (microbatches - 1) * max(times) + sends, max(peaks)


if __name__ == "__main__":
    sys.exit(main())
